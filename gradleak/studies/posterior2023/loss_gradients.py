"""How steep losses are in the logits, and what that does to counts

posterior2023, Theorem 1, Table 1 and Theorem 2: which weight stands before p − y, for which loss and which labels.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import augment, metrics, studies
from gradleak.devices import least_squares
from gradleak.labels.hard.posterior import Posteriors, posterior_values
from gradleak.labels.hard.rounding import rounded
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal, Loss
from gradleak.runs.records import Record
from gradleak.show import figures

PLACE = "Section 3.1, Theorem 1, Table 1, Appendix C"
SMALLEST: dict[str, Any] = {"cases": 20, "classes": [2, 10], "gammas": [0.0, 2.0], "temperatures": [1.0, 2.0]}
# Logits are drawn from flat to steep; where p is 1 to the last digit, autograd of (1 − p)^γ has no value for γ below 1.
SCALES = (-2.0, 0.3)
# What the formula is: as Theorem 1 prints it, as its proof has it, and what soft labels make of it.
FORMS = {
    "Table 1": "its weight times p − y",
    "equation 2 as printed": "all classes' weights, without the label",
    "by the label": "each class's weight times its share of the label",
}
BATCH, CLASSES = 64, 10
CONFIDENCES = (0.15, 0.3, 0.5, 0.7, 0.9)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    cases: int = Field(200, ge=2, le=1_000_000, description="random logits a loss and number of classes")
    classes: list[int] = Field([2, 10, 100], description="numbers of classes K")
    gammas: list[float] = Field([0.0, 0.5, 2.0, 5.0], description="focusing parameters of the focal loss")
    temperatures: list[float] = Field([0.5, 1.0, 4.0], description="temperatures of the softmax")

    paper: ClassVar[dict[str, Any]] = {
        "cases": 10_000,
        "classes": [2, 3, 10, 100, 1000],
        "gammas": [0.0, 0.5, 1.0, 2.0, 5.0],
        "temperatures": [0.5, 1.0, 4.0],
    }


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.cases:,} random logits a loss and number of classes"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads: none, its logits are drawn."""
    del parameters
    return []


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a loss and a number of classes each; and counts under each focal loss."""
    common: dict[str, Any] = {"cases": parameters.cases, "seed": parameters.seed}
    common |= {"device": studies.resolve_device(parameters.device)}
    rows: list[dict[str, Any]] = [
        {"part": "slope", "loss": "focal", "labels": labels, "gamma": gamma, "temperature": temperature, "classes": k}
        for labels in ("one-hot", "soft")
        for gamma in parameters.gammas
        for temperature in parameters.temperatures
        for k in parameters.classes
    ]
    rows += [
        {"part": "slope", "loss": "cross-entropy", "labels": labels, "gamma": 0.0, "temperature": t, "classes": k}
        for labels in ("one-hot", "soft")
        for t in parameters.temperatures
        for k in parameters.classes
    ]
    rows += [
        {"part": "slope", "loss": "binary", "labels": "binary", "gamma": 0.0, "temperature": 1.0, "classes": k}
        for k in parameters.classes
    ]
    rows += [{"part": "counts", "gamma": gamma} for gamma in parameters.gammas]
    return [row | common for row in rows]


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Compare the slope of a loss with its formulas, or counts with and without each sample's own weight."""
    return _slope(**inputs) if part == "slope" else _counts(**inputs)


def _slope(
    loss: str, labels: str, gamma: float, temperature: float, classes: int, cases: int, seed: int, device: str
) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    low, high = SCALES
    spread = 10 ** (low + (high - low) * torch.rand(cases, 1, **draws))
    logits = (spread * torch.randn(cases, classes, **draws)).to(device).requires_grad_()
    target = _labels(labels, cases, classes, generator).to(device)
    alpha = 0.25 + torch.rand(cases, 1, **draws) if loss == "focal" else torch.ones(cases, 1, dtype=torch.float64)
    own, alpha = _loss(loss, gamma, temperature), alpha.to(device)
    (slope,) = torch.autograd.grad((alpha[:, 0] * own(logits, target)).sum(), [logits])
    p = own.probabilities(logits.detach())
    weight = alpha * own.weight(p)
    size = slope.norm(dim=1)
    rows = []
    for form, found in _forms(weight, p, target, binary=loss == "binary").items():
        # Of a saturated sample little is left but what p itself is rounded to.
        missed = (found - slope).norm(dim=1) / (size + 1e-9 * weight.abs().amax(dim=1)).clamp(min=1e-300)
        rows.append({"form": form, "worst": float(missed.max()), "median": float(missed.median())})
    return [row | {"count": cases, "least_weight": float(weight.min())} for row in rows]


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
        return {"Table 1": weight * (p - target)}
    likeliest = weight.gather(1, target.argmax(dim=1, keepdim=True))
    shared = target * weight
    return {
        "Table 1": likeliest * (p - target),
        "equation 2 as printed": weight.sum(dim=1, keepdim=True) * p - weight,
        "by the label": shared.sum(dim=1, keepdim=True) * p - shared,
    }


def _counts(gamma: float, cases: int, seed: int, device: str) -> list[dict[str, Any]]:
    """Count classes of batches whose samples are all like their class's mean, so that only the formula can be wrong."""
    generator = torch.Generator().manual_seed(seed)
    draws: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    batches, loss, rows = min(cases, 1000), Focal(gamma=gamma), []
    for confidence in CONFIDENCES:
        # Classes are learned unevenly, and mistaken for some others more than for the rest.
        sure = (confidence + 0.4 * (torch.rand(CLASSES, **draws) - 0.5)).clamp(0.02, 0.98)
        others = torch.rand(CLASSES, CLASSES, **draws).fill_diagonal_(0)
        p = others / others.sum(dim=1, keepdim=True) * (1 - sure)[:, None] + torch.diag(sure)
        truth = torch.stack([torch.bincount(row, minlength=CLASSES) for row in _batches(batches, generator)])
        p, sure, truth = p.to(device), sure.to(device), truth.to(device)
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
            rows.append(
                {"form": form, "confidence": confidence, "count": batches}
                | {
                    "found": 100 * float(metrics.count_overlap(found, truth).mean()),
                    "exact": 100 * float((found == truth).all(dim=1).double().mean()),
                }
            )
    return rows


def _batches(count: int, generator: torch.Generator) -> Tensor:
    """Return the classes (N, B) of batches of which half is of two classes."""
    drawn = torch.randint(CLASSES, (count, BATCH), generator=generator)
    pair = torch.randint(CLASSES, (count, 2), generator=generator)
    drawn[:, : BATCH // 2] = pair.repeat_interleave(BATCH // 4, dim=1)
    return drawn


def table(record: Record) -> pd.DataFrame:
    """Return, for every loss and kind of label, how far each reading of the theorem is from autograd's slope."""
    frame = record.part("slope")
    lines = []
    for (loss, labels), group in frame.groupby(["loss", "labels"], sort=False):
        worst = group.groupby("form")["worst"].max()
        lines.append(
            {"loss": loss, "labels": labels, "cases": f"{group[group['form'] == 'Table 1']['count'].sum():,.0f}"}
            | {form: f"{worst[form]:.1e}" if form in worst else "–" for form in FORMS}
            | {"least weight": f"{group['least_weight'].min():.2g}"}
        )
    return pd.DataFrame(lines)


def counts_table(record: Record) -> pd.DataFrame:
    """Return how much of a batch is counted right by Theorem 2 and by the system, by focus and confidence."""
    frame = record.part("counts")
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
