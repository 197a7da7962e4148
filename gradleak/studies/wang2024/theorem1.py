"""Theorem 1 and its loss: every scalar gives a label that sums to one, and one scalar gives the right shape

wang2024, sections 3.2 to 3.4, appendices A and C: the interval of scalars that remains without a prior, and the minima
of the loss that a prior defines, before and after training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import PlainSerializer
from torch import Tensor

from gradleak import claims, data, studies
from gradleak.labels import LabelPath, Minima, find_minima, label_loss, nonnegative_intervals
from gradleak.labels.priors import prior_of
from gradleak.leak import HeadLeaks
from gradleak.models import training
from gradleak.show import figures
from gradleak.show.summary import Summary
from gradleak.show.touch import InteractiveFigure
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import DTYPES, LABELS, observe_private, private_samples, read, reduced, written

PLACE = "Theorem 1, Sections 3.2, 3.3 and 3.4, Figures 1, 2 and 7, Appendices A and C"
# Decades of |λ / λ*|, given by the exponents of their lower ends.
DECADES = (-2, -1, 0, 1)
# The paper's code multiplies the variance by 1000 and its Algorithm 1 accepts a loss below 1e-9.
ACCEPTED = 1e-9 / 1000
# The paper's code multiplies the scalar by 4 and counts it as found within 0.01.
FOUND = 0.01 / 4
# The starts of a walk outward: ±1, and ±¼, which is ±1 divided by the coefficient of 4.
START, START_SCALED = 1.0, 0.25
# A training recipe that is written to a trial's inputs with all fields, as JSON.
StatedRecipe = Annotated[training.Recipe, PlainSerializer(lambda recipe: recipe.model_dump(mode="json"))]


class Parameters(studies.Parameters):
    """Parameters of the page: random layers, networks and images, and the training of one network."""

    samples: int = setting(paper=20_000, smallest=20, ge=1, le=1_000_000)
    classes: list[int] = setting(paper=[2, 10, 100, 1000], smallest=[3, 10])
    features: int = setting(ge=1, le=8192)
    images: int = setting(paper=500, ge=1, le=100_000)
    dataset: str = setting(paper="cifar10")
    networks: list[str] = setting(paper=["lenet", "resnet18", "resnet18-cifar"])
    untrained: str = setting(smallest="lenet")
    trained: str = setting(paper="resnet18-cifar")
    training_dataset: str = setting(paper="cifar10")
    epochs: int = setting(paper=3, ge=1, le=1000)

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        untrained = [Sees(network, self.dataset) for network in (*self.networks, self.untrained)]
        return [*untrained, Sees(self.trained, self.dataset, learns=self.training_dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the random layers, each network's images, one image for the figure, and the minima of two networks."""
        for classes, dtype, bias in product(self.classes, DTYPES, (False, True)):
            yield RandomLayers.of(self, classes=classes, dtype=dtype, bias=bias)
        for network, labels in product(self.networks, LABELS):
            for dtype in DTYPES:
                yield NetworkSums.of(self, network=network, labels=labels, dtype=dtype, samples=self.images)
            yield Intervals.of(self, network=network, labels=labels, dtype="float64", samples=self.images)
        yield OneInterval.of(self, network=self.networks[0], labels="smoothing", dtype="float32", samples=1)
        recipe = training.Recipe(
            network=self.trained,
            dataset=self.training_dataset,
            labels="smoothing",
            epochs=self.epochs,
            bias=False,
            batch_size=64 if self.training_dataset == "photos" else 128,
            learning_rate=5e-3,
            seed=self.seed,
        )
        yield Landscape.of(self, stage="untrained", network=self.untrained, recipe=None, samples=self.images)
        yield Landscape.of(self, stage="trained", network=self.trained, recipe=recipe, samples=self.images)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        images = f"{self.images} images for each network and kind of label, {data.title(self.dataset)}"
        return f"{self.samples:,} random layers of each kind, {images}"


