"""Failure analysis: what a gradient cannot tell (appendices B and C)

wang2024, appendices B and C: produce every failure of the published search, then solve it or prove it unsolvable.
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

from gradleak import augment, claims, metrics, studies
from gradleak.devices import least_squares
from gradleak.labels import idlg, recover_soft_labels
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, greatest, joined, least, only, percent, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.samples import DTYPES, LABELS, random_layer, soft_labels
from gradleak.studies.shared.searched import KNOWN, Judged, judged, percentage, search_both
from gradleak.wording import label_kind

PLACE = "Appendices B and C"
# Failures: the section of the paper, the kind of label, and the name in tables.
CASES = {
    "disturbed": ("B.1", "smoothing", "flat prediction, 500 classes"),
    "out of bound": ("B.2", "smoothing", "prediction close to the label"),
    "one-hot probability": ("B.3", "onehot", "certain and wrong"),
    "certain and right": ("B.3", "onehot", "certain and right"),
    "certain and mixed": ("B.3", "mixup", "certain of one of the two mixed classes"),
    "certain and smoothed": ("new", "smoothing", "certain and right"),
}


class Parameters(studies.Parameters):
    """Parameters of the page: random layers, their sizes, and the standard deviations of their logits."""

    samples: int = setting(
        100,
        paper=2000,
        smallest=20,
        ge=2,
        le=100_000,
        about="random layers per failure case and per standard deviation of the logits",
    )
    searches: int = setting(
        3,
        paper=50,
        smallest=2,
        ge=1,
        le=10_000,
        about="number of each case's layers on which the published search is run",
    )
    classes: int = setting(10, ge=4, le=10_000, about="classes C of the random layers with varied logits")
    features: int = setting(64, ge=2, le=8192, about="features I of all random layers")
    scales: list[float] = setting(
        [0.1, 1.0, 10.0, 100.0],
        paper=[0.001, 0.01, 0.1, 1.0, 3.0, 10.0, 20.0, 30.0, 50.0, 100.0, 300.0],
        smallest=[1.0, 30.0],
        about="standard deviations of the logits",
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield the failure cases, then random layers by kind of label, precision and scale of the logits."""
        for case in CASES:
            yield Case.of(self, case=case)
        for labels, dtype, scale in product(LABELS, DTYPES, self.scales):
            yield Point.of(self, labels=labels, dtype=dtype, scale=scale)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{self.samples:,} random layers for each case and scale"


class CaseSolved(Judged):
    """The results of all attacks on a failure case; shares in percent.

    Attributes:
        class_right: Labels by the exact solver whose largest class is right.
        idlg: Classes that iDLG names correctly.
        searches: The number of samples of the published search.
        searched: Labels that the published search recovers.
        searched_wrong: Wrong labels that the published search returns.
    """

    labels: str
    class_right: float
    idlg: float
    searches: int
    searched: float
    searched_wrong: float


class PointSolved(Judged):
    """The exact solver's results on random gradients, in percent.

    Attributes:
        zero: Gradients that are zero.
        missed: Other gradients for which no label is found.
        truth_among: Gradients with the true label among the candidates.
    """

    zero: float
    missed: float
    truth_among: float


class Case(Experiment):
    """Produce a failure case, and attack it with the published search and the exact solver."""

    part: ClassVar[str] = "case"
    case: str
    searches: int
    features: int
    samples: int

    def run(self) -> list[CaseSolved]:
        """Produce the case, and recover its labels."""
        labels = CASES[self.case][1]
        gradients, weight, targets, nonnegative = make_case(self.case, self.features, self.samples, self.seed)
        gradients, weight = gradients.to(self.device), weight.to(self.device)
        exact = recover_soft_labels(gradients, weight, prior=labels, nonnegative=nonnegative)
        found, top = exact.labels.cpu(), targets.argmax(dim=1)
        class_right = found.nan_to_num(-1).argmax(dim=1).eq(top) & ~exact.where("failed").cpu()
        tried = gradients[: self.searches]
        # The published search divides by squares, so it treats a gradient as zero if all squares underflow to zero.
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
    """Recover labels from random gradients whose logits have the standard deviation `scale`."""

    part: ClassVar[str] = "frontier"
    labels: str
    dtype: str
    scale: float
    classes: int
    features: int
    samples: int

    def run(self) -> list[PointSolved]:
        """Recover the labels, and count how many are determined by the gradients."""
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
    """Return float32 gradients (N, C, I), the weight (C, I), the true labels (N, C), and whether features are ≥ 0."""
    generator = torch.Generator().manual_seed(seed)
    if case == "out of bound":
        # Choose features whose prediction is almost the smoothed label.
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
    """Return the gradients (N, C, I) of N clients with one sample each, computed in `dtype`."""
    hidden, weight, targets = hidden.to(dtype), weight.to(dtype), targets.to(dtype)
    logits = (hidden @ weight.T).requires_grad_()
    (delta,) = torch.autograd.grad(-(targets * logits.log_softmax(dim=1)).sum(), [logits])
    return delta.unsqueeze(2) * hidden.unsqueeze(1)


