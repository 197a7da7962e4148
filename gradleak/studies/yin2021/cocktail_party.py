"""Features of a batch: independent components beside exact recovery

Beyond yin2021, section 4: the cocktail-party attack of kariyappa2023, and what a constant has in common with features.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt, model_validator
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, models, studies
from gradleak.errors import InputError
from gradleak.images import unmix_features
from gradleak.labels import recover_batch
from gradleak.leak import head_inputs
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.deep_networks import NAMES, SMALL, made
from gradleak.studies.shared.last_layers import MEAN, STD, TRAINED, Seen

PLACE = "Beyond section 4"
SMALLEST: dict[str, Any] = {"cells": ["photos/lenet/20"], "sizes": [2], "batches": 1}
CONSTANT, PARTY, EXACT = "one direction", "cocktail party", "exact recovery"
# A feature counts as found from this cosine on.
NEAR = 0.99
SEEN = 1000  # images that batches are drawn from
CELL = ["dataset", "network", "classes"]


class Cell(Form):
    """Private images and a network: with random weights and so many classes, or trained, where none are given."""

    dataset: str
    network: str
    classes: Whole = 0

    def check(self) -> None:
        """Say so where there is no such network."""
        if not self.classes and self.network not in (TRAINED, *NAMES):
            raise InputError(f"trained networks are {', '.join((TRAINED, *NAMES))}; others need a number of classes")

    @property
    def sees(self) -> Sees:
        """The network and what it is shown."""
        return Sees(self.network, self.dataset, channels=3 * (self.network == TRAINED))


class Parameters(studies.Parameters):
    """What a rerun may change."""

    cells: list[Cell] = Field(
        ["photos/small-cnn", "photos/lenet/20"],
        validate_default=True,
        description="dataset/network, trained; or dataset/network/classes, with random weights",
    )
    sizes: list[PositiveInt] = Field([2, 4], description="samples in a batch, as far as there are more classes")
    exact_to: int = Field(4, ge=0, description="the largest batch that exact recovery is run on")
    batches: int = Field(2, ge=1, le=10_000, description="batches a cell and size")

    paper: ClassVar[dict[str, Any]] = {
        "cells": [
            f"imagenet-sample/{TRAINED}",
            "cifar10/cifar10-resnet20",
            "cifar10/resnet18/100",
            "cifar10/lenet/100",
        ],
        "sizes": [2, 4, 8, 16, 32, 64, 128, 256],
        "exact_to": 16,
        "batches": 5,
    }

    def sees(self) -> list[Sees]:
        """Return the networks that are built here, and the images that they are shown."""
        return [cell.sees for cell in self.cells if cell.classes or cell.network in (SMALL, TRAINED)]

    @model_validator(mode="after")
    def _few_enough(self) -> Self:
        for cell in self.cells:
            if cell.classes and cell.classes <= min(self.sizes):
                raise ValueError(f"'{cell}' has no more classes than the smallest batch has samples")
        return self


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys(cell.dataset for cell in parameters.cells))


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    images = ", ".join(data.title(name) for name in datasets(parameters))
    return f"{len(parameters.cells)} networks, {parameters.batches} batches of a size, {images}"


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network."""
    common = parameters.model_dump(include={"sizes", "exact_to", "batches", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    return [dict(cell) | common for cell in parameters.cells]


def trial(
    *,
    dataset: str,
    network: str,
    classes: int,
    sizes: list[int],
    exact_to: int,
    batches: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Look for the features of many batches by every attack; a row a batch and attack."""
    run, head = seen(dataset, network, classes, seed, device)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for size in sizes:
        if size >= run.predicted.shape[1]:
            continue
        for number in range(batches):
            chosen = torch.randperm(len(run.features), generator=generator)[:size].to(device)
            own = run.labels_of(chosen, generator, repeats=False)
            for attack, (features, status, seconds) in _attacked(run, head, chosen, own, size <= exact_to).items():
                about = {"size": size, "batch": number, "attack": attack, "status": status, "seconds": seconds}
                rows.append(about | judged(features, run.features[chosen]))
    return rows


def seen(dataset: str, network: str, classes: int, seed: int, device: str) -> tuple[Seen, nn.Linear]:
    """Run a network over a dataset's first test images, and return its last layer, too."""
    private = data.load(dataset, "test")
    images, labels = private.images[:SEEN], private.labels[:SEEN]
    if network == TRAINED:
        model, inputs = models.efficientnet_lite0(), (images - MEAN) / STD
    else:
        inputs = data.normalise(images)
        random = {"classes": classes, "bias": False}
        model = built(network, private, seed, device, **random) if classes else made(network, dataset, seed)
    model = model.to(device)
    features, scores = head_inputs(model, inputs.to(device), chunk=50)
    (*_, head) = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    return Seen(features, scores.softmax(dim=1), None if classes else labels.to(device)), head


def _attacked(
    run: Seen, head: nn.Linear, chosen: Tensor, labels: Tensor, exactly: bool
) -> dict[str, tuple[Tensor, str, float]]:
    """Return the features that every attack finds, in no order, what it says of them, and its seconds."""
    gradient, size = run.gradient(chosen, labels), len(chosen)
    errors = (run.predicted[chosen] - F.one_hot(labels, run.predicted.shape[1])).mean(dim=0)
    found = {}
    started = time.perf_counter()
    constant = torch.linalg.svd(gradient.double(), full_matrices=False)[2][:1]
    found[CONSTANT] = (constant * constant.sum().sign()).expand(size, -1), "found", time.perf_counter() - started
    started = time.perf_counter()
    unmixed = unmix_features(gradient, size)
    found[PARTY] = unmixed, "found", time.perf_counter() - started
    if exactly:
        started = time.perf_counter()
        bias = (None, None) if head.bias is None else (head.bias.detach(), errors)
        weight = head.weight.detach()
        batch = recover_batch(gradient, weight, batch_size=size, prior="onehot", bias=bias[0], bias_gradient=bias[1])
        found[EXACT] = batch.features, batch.status, time.perf_counter() - started
    return found


def judged(found: Tensor, truth: Tensor) -> dict[str, Any]:
    """Return the cosines of the features (B, I) with what was found, in the order that fits best.

    A feature for which nothing is found has the cosine 0.
    """
    own, theirs = (F.normalize(side.double().cpu().nan_to_num(0), dim=1) for side in (found, truth))
    cosines = theirs @ own.T
    rows, columns = linear_sum_assignment(-cosines.numpy())
    best = torch.zeros(len(truth), dtype=torch.float64)
    best[torch.as_tensor(rows)] = cosines[rows, columns]
    return {
        "cosine": float(best.mean()),
        "least": float(best.min()),
        "near": 100 * float((best >= NEAR).double().mean()),
    }


def _titled(network: object, classes: object) -> str:
    return f"{network}, untrained, C = {classes}" if classes else f"{network}, trained"


def table(record: Record) -> pd.DataFrame:
    """Return how near every attack comes to the features, a line a network and batch size."""
    lines = []
    for (_, network, classes, size), group in record.frame().groupby([*CELL, "size"], sort=False):
        own = {str(attack): part for attack, part in group.groupby("attack")}
        party, exact = own[PARTY], own.get(EXACT)
        lines.append(
            {"network": _titled(network, classes), "B": f"{size:.0f}"}
            | {CONSTANT: f"{own[CONSTANT]['cosine'].mean():.3f}"}
            | {PARTY: f"{party['cosine'].mean():.3f} ± {party['cosine'].std(ddof=0):.3f}"}
            | {f"≥ {NEAR}": f"{party['near'].mean():.0f} %", "s": f"{party['seconds'].median():.2g}"}
            | {EXACT: "–" if exact is None else f"{exact['cosine'].mean():.4f}"}
            | {"unique": "–" if exact is None else f"{100 * (exact['status'] == 'unique').mean():.0f} %"}
            | {"s, exact": "–" if exact is None else f"{exact['seconds'].median():.2g}", "n": f"{len(party)}"}
        )
    return pd.DataFrame(lines)


def figure_cosines(record: Record) -> Figure:
    """Draw the mean cosine against the batch size, a panel a network and a line an attack."""
    groups = list(record.frame().groupby(CELL, sort=False))
    figure, axes = figures.grid(len(groups), 2, height=2.5, sharey=True)
    for axis, ((_, network, classes), group) in zip(axes, groups, strict=True):
        for number, attack in enumerate((EXACT, PARTY, CONSTANT)):
            own = group[group["attack"] == attack].groupby("size")["cosine"]
            colour = "0.6" if attack == CONSTANT else figures.COLOURS[number]
            axis.plot(
                own.mean(), color=colour, linestyle=figures.DASHES[number], marker="o", markersize=4, label=attack
            )
            axis.fill_between(own.min().index, own.min(), own.max(), color=colour, alpha=0.15, linewidth=0)
        sizes = sorted(group["size"].unique())
        axis.set_xscale("log", base=2)
        axis.set(xticks=sizes, xlabel="batch size", ylim=(0, 1.03))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_title(_titled(network, classes), fontsize=10)
    axes[0].set_ylabel("cosine")
    figures.legend_below(figure, 3)
    return figure
