"""Loss gradients: the weight of each loss, and what it does to label counts

posterior2023, Theorem 1, Table 1 and Theorem 2: the weight before p − y for each loss and kind of label.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import augment, claims, metrics, studies
from gradleak.devices import least_squares
from gradleak.labels.hard.posterior import Posteriors, posterior_values
from gradleak.labels.hard.rounding import rounded
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal, Loss
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.drawn import Look, drawn, lines, only_rows
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, cells, greatest, least, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.posterior2023.columns import COLUMNS

PLACE = "Section 3.1, Theorem 1, Table 1, Appendix C"
# The exponents of the least and the largest scale of logits. Where p rounds to 1, autograd of (1 − p)^γ is not finite
# for γ below 1.
SCALES = (-2.0, 0.3)
# Three readings of Theorem 1: the weight of the sample's class times p − y; the weights of all classes regardless of
# the label; and each class's weight times its share of the label, which soft labels need.
TABLE_1, AS_PRINTED, BY_LABEL = FORMS = "Table 1", "equation 2 as printed", "by the label"
BATCH, CLASSES = 64, 10
CONFIDENCES = (0.15, 0.3, 0.5, 0.7, 0.9)


class Parameters(studies.Parameters):
    """Parameters of the page: losses, numbers of classes and random logits."""

    cases: int = setting(paper=10_000, smallest=20, ge=2, le=1_000_000)
    classes: list[int] = setting(paper=[2, 3, 10, 100, 1000], smallest=[2, 10])
    gammas: list[float] = setting(paper=[0.0, 0.5, 1.0, 2.0, 5.0], smallest=[0.0, 2.0])
    temperatures: list[float] = setting(smallest=[1.0, 2.0])

    def experiments(self) -> Iterator[Experiment]:
        """Yield each loss with each kind of label and number of classes, then the counts under each focal loss."""
        kinds = ("one-hot", "soft")
        losses = [("focal", *own) for own in product(kinds, self.gammas, self.temperatures)]
        losses += [
            ("cross-entropy", labels, 0.0, temperature) for labels, temperature in product(kinds, self.temperatures)
        ]
        losses += [("binary", "binary", 0.0, 1.0)]
        for (loss, labels, gamma, temperature), classes in product(losses, self.classes):
            yield Slope.of(self, loss=loss, labels=labels, gamma=gamma, temperature=temperature, classes=classes)
        for gamma in self.gammas:
            yield Counts.of(self, gamma=gamma)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{self.cases:,} vectors of random logits for each loss and number of classes"


class Slope(Experiment):
    """The gradient of a loss by the logits from autograd, compared with each reading of the theorem."""

    part: ClassVar[str] = "slope"
    loss: str
    labels: str
    gamma: float
    temperature: float
    classes: int
    cases: int

    def run(self) -> Iterator[Columns]:
        """Draw logits and labels, and compare the gradients."""
        generator = torch.Generator().manual_seed(self.seed)
        draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        low, high = SCALES
        spread = 10 ** (low + (high - low) * torch.rand(self.cases, 1, **draws))
        logits = (spread * torch.randn(self.cases, self.classes, **draws)).to(self.device).requires_grad_()
        target = _labels(self.labels, self.cases, self.classes, generator).to(self.device)
        losses: dict[str, Loss] = {
            "focal": Focal(gamma=self.gamma, temperature=self.temperature),
            "cross-entropy": CrossEntropy(self.temperature),
            "binary": BinaryCrossEntropy(),
        }
        own, alpha = losses[self.loss], torch.ones(self.cases, 1, dtype=torch.float64)
        if self.loss == "focal":  # allows a different weight α for each sample
            alpha = 0.25 + torch.rand(self.cases, 1, **draws)
        alpha = alpha.to(self.device)
        (slope,) = torch.autograd.grad((alpha[:, 0] * own(logits, target)).sum(), [logits])
        p = own.probabilities(logits.detach())
        weight = alpha * own.weight(p)
        # The gradient of a saturated sample is mostly rounding error of p, so errors are relative to a larger size.
        size = (slope.norm(dim=1) + 1e-9 * weight.abs().amax(dim=1)).clamp(min=1e-300)
        for form, found in _gradients(weight, p, target, binary=self.loss == "binary").items():
            error = (found - slope).norm(dim=1) / size
            summed: Columns = {"worst": float(error.max()), "median": float(error.median())}
            yield {"form": form, **summed, "count": self.cases, "least_weight": float(weight.min())}


class Counts(Experiment):
    """Counts in batches whose samples all equal the mean of their class, so that only the formula causes errors."""

    part: ClassVar[str] = "counts"
    gamma: float
    cases: int

    def run(self) -> Iterator[Columns]:
        """Count by Theorem 2 and by a system of equations, for classes of different mean confidence."""
        generator = torch.Generator().manual_seed(self.seed)
        draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        batches, loss = min(self.cases, 1000), Focal(gamma=self.gamma)
        for confidence in CONFIDENCES:
            # Classes differ in confidence, and each is confused with some classes more than with others.
            sure = (confidence + 0.4 * (torch.rand(CLASSES, **draws) - 0.5)).clamp(0.02, 0.98)
            others = torch.rand(CLASSES, CLASSES, **draws).fill_diagonal_(0)
            p = others / others.sum(dim=1, keepdim=True) * (1 - sure)[:, None] + torch.diag(sure)
            truth = torch.stack([torch.bincount(row, minlength=CLASSES) for row in _batches(batches, generator)])
            p, sure, truth = p.to(self.device), sure.to(self.device), truth.to(self.device)
            weight = loss.weight(sure)
            # A sample contributes the weight of its class times p − y to all rows of the gradient.
            pushes = weight[:, None] * (p - torch.eye(CLASSES).to(p))
            gradient = truth.double() @ pushes / BATCH
            away = (p.sum(dim=0) - sure) / (CLASSES - 1)
            paper = rounded(posterior_values(gradient, BATCH, Posteriors(sure, away), loss=loss), BATCH)
            system = torch.cat([pushes.T, p.new_ones(1, CLASSES)])
            right = torch.cat([BATCH * gradient, p.new_full((batches, 1), BATCH)], dim=1)
            solved = rounded(least_squares(system, right.T).T, BATCH)
            for form, found in (("Theorem 2", paper), ("as a system", solved)):
                yield {
                    "form": form,
                    "confidence": confidence,
                    "count": batches,
                    "found": 100 * float(metrics.count_overlap(found, truth).mean()),
                    "exact": 100 * float((found == truth).all(dim=1).double().mean()),
                }


def _labels(kind: str, cases: int, classes: int, generator: torch.Generator) -> Tensor:
    if kind == "binary":
        return torch.randint(2, (cases, classes), generator=generator).double()
    if kind == "one-hot":
        return augment.one_hot(torch.randint(classes, (cases,), generator=generator), classes).double()
    drawn = torch.rand(cases, classes, generator=generator, dtype=torch.float64)
    return drawn / drawn.sum(dim=1, keepdim=True)


def _gradients(weight: Tensor, p: Tensor, target: Tensor, *, binary: bool) -> dict[str, Tensor]:
    """Return the gradient (N, K) by each reading of the theorem, from the weights Φ (N, K) of all classes."""
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
    """Return the classes (N, B) of batches in which half of the samples belong to two classes."""
    drawn = torch.randint(CLASSES, (count, BATCH), generator=generator)
    pair = torch.randint(CLASSES, (count, 2), generator=generator)
    drawn[:, : BATCH // 2] = pair.repeat_interleave(BATCH // 4, dim=1)
    return drawn


def headline(record: Record) -> Headline:
    """Return the finding: the slopes of Table 1 are right, and Theorem 2's counts are not exact under a focal loss."""
    known = claims.judgements(record)
    focal, theorem, system = (known[name] for name in ("losses-focal", "losses-theorem-two", "losses-system"))
    return Headline(
        f"For one-hot labels the paper’s gradient of the focal loss is right (relative error at most {focal.text}); "
        f"its formula for counting labels is not exact: for γ = {theorem.claim.measure.where['gamma']:g} it counts as "
        f"few as {theorem.text} of the samples right, a linear system {system.text}.",
        true=bool(focal.agrees and theorem.agrees and system.agrees),
        claim="losses-theorem-two",
        what="fewest samples that Theorem 2 counts under the right class (focal loss, γ = 2, made-up predictions)",
        figure=figure_counts,
        of="batches",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the largest relative error of each formula for the gradient, compared with autograd.

    One row for each loss and kind of label. Columns: the number of samples, the three formulas, and the least weight.
    """
    error = COLUMNS["worst"]
    return summary(
        record.rows(Slope),
        {"loss": "loss", "labels": "labels"},
        {
            "samples": among(total("count"), form=TABLE_1),
            **{f"{error.head}, {form}": among(greatest("worst", error.text), form=form) for form in FORMS},
            **cells(COLUMNS, "least_weight", by=least),
        },
    )


def figure_counts(record: Record) -> Figure:
    """Draw the share of samples counted under the right class (%) against the mean probability of the own class.

    Theorem 2 has a line for each focusing parameter γ; the linear system has one line for all of them.
    """
    theorem = lines("confidence", "found", by="gamma", label="Theorem 2, γ = {:g}".format)
    look: Look = {"color": "0.35", "linestyle": ":", "marker": "*"}
    system = lines("confidence", "found", label=lambda: "linear system, every γ", **look)
    return drawn(
        record.rows(Counts),
        only_rows(theorem, form="Theorem 2"),
        only_rows(system, form="as a system"),
        height=3.4,
        legend=3,
        xlabel="mean probability of a sample’s own class",
        ylabel="samples counted right (%)",
        ylim=(0, 105),
    )
