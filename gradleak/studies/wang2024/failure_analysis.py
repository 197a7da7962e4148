"""What a gradient cannot tell

wang2024, appendices B and C: every failure of the search, made on purpose, and solved or proved unsolvable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import augment, metrics, studies
from gradleak.devices import least_squares
from gradleak.labels import idlg, recover_soft_labels
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import greatest, least, percent, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.samples import DTYPES, LABELS, random_layer, soft_labels
from gradleak.studies.shared.searched import KNOWN, Judged, judged, percentage, search_both

PLACE = "Appendices B and C"
# Failures: where the paper has it, the kind of label, and what it is called in tables.
CASES = {
    "disturbed": ("B.1", "smoothing", "flat prediction, 500 classes"),
    "out of bound": ("B.2", "smoothing", "label nearly predicted"),
    "one-hot probability": ("B.3", "onehot", "certain and wrong"),
    "certain and right": ("B.3", "onehot", "certain and right"),
    "certain and mixed": ("B.3", "mixup", "certain of one of two"),
    "certain and smoothed": ("new", "smoothing", "certain and right"),
}


class Parameters(studies.Parameters):
    """How many random layers are drawn, and how far their logits spread."""

    samples: int = setting(
        100, paper=2000, smallest=20, ge=2, le=100_000, about="random layers a case, and a point of the frontier"
    )
    searches: int = setting(
        3, paper=50, smallest=2, ge=1, le=10_000, about="of a case's, how many the published search is run on"
    )
    classes: int = setting(10, ge=4, le=10_000, about="classes C of the frontier's layers")
    features: int = setting(64, ge=2, le=8192, about="features I of all layers")
    scales: list[float] = setting(
        [0.1, 1.0, 10.0, 100.0],
        paper=[0.001, 0.01, 0.1, 1.0, 3.0, 10.0, 20.0, 30.0, 50.0, 100.0, 300.0],
        smallest=[1.0, 30.0],
        about="standard deviations of the logits along the frontier",
    )

    def experiments(self) -> Iterator[Experiment]:
        """Give the made cases, then the points of the frontier."""
        for case in CASES:
            yield Case.of(self, case=case)
        for labels, dtype, scale in product(LABELS, DTYPES, self.scales):
            yield Point.of(self, labels=labels, dtype=dtype, scale=scale)

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return f"{self.samples:,} random layers a case and scale"


class CaseSolved(Judged):
    """What becomes of a case, in percent: exactly solved, by iDLG, and by the published search of the first samples."""

    labels: str
    class_right: float
    idlg: float
    searches: int
    searched: float
    searched_wrong: float


class PointSolved(Judged):
    """What becomes of random gradients, in percent.

    `zero`: gradients that are zero; `missed`: others without any label found; `truth_among`: the true label is among
    the candidates.
    """

    zero: float
    missed: float
    truth_among: float


class Case(Experiment):
    """A failure that is made on purpose, met by the published search and by the exact solver."""

    part: ClassVar[str] = "case"
    case: str
    searches: int
    features: int
    samples: int

    def run(self) -> list[CaseSolved]:
        """Make the case, and solve it."""
        labels = CASES[self.case][1]
        gradients, weight, targets, nonnegative = make_case(self.case, self.features, self.samples, self.seed)
        gradients, weight = gradients.to(self.device), weight.to(self.device)
        exact = recover_soft_labels(gradients, weight, prior=labels, nonnegative=nonnegative)
        found, top = exact.labels.cpu(), targets.argmax(dim=1)
        class_right = found.nan_to_num(-1).argmax(dim=1).eq(top) & ~exact.where("failed").cpu()
        tried = gradients[: self.searches]
        # The published search divides by squares: a gradient whose squares all underflow to zero is zero for it.
        tried = tried.where(tried.square().sum(dim=(1, 2), keepdim=True) > 0, 0)
        _, searched = search_both(tried, weight, labels)
        right = metrics.label_error(searched.labels, targets[: self.searches]) < KNOWN
        return [
            CaseSolved.of(
                judged(found, exact.status, targets),
                labels=labels,
                class_right=percentage(class_right),
                idlg=percentage(idlg(gradients).cpu() == top),
                searches=len(right),
                searched=percentage(right),
                searched_wrong=percentage(searched.ended & ~right),
            )
        ]


class Point(Experiment):
    """A point of the frontier: random gradients whose logits have one standard deviation, the `scale`."""

    part: ClassVar[str] = "frontier"
    labels: str
    dtype: str
    scale: float
    classes: int
    features: int
    samples: int

    def run(self) -> list[PointSolved]:
        """Measure how many labels the gradients hold."""
        dtype, classes = DTYPES[self.dtype], self.classes
        generator = torch.Generator().manual_seed(self.seed)
        weight, hidden = random_layer(classes, self.features, self.samples, self.scale, generator)
        first = torch.randint(classes, (self.samples,), generator=generator)
        targets = soft_labels(self.labels, first, classes, generator)
        gradients = send(weight, hidden, targets, dtype).to(self.device)
        found = recover_soft_labels(gradients, weight.to(self.device, dtype), prior=self.labels)
        zero = gradients.flatten(1).abs().amax(dim=1) == 0
        held = [
            bool(len(own)) and bool((metrics.label_error(own.cpu(), true.expand_as(own)) < 0.01).any())
            for own, true in zip(found.candidates, targets, strict=True)
        ]
        return [
            PointSolved.of(
                judged(found.labels.cpu(), found.status, targets.to(dtype).double()),
                zero=percentage(zero),
                missed=percentage(found.where("failed") & ~zero),
                truth_among=percentage(torch.tensor(held)),
            )
        ]


def make_case(case: str, features: int, samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return float32 gradients (N, C, I), the weight, the true labels, and whether features are not negative."""
    generator = torch.Generator().manual_seed(seed)
    if case == "out of bound":
        # The feature that gives the logits of a smoothed label, and almost that label.
        weight, _ = random_layer(10, features, samples, 1.0, generator)
        targets = soft_labels("smoothing", torch.randint(10, (samples,), generator=generator), 10, generator)
        logits = targets.log() + 3e-2 * torch.randn(samples, 10, generator=generator, dtype=torch.float64)
        hidden = least_squares(weight, logits.T).T
        return send(weight, hidden, targets, torch.float32), weight.float(), targets.float().double(), False
    if case == "disturbed":
        weight, hidden = random_layer(500, features, samples, 1e-3, generator)
        targets = soft_labels("smoothing", torch.randint(500, (samples,), generator=generator), 500, generator)
        return send(weight, hidden, targets, torch.float32), weight.float(), targets.float().double(), True
    weight, hidden = random_layer(10, features, samples, 3e3, generator)
    logits = hidden @ weight.T
    second = torch.randint(1, 10, (samples,), generator=generator)
    if case == "one-hot probability":
        targets = augment.one_hot(logits.argmin(dim=1), 10).double()
    elif case == "certain and right":
        targets = augment.one_hot(logits.argmax(dim=1), 10).double()
    elif case == "certain and smoothed":
        targets = augment.smooth(logits.argmax(dim=1), 10, torch.rand(samples, generator=generator).double() / 2)
    else:
        first = logits.argmax(dim=1)
        share = torch.rand(samples, 1, generator=generator, dtype=torch.float64)
        targets = share * augment.one_hot(first, 10) + (1 - share) * augment.one_hot((first + second) % 10, 10)
    return send(weight, hidden, targets, torch.float32), weight.float(), targets.float().double(), True


