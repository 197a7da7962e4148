"""How steep losses are in the logits, and what that does to counts

posterior2023, Theorem 1, Table 1 and Theorem 2: which weight stands before p − y, for which loss and which labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import augment, metrics, studies
from gradleak.devices import least_squares
from gradleak.labels.hard.posterior import Posteriors, posterior_values
from gradleak.labels.hard.rounding import rounded
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal, Loss
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import among, greatest, least, summary, total
from gradleak.studies import Experiment, Row, setting

PLACE = "Section 3.1, Theorem 1, Table 1, Appendix C"
# Logits are drawn from flat to steep; where p is 1 to the last digit, autograd of (1 − p)^γ has no value for γ below 1.
SCALES = (-2.0, 0.3)
# The readings of Theorem 1: a sample's weight times p − y; all classes' weights, without the label; and, as soft labels
# need it, each class's weight times its share of the label.
TABLE_1, AS_PRINTED, BY_LABEL = "Table 1", "equation 2 as printed", "by the label"
BATCH, CLASSES = 64, 10
CONFIDENCES = (0.15, 0.3, 0.5, 0.7, 0.9)


class Parameters(studies.Parameters):
    """Which losses are looked at, on how many logits, and for how many classes."""

    cases: int = setting(
        200, paper=10_000, smallest=20, ge=2, le=1_000_000, about="random logits a loss and number of classes"
    )
    classes: list[int] = setting(
        [2, 10, 100], paper=[2, 3, 10, 100, 1000], smallest=[2, 10], about="numbers of classes K"
    )
    gammas: list[float] = setting(
        [0.0, 0.5, 2.0, 5.0],
        paper=[0.0, 0.5, 1.0, 2.0, 5.0],
        smallest=[0.0, 2.0],
        about="focusing parameters of the focal loss",
    )
    temperatures: list[float] = setting([0.5, 1.0, 4.0], smallest=[1.0, 2.0], about="temperatures of the softmax")

    def experiments(self) -> Iterator[Experiment]:
        """Give each loss with each kind of label and number of classes; then counts under each focal loss."""
        kinds = ("one-hot", "soft")
        for labels, gamma, temperature, classes in product(kinds, self.gammas, self.temperatures, self.classes):
            yield Slope.of(self, loss="focal", labels=labels, gamma=gamma, temperature=temperature, classes=classes)
        for labels, temperature, classes in product(kinds, self.temperatures, self.classes):
            yield Slope.of(
                self, loss="cross-entropy", labels=labels, gamma=0.0, temperature=temperature, classes=classes
            )
        for classes in self.classes:
            yield Slope.of(self, loss="binary", labels="binary", gamma=0.0, temperature=1.0, classes=classes)
        for gamma in self.gammas:
            yield Counts.of(self, gamma=gamma)

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return f"{self.cases:,} random logits a loss and number of classes"


class Missed(Row):
    """By how much one reading of the theorem misses the slopes of `count` samples, relative to their size."""

    form: str
    worst: float
    median: float
    count: int
    least_weight: float


class Counted(Row):
    """Percent of samples counted under the right class, and of batches that are counted without a mistake."""

    form: str
    confidence: float
    count: int
    found: float
    exact: float


class Slope(Experiment):
    """The slope of a loss in the logits by autograd, beside the readings of the theorem."""

    part: ClassVar[str] = "slope"
    loss: str
    labels: str
    gamma: float
    temperature: float
    classes: int
    cases: int

    def run(self) -> Iterator[Missed]:
        """Draw logits and labels, and compare."""
        generator = torch.Generator().manual_seed(self.seed)
        draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        low, high = SCALES
        spread = 10 ** (low + (high - low) * torch.rand(self.cases, 1, **draws))
        logits = (spread * torch.randn(self.cases, self.classes, **draws)).to(self.device).requires_grad_()
        target = _labels(self.labels, self.cases, self.classes, generator).to(self.device)
        # A weight of each sample's own, which the focal loss allows.
        alpha = torch.ones(self.cases, 1, dtype=torch.float64)
        alpha = 0.25 + torch.rand(self.cases, 1, **draws) if self.loss == "focal" else alpha
        own, alpha = _loss(self.loss, self.gamma, self.temperature), alpha.to(self.device)
        (slope,) = torch.autograd.grad((alpha[:, 0] * own(logits, target)).sum(), [logits])
        p = own.probabilities(logits.detach())
        weight = alpha * own.weight(p)
        # Of a saturated sample little is left but what p itself is rounded to.
        size = (slope.norm(dim=1) + 1e-9 * weight.abs().amax(dim=1)).clamp(min=1e-300)
        for form, found in _forms(weight, p, target, binary=self.loss == "binary").items():
            missed = (found - slope).norm(dim=1) / size
            yield Missed(
                form=form,
                worst=float(missed.max()),
                median=float(missed.median()),
                count=self.cases,
                least_weight=float(weight.min()),
            )


class Counts(Experiment):
    """Classes counted in batches whose samples are all like their class's mean: only the formula can be wrong."""

    part: ClassVar[str] = "counts"
    gamma: float
    cases: int

    def run(self) -> Iterator[Counted]:
        """Count by Theorem 2 and by a system of equations, for classes that are known more or less surely."""
        generator = torch.Generator().manual_seed(self.seed)
        draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        batches, loss = min(self.cases, 1000), Focal(gamma=self.gamma)
        for confidence in CONFIDENCES:
            # Classes are learned unevenly, and mistaken for some others more than for the rest.
            sure = (confidence + 0.4 * (torch.rand(CLASSES, **draws) - 0.5)).clamp(0.02, 0.98)
            others = torch.rand(CLASSES, CLASSES, **draws).fill_diagonal_(0)
            p = others / others.sum(dim=1, keepdim=True) * (1 - sure)[:, None] + torch.diag(sure)
            truth = torch.stack([torch.bincount(row, minlength=CLASSES) for row in _batches(batches, generator)])
            p, sure, truth = p.to(self.device), sure.to(self.device), truth.to(self.device)
            weight = loss.weight(sure)
            # Sample by sample: a class's weight times p − y, whichever row of the gradient one looks at.
            pushes = weight[:, None] * (p - torch.eye(CLASSES).to(p))
            gradient = truth.double() @ pushes / BATCH
            away = (p.sum(dim=0) - sure) / (CLASSES - 1)
            paper = rounded(posterior_values(gradient, BATCH, Posteriors(sure, away), loss=loss), BATCH)
            system = torch.cat([pushes.T, p.new_ones(1, CLASSES)])
            right = torch.cat([BATCH * gradient, p.new_full((batches, 1), BATCH)], dim=1)
            solved = rounded(least_squares(system, right.T).T, BATCH)
            for form, found in (("Theorem 2", paper), ("as a system", solved)):
                yield Counted(
                    form=form,
                    confidence=confidence,
                    count=batches,
                    found=100 * float(metrics.count_overlap(found, truth).mean()),
                    exact=100 * float((found == truth).all(dim=1).double().mean()),
                )


