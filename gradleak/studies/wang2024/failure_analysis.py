"""Failure analysis: what a gradient cannot tell (appendices B and C)

wang2024, appendices B and C: produce every failure of the published search, then solve it or prove it unsolvable.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import augment, claims, metrics, studies
from gradleak.devices import least_squares
from gradleak.labels import idlg, recover_soft_labels
from gradleak.show.drawn import drawn, lines, named_lines, scattered
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Record, setting
from gradleak.studies.shared.samples import DTYPES, LABELS, random_layer, soft_labels
from gradleak.studies.shared.searched import KNOWN, judged, percentage, search_both, truth_among
from gradleak.wording import label_kind

PLACE = "Appendices B and C"
# Failures: the kind of label, and the name in figures with the section of the paper.
CASES = {
    "disturbed": ("smoothing", "smoothed, flat prediction, 500 classes (B.1)"),
    "out of bound": ("smoothing", "smoothed, prediction close to the label (B.2)"),
    "one-hot probability": ("onehot", "one-hot, certain and wrong (B.3)"),
    "certain and right": ("onehot", "one-hot, certain and right (B.3)"),
    "certain and mixed": ("mixup", "mixup, certain of one of the classes (B.3)"),
    "certain and smoothed": ("smoothing", "smoothed, certain and right (not in the paper)"),
}


class Parameters(studies.Parameters):
    """Parameters of the page: random layers, their sizes, and the standard deviations of their logits."""

    samples: int = setting(paper=2000, smallest=20, ge=2, le=100_000)
    searches: int = setting(paper=50, smallest=2, ge=1, le=10_000)
    classes: int = setting(ge=4, le=10_000)
    features: int = setting(ge=2, le=8192)
    scales: list[float] = setting(
        paper=[0.001, 0.01, 0.1, 1.0, 3.0, 10.0, 20.0, 30.0, 50.0, 100.0, 300.0], smallest=[1.0, 30.0]
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


class Case(Experiment, part="case"):
    """Produce a failure case, and attack it with the published search and the exact solver."""

    case: str
    searches: int
    features: int
    samples: int

    def run(self) -> list[Columns]:
        """Produce the case, and recover its labels."""
        labels = CASES[self.case][0]
        gradients, weight, targets = make_case(self.case, self.features, self.samples, self.seed)
        gradients, weight = gradients.to(self.device), weight.to(self.device)
        # Features may be negative only in the case "out of bound".
        exact = recover_soft_labels(gradients, weight, prior=labels, nonnegative=self.case != "out of bound")
        found, top = exact.labels.cpu(), targets.argmax(dim=1)
        class_right = found.nan_to_num(-1).argmax(dim=1).eq(top) & ~exact.where("failed").cpu()
        tried = gradients[: self.searches]
        # The published search divides by squares, so it treats a gradient as zero if all squares underflow to zero.
        tried = tried.where(tried.square().sum(dim=(1, 2), keepdim=True) > 0, 0)
        _, searched = search_both(tried, weight, labels)
        right = metrics.label_error(searched.labels, targets[: self.searches]) < KNOWN
        return [
            judged(found, exact.status, targets)
            | {
                "labels": labels,
                "class_right": percentage(class_right),
                "idlg": percentage(idlg(gradients).cpu() == top),
                "searches": len(right),
                "searched_right": percentage(right),
                "searched_wrong": percentage(searched.ended & ~right),
            }
        ]


class Point(Experiment, part="frontier"):
    """Recover labels from random gradients whose logits have the standard deviation `scale`."""

    labels: str
    dtype: str
    scale: float
    classes: int
    features: int
    samples: int

    def run(self) -> list[Columns]:
        """Recover the labels, and count how many are determined by the gradients."""
        dtype, classes = DTYPES[self.dtype], self.classes
        generator = torch.Generator().manual_seed(self.seed)
        weight, hidden = random_layer(classes, self.features, self.samples, self.scale, generator)
        first = torch.randint(classes, (self.samples,), generator=generator)
        targets = soft_labels(self.labels, first, classes, generator)
        gradients = send(weight, hidden, targets, dtype).to(self.device)
        found = recover_soft_labels(gradients, weight.to(self.device, dtype), prior=self.labels)
        zero = gradients.flatten(1).abs().amax(dim=1) == 0
        return [
            judged(found.labels.cpu(), found.status, targets.to(dtype).double())
            | {
                "zero": percentage(zero),
                "missed": percentage(found.where("failed") & ~zero),
                "truth_among": truth_among(found, targets),
            }
        ]


def make_case(case: str, features: int, samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return float32 gradients (N, C, I), the weight (C, I) and the true labels (N, C) of a failure case."""
    generator = torch.Generator().manual_seed(seed)
    classes, spread = {"disturbed": (500, 1e-3), "out of bound": (10, 1.0)}.get(case, (10, 3e3))
    weight, hidden = random_layer(classes, features, samples, spread, generator)
    if case in ("disturbed", "out of bound"):
        targets = soft_labels("smoothing", torch.randint(classes, (samples,), generator=generator), classes, generator)
    else:
        logits = hidden @ weight.T
        top, second = logits.argmax(dim=1), torch.randint(1, classes, (samples,), generator=generator)
        if case == "one-hot probability":
            targets = augment.one_hot(logits.argmin(dim=1), classes).double()
        elif case == "certain and right":
            targets = augment.one_hot(top, classes).double()
        elif case == "certain and smoothed":
            targets = augment.smooth(top, classes, torch.rand(samples, generator=generator).double() / 2)
        else:
            share = torch.rand(samples, 1, generator=generator, dtype=torch.float64)
            other = augment.one_hot((top + second) % classes, classes)
            targets = share * augment.one_hot(top, classes) + (1 - share) * other
    if case == "out of bound":
        # Choose features whose prediction is almost the smoothed label.
        logits = targets.log() + 3e-2 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
        hidden = least_squares(weight, logits.T).T
    return send(weight, hidden, targets, torch.float32), weight.float(), targets.float().double()