def send(weight: Tensor, hidden: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradients (N, C, I) that clients compute in `dtype`."""
    hidden, weight, targets = hidden.to(dtype), weight.to(dtype), targets.to(dtype)
    logits = (hidden @ weight.T).requires_grad_()
    (delta,) = torch.autograd.grad(-(targets * logits.log_softmax(dim=1)).sum(), [logits])
    return delta.unsqueeze(2) * hidden.unsqueeze(1)


def table(record: Record) -> pd.DataFrame:
    """Return every case of failure: what the published search does, and what the exact solver says."""
    frame = record.rows(Case)
    return pd.DataFrame(
        {
            "case": [f"{CASES[case][2]} ({CASES[case][0]})" for case in frame["case"]],
            "labels": frame["labels"],
            "search right": [
                f"{v:.0f} % of {n:.0f}" for v, n in zip(frame["searched"], frame["searches"], strict=True)
            ],
            "wrong": frame["searched_wrong"].map("{:.0f} %".format),
            "exact right": frame["accuracy"].map("{:.1f} %".format),
            "ambiguous": frame["ambiguous"].map("{:.1f} %".format),
            "failed": frame["failed"].map("{:.1f} %".format),
            "silent": frame["silent"].astype(int),
            "class right": frame["class_right"].map("{:.0f} %".format),
            "iDLG": [
                f"{v:.0f} %" if k == "onehot" else "–" for v, k in zip(frame["idlg"], frame["labels"], strict=True)
            ],
        }
    )


def frontier_table(record: Record) -> pd.DataFrame:
    """Return what becomes of random gradients as their logits grow, both precisions."""
    rows = record.rows(Point)
    # A gradient that is zero has no candidates.
    rows["listed"] = rows["truth_among"] / (100 - rows["zero"]) * 100
    return summary(
        rows,
        {"labels": "labels", "precision": "dtype"},
        {
            "whole up to a scale of": _last_whole,
            "least recovered": _least_recovered,
            "ambiguous": greatest("ambiguous", percent(1)),
            "zero gradient": greatest("zero", percent(1)),
            "no label found": greatest("missed", percent(1)),
            "truth listed": least("listed", percent(1)),
            "silently wrong": total("silent", ".0f"),
        },
    )


def _least_recovered(group: pd.DataFrame) -> str:
    worst = group.sort_values("accuracy").iloc[0]
    return f"{worst['accuracy']:.1f} % at {worst['scale']:g}"


def _last_whole(group: pd.DataFrame) -> str:
    short = group[group["accuracy"] < 99.9]["scale"]
    whole = group[group["scale"] < (short.min() if len(short) else math.inf)]["scale"]
    return f"{whole.max():g}" if len(whole) else "none"


def figure_frontier(record: Record) -> Figure:
    """Draw the frontier of identifiability: what is recovered, and what is left open, against the logits' scale."""
    frame = record.rows(Point)
    figure, axes = figures.panels(1, len(LABELS), height=3.5, sharey=True)
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for index, dtype in enumerate(DTYPES):
            own = frame[(frame["labels"] == labels) & (frame["dtype"] == dtype)].sort_values("scale")
            colour = figures.COLOURS[2 * index]
            axis.plot(own["scale"], own["accuracy"], "o-", color=colour, markersize=4, label=f"{dtype}, recovered")
            axis.plot(
                own["scale"], own["ambiguous"], "--", color=colour, linewidth=1.3, label=f"{dtype}, ambiguous"
            )  # fmt: skip
        axis.set(title=labels, xscale="log", xlabel="scale of the logits", ylim=(-3, 103))
    axes[0][0].set_ylabel("percent of gradients")
    figures.legend_below(figure, 4)
    return figure


def figure_open(scale: float = 40.0, seed: int = 0) -> Figure:
    """Draw the residual of one saturated, smoothed sample over its scalar, in rounding errors, both precisions."""
    from gradleak.labels import PRIORS
    from gradleak.labels.soft import exact, rank_one, single
    from gradleak.labels.soft.problem import ACCEPT

    generator = torch.Generator().manual_seed(seed)
    weight, hidden = random_layer(10, 64, 200, scale, generator)
    logits = hidden @ weight.T
    gap = logits.topk(2, dim=1).values
    # Beyond the digits of float32 and within those of float64: exp(−25) is 1e-11.
    sample = int((gap[:, 0] - gap[:, 1] - 25).abs().argmin())
    targets = augment.smooth(logits.argmax(dim=1), 10, torch.tensor(0.3, dtype=torch.float64))
    figure, axes = figures.panels(1, 1, height=3.0)
    axis = axes[0][0]
    for index, (name, dtype) in enumerate(DTYPES.items()):
        gradients = send(weight, hidden, targets, dtype)[sample : sample + 1]
        reduced = rank_one.reduce_gradients(gradients, weight.to(dtype))
        problem = single.problem_of(reduced, weight.to(dtype), None, dtype, torch.zeros_like(reduced.size))
        truth = float(hidden[sample].norm())
        # In float64 the way down is narrower than any even grid.
        near = np.geomspace(1e-15, 0.3, 200)
        at = torch.from_numpy(np.sort(np.concatenate([np.geomspace(0.02, 50, 800), 1 - near, 1 + near])))[None] * truth
        residual, _ = exact._residuals(problem, at, PRIORS["smoothing"])
        misfit = (residual.square().sum(dim=2) / 8).sqrt()[0].clamp(min=1e-3)
        axis.plot(at[0] / truth, misfit, color=figures.COLOURS[2 * index], label=name)
    axis.axhline(ACCEPT, color="0.4", linestyle=figures.DASHES[1], linewidth=1.1, label="accepted below")
    figures.mark_truth(axis, 1.0, "true scalar")
    axis.set(xscale="log", yscale="log", xlabel="t / t*", ylabel="residual, in rounding errors")
    axis.legend()
    return figure