class RandomLayers(Experiment, part="layers"):
    """Measure the sums of pseudo labels of random layers with any feature, any label and any scalar."""

    classes: int
    dtype: str
    bias: bool
    features: int
    samples: int

    def run(self) -> list[Columns]:
        """Draw the layers, and measure the sums."""
        generator = torch.Generator().manual_seed(self.seed)
        chunk = max(1, 20_000_000 // (self.classes * self.features))
        parts = [self._draw(min(chunk, self.samples - start), generator) for start in range(0, self.samples, chunk)]
        drawn = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        sums = measured_sums(drawn.pop("labels"), drawn.pop("reach"), DTYPES[self.dtype])
        medians = {f"median_{name}": float(values.median()) for name, values in drawn.items()}
        return [sums | medians]

    def _draw(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the pseudo labels of some layers, |λ* / λ| of their scalars and, with a bias, label errors."""

        normal = partial(torch.randn, generator=generator, dtype=torch.float64)
        uniform = partial(torch.rand, generator=generator, dtype=torch.float64)
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
        ratios = gradient[torch.arange(samples, device=row.device), :, column] / direction.gather(1, column[:, None])
        path = LabelPath(direction, torch.einsum("nci,ni->nc", weight, direction), ratios, None, row)
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


class NetworkSums(OnNetwork, part="network"):
    """Measure the sums of pseudo labels of a network's images."""

    def run(self) -> list[Columns]:
        """Draw sixteen scalars for each image, and measure the sums."""
        path, truth = reduced(*self.observed(), exact=False)
        generator = torch.Generator().manual_seed(self.seed)
        factor = 10 ** (torch.rand(self.samples, 16, generator=generator, dtype=torch.float64) * 4 - 2)
        factor[:, ::2] *= -1
        drawn = path.labels((truth[:, None] * factor.to(truth)).to(path.ratios)).cpu()
        return [measured_sums(drawn, 1 / factor.abs(), DTYPES[self.dtype])]


class Intervals(OnNetwork, part="interval"):
    """Find the intervals of λ in which the labels of a network's images are valid."""

    def run(self) -> list[Columns]:
        """Find the interval of each image."""
        return [{"sample": n} | row for n, row in enumerate(interval_rows(*reduced(*self.observed())))]


class OneInterval(OnNetwork, part="figure"):
    """Find the interval of one image, and keep its label path for the figure."""

    def run(self) -> list[Columns]:
        """Find the interval, and return it with the label path."""
        path, truth = reduced(*self.observed())
        return [interval_rows(path, truth)[0] | written(path)]


class Landscape(Experiment, part="landscape"):
    """Find the minima of the loss of single images in one network, untrained or trained by `recipe`."""

    # A record keeps a stand-in's minima until those of the network itself take their place.
    effort_fields: ClassVar[frozenset[str]] = frozenset({"network", "recipe"})

    stage: str
    network: str
    recipe: StatedRecipe | None
    dataset: str
    samples: int

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        return [self.dataset, self.recipe.dataset] if self.recipe else [self.dataset]

    def run(self) -> Iterator[Columns]:
        """Find the minima of every sample for both kinds of label, and choose the sample that figures show."""
        private, accuracy = data.load(self.dataset, "test"), None
        if self.recipe is None:
            model = built(self.network, private, self.seed, self.device)
        else:
            trained = training.train(self.recipe, device=self.device)
            model, accuracy = trained.model, trained.accuracy
        for labels in ("smoothing", "mixup"):
            inputs, targets = private_samples(private, labels, self.samples, self.seed)
            path, truth = reduced(*observe_private(model, inputs, targets, "float32", self.device))
            rows = [row | {"test_accuracy": accuracy} for row in sample_minima(path, truth, labels)]
            yield from rows
            if labels == "smoothing":
                # Figures show the first sample whose first minimum is wrong, else one with the most minima.
                most = max(rows, key=lambda row: row["minima"])
                sample = next((row for row in rows if row["first_wrong"]), most)["sample"]
                kept = written(path[sample : sample + 1])
                yield {"example": True, "sample": sample, "truth": float(truth[sample]), **kept}


def sample_minima(path: LabelPath, truth: Tensor, labels: str) -> list[dict[str, Any]]:
    """Find the minima of the variance and of the mean square, and compare them with the true scalars.

    Args:
        path: The label paths of N samples.
        truth: The true scalars (N,).
        labels: The kind of label.

    Returns:
        A row for each sample.
    """
    losses = (find_minima(path, labels, kind, start=START_SCALED) for kind in ("variance", "square"))
    rows: list[dict[str, Any]] = []
    for true, variance, square, intervals in zip(truth.tolist(), *losses, nonnegative_intervals(path), strict=True):
        first, first_scaled = (first_minimum(variance, true, start) for start in (START, START_SCALED))
        rows.append(
            {
                "labels": labels,
                "sample": len(rows),
                "truth": true,
                "minima": len(variance.side(true).scalars),
                "first": first,
                "first_scaled": first_scaled,
                "first_wrong": not _found(first, true),
                "first_scaled_wrong": not _found(first_scaled, true),
                "best": variance.best,
                "best_wrong": not _found(variance.best, true),
                "accepted_wrong": _accepted_wrong(variance, true),
                "square_right": _found(square.best, true),
                "negative_interval": any(high / low > 1 + 1e-4 for low, high in intervals if low * true > 0),
            }
        )
    return rows


def first_minimum(minima: Minima, truth: float, start: float) -> float:
    """Return the first minimum on a walk outward from ±start with the sign of the true scalar, NaN if there is none."""
    side = minima.side(truth)
    beyond = side.scalars[side.scalars.abs() >= start * (1 - 1e-3)]
    return float(beyond[0]) if len(beyond) else float("nan")


def _found(scalar: float, truth: float) -> bool:
    # The relative tolerance is for scalars in the hundreds, whose rounding errors in float32 exceed 0.0025.
    return abs(scalar - truth) <= max(FOUND, 1e-3 * abs(truth))


def _accepted_wrong(minima: Minima, truth: float) -> bool:
    low_enough = minima.scalars[(minima.losses <= ACCEPTED) & (minima.scalars.abs() >= START_SCALED)]
    return any(not _found(scalar, truth) for scalar in low_enough.tolist())


def sum_bound(classes: int, reach: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bound on |Σŷ(λ) − 1| by rounding alone, for reach = |λ* / λ|; the page derives this bound."""
    unit = torch.finfo(dtype).eps / 2
    return unit * (2 * classes + 2 + (4 * classes + 16 + 4 * math.log(classes)) * reach)


def measured_sums(labels: Tensor, reach: Tensor, dtype: torch.dtype) -> Columns:
    """Return how much the sums of pseudo labels (N, K, C) at reach |λ* / λ| (N, K) differ from 1."""
    # Sum in float64, because the theorem is on the entries and not on rounding in the sum.
    error = (labels.double().sum(dim=-1) - 1).abs()
    share = error / sum_bound(labels.shape[-1], reach, dtype)
    decade = (-reach.log10()).floor().clamp(DECADES[0], DECADES[-1])
    parts = {f"sum_error_decade_{low}": error[decade == low] for low in DECADES}
    return {
        "pseudo_labels": error.numel(),
        "sum_error": float(error.max()),
        "median_sum_error": float(error.median()),
        "bound_share": float(share.max()),
        "invalid_percent": 100 * float((labels < 0).any(dim=-1).double().mean()),
        **{name: float(part.amax()) if len(part) else math.nan for name, part in parts.items()},
    }


def interval_rows(path: LabelPath, truth: Tensor) -> list[Columns]:
    """Return, for every sample, the interval of λ around the true scalar (N,) in which every label is valid."""
    rows: list[Columns] = []
    for n, (true, intervals) in enumerate(zip(truth.tolist(), nonnegative_intervals(path), strict=True)):
        # One-hot and mixup labels have entries that are exactly 0, so their true scalar is an end point: allow for
        # rounding.
        around = [
            (low, high)
            for low, high in intervals
            if low * true > 0 and abs(low) <= abs(true) * (1 + 1e-5) and abs(high) >= abs(true) * (1 - 1e-5)
        ]
        low, high = around[0] if around else (true, true)
        # In an interval without an upper end, labels tend to the one-hot prediction; a large scalar stands for this
        # limit.
        ends = path.ratios.new_tensor([[low, 1e9 * low if math.isinf(high) else high]])
        first, last = path[n : n + 1].labels(ends)[0]
        rows.append(
            {
                "truth": true,
                "low": low,
                "high": high,
                "elsewhere": len(intervals) - len(around),
                "least": float(path.least[n]),
                "widening": high / low,
                "interval": high / low > 1 + 1e-4,
                "endless": math.isinf(high),
                "label_distance": float((first - last).abs().sum()),
            }
        )
    return rows


def summary(record: Record) -> Summary:
    """Return the finding: the sum is always one, and of the minima of a prior's loss only the lowest is right."""
    known = claims.judgements(record)
    interval, first, lowest = (
        known[name] for name in ("theorem1-interval", "loss-landscape-trained-first", "loss-landscape-least")
    )
    needed = ("theorem1-sum-float64", "theorem1-prior", "loss-landscape-untrained-first")
    return Summary(
        f"For every value of the unknown scalar the label sums to one, and for {interval.text} of smoothed labels an "
        f"interval of scalars is valid. On a trained network the loss's first minimum is wrong for "
        f"{first.text} of them, the lowest for {lowest.text}.",
        true=bool(interval.agrees and lowest.agrees and (first.value or 0) > 20)
        and all(known[name].agrees for name in needed),
        claim="theorem1-prior",
        what="mean L1 distance between the labels at the ends of this interval (at most 2), three untrained networks",
        figure=figure_two,
    )


def samples(record: Record) -> pd.DataFrame:
    """Return a row for each sample and kind of label whose minima were counted."""
    rows = record.rows(Landscape)
    return rows[rows["example"].ne(True)].infer_objects()


def figure_two(record: Record) -> Figure:
    """Plot the labels of one gradient as functions of λ, and the variance loss against λ, as Figure 2 does.

    Bars show the label at five scalars from end to end of the valid interval, and at one scalar outside each end.
    """
    case = record.rows(OneInterval).iloc[0]
    path, low, high = read(case["logits"], case["ratios"]), case["low"], case["high"]
    high = high if math.isfinite(high) else 4 * low

    def labels(powers: Any) -> tuple[Any, Any, Any]:
        """Return scalars, at 0 and 1 the ends of the interval, with their labels and losses."""
        scalars = low * (high / low) ** np.asarray(powers)
        found = path.labels(torch.from_numpy(scalars)[None])
        return scalars, found[0].numpy(), label_loss(found)[0].numpy()

    figures.style()
    figure = plt.figure(figsize=(8.4, 6.6), layout="constrained")
    axes = list(figure.subplot_mosaic("AAAABBBB;CCDDEEFF;.GGHHII.", height_ratios=[1.5, 0.9, 0.9]).values())
    scalars, curves, losses = labels(np.linspace(-0.45, 1.45, 500))
    axes[0].plot(scalars, curves, color=figures.COLOURS[2], linewidth=1.1)
    axes[0].axhline(0, color="0.3", linewidth=0.8)
    axes[0].set(title="every entry ŷᵢ(λ)", xlabel="λ", ylabel="ŷᵢ")
    axes[1].plot(scalars, losses, color=figures.COLOURS[0])
    axes[1].set(title="variance loss", xlabel="λ", yscale="log")
    for axis in axes[:2]:
        axis.axvspan(low, high, color=figures.COLOURS[3], alpha=0.25, linewidth=0, label="all labels valid")
        figures.mark_truth(axis, case["truth"])
    axes[1].legend(loc="best")
    shown = labels([-0.25, 0, 0.25, 0.5, 0.75, 1, 1.25])
    for axis, scalar, label, loss in zip(axes[2:], *shown, strict=True):
        valid = bool((label >= -1e-9).all())
        colour, hatch = (figures.COLOURS[0], "") if valid else (figures.COLOURS[1], "///")
        axis.bar(range(len(label)), label, color=colour, hatch=hatch, edgecolor="white")
        axis.axhline(0, color="0.3", linewidth=0.8)
        axis.set(xticks=[], ylim=(min(-0.08, 1.1 * shown[1].min()), 1.05 * max(1, shown[1].max())))
        axis.set_title(f"λ = {scalar:.2f}{'' if valid else ': not a label'}", fontsize=9.5)
        axis.set_xlabel(f"loss {loss:.1e}", fontsize=8.5)
    return figure


def slider(record: Record) -> InteractiveFigure:
    """Return the label and the loss of `figure_two` with a slider over λ."""
    case = record.rows(OneInterval).iloc[0]
    end = case["high"] if math.isfinite(case["high"]) else None
    # The slider also shows some of what is outside the interval of valid labels.
    low, last = case["low"], end or 4 * case["low"]
    first, last = low * (last / low) ** -0.15, last * (last / low) ** 0.15
    return InteractiveFigure(
        "label-slider",
        {name: case[name] for name in ("logits", "ratios", "truth", "low")}
        | {"high": end, "first": first, "last": last, "free": prior_of("smoothing").free},
        title="The label and its loss as functions of the scalar λ",
        says="Move the slider: the entries of the label always sum to one. In the shaded interval none is negative. "
        "The variance loss is zero at the true scalar alone.",
    )


def figure_landscape(record: Record) -> Figure:
    """Plot the variance loss of one sample against the scalar λ, as Figures 1 and 7 do; one panel for each network.

    The dots are the minima with the sign of the true scalar.
    """
    rows = record.rows(Landscape)
    cases = rows[rows["example"].eq(True)].to_dict("records")
    figure, axes = figures.grid(len(cases), 2)
    for axis, case in zip(axes, cases, strict=True):
        path, truth = read(case["logits"], case["ratios"]), case["truth"]
        side = find_minima(path, "smoothing", start=START_SCALED)[0].side(truth)
        outward = np.geomspace(0.25, 1.5 * np.abs([*side.scalars, truth]).max(), 900)
        scalars = np.concatenate([-outward[::-1], [np.nan], outward])
        losses = label_loss(path.labels(torch.from_numpy(scalars)[None]))[0]
        axis.plot(scalars, losses.clamp(min=1e-18), color=figures.COLOURS[0])
        lowest = side.losses.clamp(min=1e-18)
        axis.plot(side.scalars, lowest, "o", color=figures.COLOURS[1], markersize=5, label="minimum")
        figures.mark_truth(axis, truth)
        axis.set(title=f"{case['stage']} {case['network']}", xlabel="λ", ylabel="variance loss", yscale="log")
    figures.legend_below(figure, 2)
    return figure