def send(weight: Tensor, hidden: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradients (N, C, I) of N clients with one sample each, computed in `dtype`."""
    hidden, weight, targets = hidden.to(dtype), weight.to(dtype), targets.to(dtype)
    logits = (hidden @ weight.T).requires_grad_()
    (delta,) = torch.autograd.grad(-(targets * logits.log_softmax(dim=1)).sum(), [logits])
    return delta.unsqueeze(2) * hidden.unsqueeze(1)


def summary(record: Record) -> Summary:
    """Return the finding: of the paper's unsolvable cases, only a right and certain prediction hides the label."""
    known = claims.judgements(record)
    wrong, right = known["failure-analysis-onehot"], known["failure-analysis-zero"]
    return Summary(
        f"Where a network is certain of a wrong class, which the paper calls unsolvable, the exact solver recovers "
        f"{wrong.text} of the one-hot labels from non-negative features; where it is certain of the right class, "
        f"{right.text} of the gradients give no label.",
        true=bool((wrong.value or 0) > 99 and (right.value or 0) > 90),
        claim="failure-analysis-onehot",
        what="one-hot labels recovered where the network is certain of a wrong class, random last layers",
        figure=figure_frontier,
        of="random layers",
    )


def figure_cases(record: Record) -> Figure:
    """Plot the shares of labels (%) that the published search and the exact solver find, by failure case."""
    shares = {
        "searched_right": "published search: label right",
        "searched_wrong": "published search: wrong label returned",
        "accuracy": "exact solver: label right",
        "ambiguous": "exact solver: several labels",
    }
    rows = record.rows(Case)
    rows = rows.assign(name=rows["case"].map(lambda case: CASES[case][1]), place=range(len(rows)))
    return drawn(
        rows.rename(columns=shares).melt("place", list(shares.values()), "attack", "share"),
        scattered("share", "place", by="attack"),
        lambda axis, _: named_lines(axis, list(rows["name"])),
        legend=2,
        xlabel="percent of samples",
        xlim=(-3, 103),
    )


def figure_frontier(record: Record) -> Figure:
    """Plot the shares of recovered and of ambiguous labels (%) against the scale of the logits, for each precision.

    Of the one-hot labels, the rest have zero gradients.
    """
    return drawn(
        record.rows(Point),
        lines("scale", "accuracy", by="dtype", label="{}, recovered".format, linestyle="-"),
        lines("scale", "ambiguous", by="dtype", label="{}, ambiguous".format, linestyle="--", marker=""),
        panels="labels",
        title=label_kind,
        legend=4,
        xscale="log",
        xlabel="standard deviation of the logits",
        ylabel="share of gradients (%)",
        ylim=(-3, 103),
    )
