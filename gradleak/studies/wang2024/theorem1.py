"""Theorem 1: every scalar gives a label that sums to one

wang2024, section 3.4 and appendix A: without a prior on the label, the gradient admits an interval of scalars.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import ClassVar

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import claims, data, studies
from gradleak.labels import LabelPath, label_loss, nonnegative_intervals
from gradleak.labels.priors import named
from gradleak.leak import HeadLeaks
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, greatest, mean, median, only, percent, select, share, spread, summary, total
from gradleak.show.touch import InteractiveFigure, LabelSlider
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import DTYPES, LABELS, observe_private, private_samples, read, reduced, written

PLACE = "Section 3.4, Figure 2, Appendix A"
# A rounding error divided by its bound is as uncertain as the error. Logits in float32 contain the rounding errors of
# all layers.
COLUMNS = {
    "bound_share": kinds.rounding(near=1.0),
    "logits": kinds.measured(relative=1e-5),
    "ratios": kinds.measured(relative=1e-5),
}
# Decades of |λ / λ*|, given by the exponents of their lower ends.
DECADES = (-2, -1, 0, 1)


class Parameters(studies.Parameters):
    """Parameters of the page: random layers, networks and images."""

    samples: int = setting(
        200,
        paper=20_000,
        smallest=20,
        ge=1,
        le=1_000_000,
        about="random layers per number of classes and precision",
    )
    classes: list[int] = setting(
        [2, 10, 100], paper=[2, 10, 100, 1000], smallest=[3, 10], about="numbers of classes C of the random layers"
    )
    features: int = setting(64, ge=1, le=8192, about="features I of the random layers")
    images: int = setting(
        30, paper=500, smallest=10, ge=1, le=100_000, about="single images per network and kind of label"
    )
    dataset: str = setting("photos", paper="cifar10", about="dataset of the private images")
    networks: list[str] = setting(["lenet"], paper=["lenet", "resnet18", "resnet18-cifar"], about="untrained networks")

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        return [Sees(network, self.dataset) for network in self.networks]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the random layers, then each network's images, and one image for the figure."""
        for classes, dtype, bias in product(self.classes, DTYPES, (False, True)):
            yield RandomLayers.of(self, classes=classes, dtype=dtype, bias=bias)
        for network, labels in product(self.networks, LABELS):
            for dtype in DTYPES:
                yield NetworkSums.of(self, network=network, labels=labels, dtype=dtype, samples=self.images)
            yield Intervals.of(self, network=network, labels=labels, dtype="float64", samples=self.images)
        yield OneInterval.of(self, network=self.networks[0], labels="smoothing", dtype="float32", samples=1)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        images = f"{self.images} images for each network and kind of label, {data.title(self.dataset)}"
        return f"{self.samples:,} random layers of each kind, {images}"


class Sums(Row):
    """How much the sums of pseudo labels differ from 1.

    Attributes:
        pseudo_labels: The number of pseudo labels.
        error: The largest |Σŷ − 1|.
        median_error: The median of |Σŷ − 1|.
        bound_share: The largest |Σŷ − 1| relative to its bound.
        invalid_percent: The percentage of pseudo labels with a negative entry.
        error_decade_…: The largest |Σŷ − 1| in one decade of |λ / λ*|, named by the exponent of its lower end.
    """

    pseudo_labels: int
    error: float
    median_error: float
    bound_share: float
    invalid_percent: float
    error_decade_minus_2: float = Field(alias="error_decade_-2")
    error_decade_minus_1: float = Field(alias="error_decade_-1")
    error_decade_0: float
    error_decade_1: float


class LayerSums(Sums):
    """The sums for random layers and, if the layers have a bias, median L1 errors of the labels.

    Attributes:
        median_label_error: The error at the true scalar.
        median_label_error_bias_ignored: The error at the true scalar if the bias is ignored.
        median_label_error_closed_form: The error of the closed form that uses the bias gradient.
    """

    median_label_error: float = math.nan
    median_label_error_bias_ignored: float = math.nan
    median_label_error_closed_form: float = math.nan