def headline(record: Record) -> Headline:
    """Return the finding: of the paper's unsolvable cases, only a right and certain prediction hides the label."""
    known = claims.judgements(record)
    wrong, right = known["failure-analysis-onehot"], known["failure-analysis-zero"]
    return Headline(
        f"Where a network is certain of a wrong class, which the paper calls unsolvable, the exact solver recovers "
        f"{wrong.text} of the one-hot labels; where the network is certain of the right class, {right.text} of the "
        "gradients give no label at all.",
        true=bool((wrong.value or 0) > 99 and (right.value or 0) > 90),
        claim="failure-analysis-onehot",
        what="one-hot labels recovered where the network is certain of a wrong class, random last layers",
        figure=figure_frontier,
        of="random layers",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the results on every failure case, in percent of the samples.

    Rows: failure cases. Columns: labels that the published search recovers, and wrong labels that it returns; labels
    that the exact solver recovers, calls ambiguous or fails to find; the number of wrong labels that it calls
    unique; and right classes by the exact solver and by iDLG.
    """
    rows = record.rows(Case)
    return summary(
        rows.assign(
            name=[
                f"{CASES[case][2]} ({CASES[case][0]})".replace("(new)", "(not in the paper)") for case in rows["case"]
            ],
            labels=rows["labels"].map(label_kind),
        ),
        {"case": "name", "labels": "labels"},
        {
            "published search: right": joined(" of ", only("searched", percent()), only("searches", ".0f")),
            "published search: wrong label": only("searched_wrong", percent()),
            "exact solver: right": only("accuracy", percent(1)),
            "exact solver: ambiguous": only("ambiguous", percent(1)),
            "exact solver: no label": only("failed", percent(1)),
            "exact solver: wrong but called unique": only("silent", ".0f"),
            "exact solver: class right": only("class_right", percent()),
            "iDLG: class right": among(only("idlg", percent()), labels=label_kind("onehot")),
        },
    )


def frontier_table(record: Record) -> pd.DataFrame:
    """Return the exact solver's results on random gradients over all standard deviations of the logits.

    Rows: kinds of label and precisions. Columns: the largest scale up to which all labels are recovered; the lowest
    recovery rate and its scale; the largest shares of ambiguous labels, zero gradients and labels not found; the
    smallest share of nonzero gradients with the truth among the candidates; the number of wrong labels called unique.
    """
    rows = record.rows(Point)
    # Zero gradients have no candidates, so take the share among the others.
    rows["listed"] = rows["truth_among"] / (100 - rows["zero"]) * 100
    return summary(
        rows.assign(labels=rows["labels"].map(label_kind)),
        {"labels": "labels", "precision": "dtype"},
        {
            "at least 99.9 % recovered up to a logit scale of": _last_whole,
            "lowest share recovered": _least_recovered,
            "ambiguous": greatest("ambiguous", percent(1)),
            "zero gradient": greatest("zero", percent(1)),
            "no label found": greatest("missed", percent(1)),
            "true label listed": least("listed", percent(1)),
            "wrong but called unique": total("silent", ".0f"),
        },
    )


def _least_recovered(group: pd.DataFrame) -> str:
    worst = group.sort_values("accuracy").iloc[0]
    return f"{worst['accuracy']:.1f} % (scale {worst['scale']:g})"


def _last_whole(group: pd.DataFrame) -> str:
    short = group[group["accuracy"] < 99.9]["scale"]
    whole = group[group["scale"] < (short.min() if len(short) else math.inf)]["scale"]
    return f"{whole.max():g}" if len(whole) else "none"


def figure_frontier(record: Record) -> Figure:
    """Plot the shares of recovered and of ambiguous labels (%) against the scale of the logits, for each precision."""
    return drawn(
        record.rows(Point),
        lines("scale", "accuracy", by="dtype", label="{}, recovered".format, linestyle="-"),
        lines("scale", "ambiguous", by="dtype", label="{}, ambiguous".format, linestyle="--", marker=""),
        panels="labels",
        height=3.5,
        legend=4,
        xscale="log",
        xlabel="standard deviation of the logits",
        ylabel="share of gradients (%)",
        ylim=(-3, 103),
    )


def figure_open(scale: float = 40.0, seed: int = 0) -> Figure:
    """Plot the residual of one saturated, smoothed sample, in rounding errors, against t / t*, one line for each
    precision.

    t is the length of the feature and t* is its true length. Labels with residuals below the dashed line are accepted.
    """
    from gradleak.labels import PRIORS
    from gradleak.labels.soft import rank_one, single
    from gradleak.labels.soft.equations import Fit
    from gradleak.labels.soft.problem import ACCEPT

    generator = torch.Generator().manual_seed(seed)
    weight, hidden = random_layer(10, 64, 200, scale, generator)
    logits = hidden @ weight.T
    gap = logits.topk(2, dim=1).values
    # A gap of 25 between logits is lost in float32 but not in float64, because exp(−25) is 1e-11.
    sample = int((gap[:, 0] - gap[:, 1] - 25).abs().argmin())
    targets = augment.smooth(logits.argmax(dim=1), 10, torch.tensor(0.3, dtype=torch.float64))
    figure, axes = figures.panels(1, 1, height=3.0)
    axis = axes[0][0]
    for index, (name, dtype) in enumerate(DTYPES.items()):
        gradients = send(weight, hidden, targets, dtype)[sample : sample + 1]
        reduced = rank_one.reduce_gradients(gradients, weight.to(dtype))
        problem = single.problem_of(reduced, weight.to(dtype), None, dtype, torch.zeros_like(reduced.size))
        truth = float(hidden[sample].norm())
        # In float64 the minimum is narrower than the step of any even grid.
        near = np.geomspace(1e-15, 0.3, 200)
        at = torch.from_numpy(np.sort(np.concatenate([np.geomspace(0.02, 50, 800), 1 - near, 1 + near])))[None] * truth
        misfit = Fit.at(problem, PRIORS["smoothing"], at).lengths[0, 0].clamp(min=1e-3)
        axis.plot(at[0] / truth, misfit, color=figures.COLOURS[2 * index], label=name)
    axis.axhline(ACCEPT, color="0.4", linestyle=figures.DASHES[1], linewidth=1.1, label="accepted below this line")
    figures.mark_truth(axis, 1.0, "true length")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="length of the feature / its true length",
        ylabel="residual (rounding errors)",
    )
    axis.legend()
    return figure