def _loss(name: str, gamma: float, temperature: float) -> Loss:
    if name == "focal":
        return Focal(gamma=gamma, temperature=temperature)
    return CrossEntropy(temperature) if name == "cross-entropy" else BinaryCrossEntropy()


def _labels(kind: str, cases: int, classes: int, generator: torch.Generator) -> Tensor:
    if kind == "binary":
        return torch.randint(2, (cases, classes), generator=generator).double()
    if kind == "one-hot":
        return augment.one_hot(torch.randint(classes, (cases,), generator=generator), classes).double()
    drawn = torch.rand(cases, classes, generator=generator, dtype=torch.float64)
    return drawn / drawn.sum(dim=1, keepdim=True)


def _forms(weight: Tensor, p: Tensor, target: Tensor, *, binary: bool) -> dict[str, Tensor]:
    """Return the slope (N, K) by every reading of the theorem, given the weights Φ (N, K) of all classes."""
    if binary:
        return {TABLE_1: weight * (p - target)}
    likeliest = weight.gather(1, target.argmax(dim=1, keepdim=True))
    shared = target * weight
    return {
        TABLE_1: likeliest * (p - target),
        AS_PRINTED: weight.sum(dim=1, keepdim=True) * p - weight,
        BY_LABEL: shared.sum(dim=1, keepdim=True) * p - shared,
    }


def _batches(count: int, generator: torch.Generator) -> Tensor:
    """Return the classes (N, B) of batches of which half is of two classes."""
    drawn = torch.randint(CLASSES, (count, BATCH), generator=generator)
    pair = torch.randint(CLASSES, (count, 2), generator=generator)
    drawn[:, : BATCH // 2] = pair.repeat_interleave(BATCH // 4, dim=1)
    return drawn


def table(record: Record) -> pd.DataFrame:
    """Return, for every loss and kind of label, how far each reading of the theorem is from autograd's slope."""
    forms = {form: among(greatest("worst", ".1e"), form=form) for form in (TABLE_1, AS_PRINTED, BY_LABEL)}
    return summary(
        record.rows(Slope),
        {"loss": "loss", "labels": "labels"},
        {
            "cases": among(total("count"), form=TABLE_1),
            **forms,
            "least weight": least("least_weight", ".2g"),
        },
    )


def counts_table(record: Record) -> pd.DataFrame:
    """Return how much of a batch is counted right by Theorem 2 and by the system, by focus and confidence."""
    frame = record.rows(Counts)
    wide = frame.pivot_table(index=["gamma", "form"], columns="confidence", values="found", sort=False)
    wide = wide.map("{:.1f} %".format)
    wide.columns = [f"p = {value:g}" for value in wide.columns]
    wide = wide.reset_index()
    wide["gamma"] = wide["gamma"].map("{:g}".format)
    return wide.rename(columns={"gamma": "γ", "form": "counted by"})


def figure_weights(record: Record) -> Figure:
    """Draw the weight before p − y over the probability of the sample's own class, for every focus."""
    gammas = sorted(set(record.frame()["gamma"]))
    p = torch.linspace(1e-4, 1 - 1e-4, 400, dtype=torch.float64)
    figure, axes = figures.panels(1, 1, height=3.0)
    axis = axes[0][0]
    for index, gamma in enumerate(gammas):
        colour = figures.COLOURS[index % len(figures.COLOURS)]
        axis.plot(p, Focal(gamma=gamma).weight(p), color=colour, label=f"γ = {gamma:g}", linewidth=1.6)
    axis.axvline(1 / CLASSES, color="0.5", linestyle=figures.DASHES[1], linewidth=1, label="untrained, K = 10")
    axis.set(xlabel="probability of the sample's own class", ylabel="weight Φ", ylim=(-0.05, None))
    axis.legend()
    return figure