class Interval(Row):
    """The interval of λ around the true scalar in which every label is valid.

    Attributes:
        sample: The number of the image.
        truth: The true scalar.
        low: The end nearer to zero.
        high: The other end, infinite if the interval has none.
        elsewhere: The number of other intervals with valid labels.
        least: The least |λ| with a valid label.
        widening: high / low.
        ambiguous: Whether the interval is wider than rounding.
        endless: Whether the interval has no upper end.
        label_distance: The L1 distance between the labels at both ends.
    """

    sample: int = 0
    truth: float
    low: float
    high: float
    elsewhere: int
    least: float
    widening: float
    ambiguous: bool
    endless: bool
    label_distance: float


class DrawnInterval(Interval):
    """The interval of one image with its label path."""

    logits: list[float]
    ratios: list[float]


class RandomLayers(Experiment):
    """Measure the sums of pseudo labels of random layers with any feature, any label and any scalar."""

    part: ClassVar[str] = "layers"
    classes: int
    dtype: str
    bias: bool
    features: int
    samples: int

    def run(self) -> list[LayerSums]:
        """Draw the layers, and measure the sums."""
        generator = torch.Generator().manual_seed(self.seed)
        chunk = max(1, 20_000_000 // (self.classes * self.features))
        parts = [self._draw(min(chunk, self.samples - start), generator) for start in range(0, self.samples, chunk)]
        drawn = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        sums = measured_sums(drawn.pop("labels"), drawn.pop("reach"), DTYPES[self.dtype])
        medians = {f"median_{name}": float(values.median()) for name, values in drawn.items()}
        return [LayerSums.of(sums, **medians)]

    def _draw(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the pseudo labels of some layers, |λ* / λ| of their scalars and, with a bias, label errors."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        classes, features = self.classes, self.features
        like = torch.empty(0, device=self.device, dtype=DTYPES[self.dtype])
        # Draw logits from flat to saturated, features of any sign, and labels anywhere on the simplex.
        spread = 10 ** (uniform(samples, 1, 1) * 3 - 1.5)
        weight = (normal(samples, classes, features) * spread / math.sqrt(features)).to(like)
        hidden = normal(samples, features).to(like)
        offset = (normal(samples, classes) if self.bias else torch.zeros(samples, classes)).to(like)
        exponential = -(uniform(samples, classes).clamp(min=1e-300)).log()
        label = (exponential / exponential.sum(dim=1, keepdim=True)).to(like)
        label = label / label.sum(dim=1, keepdim=True)

        logits = (torch.einsum("nci,ni->nc", weight, hidden) + offset).requires_grad_()
        loss = -(label * logits.log_softmax(dim=1)).sum()
        (delta,) = torch.autograd.grad(loss, [logits])
        gradient = delta.unsqueeze(2) * hidden.unsqueeze(1)

        row = gradient.sum(dim=2).abs().argmax(dim=1)
        direction = gradient[torch.arange(samples, device=row.device), row]
        column = direction.abs().argmax(dim=1)
        picked = gradient[torch.arange(samples, device=row.device), :, column]
        path = LabelPath(
            direction,
            torch.einsum("nci,ni->nc", weight, direction),
            picked / direction.gather(1, column[:, None]),
            None,
            row,
        )
        truth = 1 / delta.gather(1, row[:, None])
        factor = 10 ** (uniform(samples, 1) * 4 - 2) * torch.where(uniform(samples, 1) < 0.5, -1.0, 1.0)
        scalars = truth * factor.to(truth)
        values = {"labels": _pseudo_labels(path, offset, scalars).unsqueeze(1), "reach": (1 / factor).abs()}
        if self.bias:
            # The bias gradient gives the label directly: x = Gᵀ g_b / ‖g_b‖² and ŷ = softmax(Wx + b) − g_b.
            closed = torch.einsum("nci,nc->ni", gradient, delta) / delta.square().sum(dim=1, keepdim=True)
            scores = torch.einsum("nci,ni->nc", weight, closed) + offset
            values |= {
                "label_error": (_pseudo_labels(path, offset, truth) - label).abs().sum(dim=1),
                "label_error_bias_ignored": (path.labels(truth)[:, 0] - label).abs().sum(dim=1),
                "label_error_closed_form": (scores.softmax(dim=1) - delta - label).abs().sum(dim=1),
            }
        return {name: value.cpu() for name, value in values.items()}


def _pseudo_labels(path: LabelPath, offset: Tensor, scalars: Tensor) -> Tensor:
    """Return ŷ(λ) (N, C) at one scalar for each layer (N, 1) with its own bias (N, C)."""
    return (scalars * path.logits + offset).softmax(dim=-1) - path.ratios / scalars


class OnNetwork(Experiment):
    """An experiment on single images in an untrained network."""

    network: str
    labels: str
    dtype: str
    dataset: str
    samples: int

    def observed(self) -> tuple[HeadLeaks, Tensor]:
        """Return the clients' last-layer leaks, and the true p − y (N, C)."""
        private = data.load(self.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        model = built(self.network, private, self.seed, self.device)
        return observe_private(model, inputs, targets, self.dtype, self.device)


class NetworkSums(OnNetwork):
    """Measure the sums of pseudo labels of a network's images."""

    part: ClassVar[str] = "network"

    def run(self) -> list[Sums]:
        """Draw sixteen scalars for each image, and measure the sums."""
        path, truth = reduced(*self.observed(), exact=False)
        generator = torch.Generator().manual_seed(self.seed)
        factor = 10 ** (torch.rand(self.samples, 16, generator=generator, dtype=torch.float64) * 4 - 2)
        factor[:, ::2] *= -1
        drawn = path.labels((truth[:, None] * factor.to(truth)).to(path.ratios)).cpu()
        return [measured_sums(drawn, 1 / factor.abs(), DTYPES[self.dtype])]


class Intervals(OnNetwork):
    """Find the intervals of λ in which the labels of a network's images are valid."""

    part: ClassVar[str] = "interval"

    def run(self) -> list[Interval]:
        """Find the interval of each image."""
        rows = interval_rows(*reduced(*self.observed()))
        return [Interval.of(row, sample=n) for n, row in enumerate(rows)]


class OneInterval(OnNetwork):
    """Find the interval of one image, and keep its label path for the figure."""

    part: ClassVar[str] = "figure"

    def run(self) -> list[DrawnInterval]:
        """Find the interval, and return it with the label path."""
        path, truth = reduced(*self.observed())
        return [DrawnInterval.of(interval_rows(path, truth)[0], **written(path))]


def sum_bound(classes: int, reach: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bound on |Σŷ(λ) − 1| by rounding alone, for reach = |λ* / λ|; the page derives this bound."""
    unit = torch.finfo(dtype).eps / 2
    return unit * (2 * classes + 2 + (4 * classes + 16 + 4 * math.log(classes)) * reach)


def measured_sums(labels: Tensor, reach: Tensor, dtype: torch.dtype) -> Sums:
    """Return how much the sums of pseudo labels (N, K, C) at reach |λ* / λ| (N, K) differ from 1."""
    # Sum in float64, because the theorem is on the entries and not on rounding in the sum.
    error = (labels.double().sum(dim=-1) - 1).abs()
    share = error / sum_bound(labels.shape[-1], reach, dtype)
    decade = (-reach.log10()).floor().clamp(DECADES[0], DECADES[-1])
    largest = {
        f"error_decade_{low}": float(error[decade == low].amax()) if bool((decade == low).any()) else math.nan
        for low in DECADES
    }
    return Sums.of(
        pseudo_labels=error.numel(),
        error=float(error.max()),
        median_error=float(error.median()),
        bound_share=float(share.max()),
        invalid_percent=100 * float((labels < 0).any(dim=-1).double().mean()),
        **largest,
    )


def interval_rows(path: LabelPath, truth: Tensor) -> list[Interval]:
    """Return, for every sample, the interval of λ around the true scalar (N,) in which every label is valid."""
    known = truth.tolist()
    around = [_around(own, true) for own, true in zip(nonnegative_intervals(path), known, strict=True)]
    ends = torch.tensor([[low, high] for low, high, _ in around], dtype=path.ratios.dtype).to(path.ratios.device)
    # In an interval without an upper end, labels tend to the one-hot prediction; a large scalar stands for this limit.
    ends[:, 1] = torch.where(ends[:, 1].isinf(), 1e9 * ends[:, 0], ends[:, 1])
    labels = path.labels(ends)
    distances = (labels[:, 0] - labels[:, 1]).abs().sum(dim=1).tolist()
    return [
        Interval(
            truth=true,
            low=low,
            high=high,
            elsewhere=elsewhere,
            least=least,
            widening=high / low,
            ambiguous=high / low > 1 + 1e-4,
            endless=math.isinf(high),
            label_distance=distance,
        )
        for true, (low, high, elsewhere), least, distance in zip(
            known, around, path.least.tolist(), distances, strict=True
        )
    ]


def _around(intervals: list[tuple[float, float]], true: float) -> tuple[float, float, int]:
    """Return the ends of the interval that contains the true scalar, and the number of other intervals."""
    # One-hot and mixup labels have entries that are exactly 0, so their true scalar is an end point: allow for
    # rounding.
    own = [
        (low, high)
        for low, high in intervals
        if low * true > 0 and abs(low) <= abs(true) * (1 + 1e-5) and abs(high) >= abs(true) * (1 - 1e-5)
    ]
    return (*(own[0] if own else (true, true)), len(intervals) - len(own))


def headline(record: Record) -> Headline:
    """Return the finding: the sum is always one, so the gradient alone leaves an interval of labels."""
    known = claims.judgements(record)
    error, interval, apart = known["theorem1-sum-float64"], known["theorem1-interval"], known["theorem1-prior"]
    return Headline(
        f"For every scalar the entries of the recovered label sum to one (to within {error.text} in float64), and for "
        f"{interval.text} of the smoothed labels a whole interval of scalars gives a valid label: without a prior the "
        "gradient does not determine the label.",
        true=bool(error.agrees and interval.agrees and apart.agrees),
        claim="theorem1-prior",
        what="mean L1 distance between the two extreme labels that explain one gradient (at most 2)",
        figure=figure_two,
    )


def table(record: Record) -> pd.DataFrame:
    """Return how much the sums of pseudo labels differ from 1.

    Rows: layers, with or without bias, and kinds of label. Columns: the number of pseudo labels, the share with a
    negative entry, the largest |Σŷ − 1| in each precision, and this error relative to its bound.
    """
    rows = pd.concat([record.rows(RandomLayers), record.rows(NetworkSums)])
    rows = rows.fillna({"network": "random", "labels": "any", "bias": False})
    sizes = rows["classes"].map(lambda classes: "" if pd.isna(classes) else f", C = {classes:.0f}")
    return summary(
        rows.assign(layer=rows["network"] + sizes, bias=rows["bias"].map({True: "yes", False: "no"})),
        {"layer": "layer", "bias": "bias", "labels": "labels"},
        {
            "pseudo labels": total("pseudo_labels"),
            "with a negative entry": mean("invalid_percent", percent(1)),
            "largest |Σŷ − 1|, float32": among(greatest("error", ".1e"), dtype="float32"),
            "largest |Σŷ − 1|, float64": among(greatest("error", ".1e"), dtype="float64"),
            "largest error / its bound": greatest("bound_share", _in_percent),
        },
    )


def _in_percent(value: float) -> str:
    return percent(1)(100 * value)


def bias_table(record: Record) -> pd.DataFrame:
    """Return the median L1 label error for random layers with a bias.

    Rows: numbers of classes C and precisions. Columns: layers; the error at the true scalar with the bias ignored and
    with the bias used; and the error of the closed form, which needs no scalar.
    """
    return summary(
        select(record.rows(RandomLayers), bias=True).astype({"classes": int}),
        {"C": "classes", "precision": "dtype"},
        {
            "layers": only("samples", "{:,}"),
            "L1 error, bias ignored, true λ*": only("median_label_error_bias_ignored", ".1e"),
            "L1 error, bias used, true λ*": only("median_label_error", ".1e"),
            "L1 error, bias gradient used, no λ": only("median_label_error_closed_form", ".1e"),
        },
    )


def interval_table(record: Record) -> pd.DataFrame:
    """Return the intervals of valid labels if nothing is known about the label.

    Rows: networks and kinds of label. Columns: the share of samples with an interval, and with one without end; the
    median ratio of the interval's ends; the L1 distance between the labels at its ends, mean ± standard deviation; and
    the share of samples with a second interval.
    """
    return summary(
        record.rows(Intervals).assign(second=lambda rows: rows["elsewhere"] > 0),
        {"network": "network", "labels": "labels"},
        {
            "samples with an interval": share("ambiguous", _in_percent),
            "interval unbounded": share("endless", _in_percent),
            "far end / near end, median": median("widening", ".2f"),
            "L1 distance of the end labels": spread("label_distance", ".2f"),
            "samples with a second interval": share("second", _in_percent),
        },
    )


def figure_errors(record: Record) -> Figure:
    """Plot the largest |Σŷ − 1| in each decade of |λ / λ*|, and the bound (dashed), for both precisions."""
    frame = record.rows(RandomLayers)
    frame = frame[frame["bias"].eq(False)]
    centres = np.array([10**-1.5, 10**-0.5, 10**0.5, 10**1.5])
    figure, axes = figures.panels(1, 2, height=3.6)
    for axis, dtype in zip(axes[0], DTYPES, strict=True):
        lines = frame[frame["dtype"] == dtype]
        for index, (_, line) in enumerate(lines.iterrows()):
            colour = figures.COLOURS[index % len(figures.COLOURS)]
            errors = np.array([line[f"error_decade_{low}"] for low in DECADES], dtype=float)
            # A logarithmic axis cannot show errors of exactly 0.
            errors = np.where(errors > 0, errors, np.nan)
            classes = int(line["classes"])
            axis.plot(centres, errors, "o", color=colour, label=f"C = {classes}")
            reach = torch.logspace(2, -2, 60, dtype=torch.float64)
            bound = sum_bound(classes, reach, DTYPES[dtype])
            axis.plot(1 / reach, bound, color=colour, linestyle=figures.DASHES[1], linewidth=1.1)
        axis.set(xscale="log", yscale="log", title=dtype, xlabel="|λ / λ*|")
    axes[0][0].set_ylabel("largest |Σŷ − 1| in a decade")
    axes[0][0].plot([], [], color="0.4", linestyle=figures.DASHES[1], linewidth=1.1, label="bound")
    figures.legend_below(figure, 5)
    return figure


def figure_two(record: Record) -> Figure:
    """Plot the labels of one gradient as functions of λ, and the variance loss against λ, as Figure 2 does.

    Bars show the label at five scalars from end to end of the valid interval, and at one scalar outside each end.
    """
    cases = record.rows(OneInterval)
    if cases.empty:
        return figures.nothing("This record is older than the figure and lacks what it shows")
    case = cases.iloc[0]
    path = read(case["logits"], case["ratios"])
    return draw_two(path, case["truth"], (case["low"], case["high"]))


def slider(record: Record) -> InteractiveFigure | None:
    """Return the label and the loss of `figure_two` with a slider over λ, or None if the record lacks them."""
    cases = record.rows(OneInterval)
    if cases.empty:
        return None
    case = cases.iloc[0]
    low, high = case["low"], case["high"]
    ends = slider_ends(low, high)
    return InteractiveFigure(
        LabelSlider(
            logits=case["logits"],
            ratios=case["ratios"],
            free=named("smoothing").free,
            truth=case["truth"],
            low=low,
            high=high if math.isfinite(high) else None,
            first=ends[0],
            last=ends[1],
        ),
        title="The label and its loss as functions of the scalar λ",
        says="Move the slider: the entries of the label always sum to one. In the shaded interval none of them is "
        "negative, so every λ there gives a valid label. The variance loss is zero at the true scalar alone.",
    )


def slider_ends(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a range of λ that contains the interval of valid labels and some of what is outside."""
    high = high if math.isfinite(high) else 4 * low
    return low * (high / low) ** -0.15, high * (high / low) ** 0.15


def draw_two(path: LabelPath, truth: float, interval: tuple[float, float]) -> Figure:
    """Plot the labels of one gradient, and the variance loss, against λ.

    Args:
        path: The label path of one sample.
        truth: The true scalar.
        interval: The ends of the interval with valid labels.
    """
    low, high = interval
    high = high if math.isfinite(high) else 4 * low
    inside = low * (high / low) ** np.linspace(0, 1, 5)
    shown = np.concatenate([[low * (low / high) ** 0.25], inside, [high * (high / low) ** 0.25]])
    scalars = torch.tensor(shown, dtype=path.ratios.dtype)[None]
    labels = path.labels(scalars)[0].numpy()
    losses = label_loss(path.labels(scalars))[0].numpy()
    wide = low * (high / low) ** np.linspace(-0.45, 1.45, 500)
    curve = path.labels(torch.tensor(wide, dtype=path.ratios.dtype)[None])

    figures.style()
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(8.4, 6.6), layout="constrained")
    grid = figure.add_gridspec(3, 8, height_ratios=[1.5, 0.9, 0.9])
    left, right = figure.add_subplot(grid[0, :4]), figure.add_subplot(grid[0, 4:])
    left.plot(wide, curve[0].numpy(), color=figures.COLOURS[2], linewidth=1.1)
    left.axhline(0, color="0.3", linewidth=0.8)
    left.set(title="every entry ŷᵢ(λ)", xlabel="λ", ylabel="ŷᵢ")
    right.plot(wide, label_loss(curve)[0].numpy(), color=figures.COLOURS[0])
    right.set(title="variance loss", xlabel="λ", yscale="log")
    for axis in (left, right):
        axis.axvspan(low, high, color=figures.COLOURS[3], alpha=0.25, linewidth=0, label="all labels valid")
        figures.mark_truth(axis, truth)
    right.legend(loc="best")
    places = [
        grid[1, 0:2],
        grid[1, 2:4],
        grid[1, 4:6],
        grid[1, 6:8],
        grid[2, 1:3],
        grid[2, 3:5],
        grid[2, 5:7],
    ]
    top = max(1.0, float(labels.max())) * 1.05
    bottom = min(-0.08, float(labels.min()) * 1.1)
    for place, scalar, label, loss in zip(places, shown, labels, losses, strict=True):
        axis = figure.add_subplot(place)
        valid = bool((label >= -1e-9).all())
        axis.bar(
            np.arange(len(label)), label,
            color=figures.COLOURS[0] if valid else figures.COLOURS[1], hatch="" if valid else "///", edgecolor="white",
        )  # fmt: skip
        axis.axhline(0, color="0.3", linewidth=0.8)
        axis.set_ylim(bottom, top)
        axis.set_xticks([])
        axis.set_title(f"λ = {scalar:.2f}{'' if valid else ': not a label'}", fontsize=9.5)
        axis.set_xlabel(f"loss {loss:.1e}", fontsize=8.5)
    return figure


def figure_intervals(record: Record) -> Figure:
    """Plot the cumulative distribution of the L1 distance between the labels at the ends of the valid interval.

    One panel for each network, one line for each kind of label.
    """
    frame = record.rows(Intervals)
    names = list(dict.fromkeys(frame["network"]))
    figure, axes = figures.panels(1, len(names), height=3.2, sharey=True)
    for axis, name in zip(axes[0], names, strict=True):
        for index, kind in enumerate(LABELS):
            own = frame[(frame["network"] == name) & (frame["labels"] == kind)]
            style = {"color": figures.COLOURS[index], "linestyle": figures.DASHES[index]}
            sns.ecdfplot(own, x="label_distance", ax=axis, label=kind, **style)
        axis.set(title=name, xlabel="L1 distance of the end labels", xlim=(-0.05, 2.05), ylabel="")
    axes[0][0].set_ylabel("share of samples")
    figures.legend_below(figure, len(LABELS))
    return figure
