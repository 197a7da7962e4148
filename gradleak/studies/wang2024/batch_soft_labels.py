"""Soft labels of a whole batch

Beyond wang2024, section 3: labels and features of every sample, out of one averaged gradient, with a certificate.
"""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import data, defenses, metrics, studies
from gradleak.labels import BatchLabels, recover_batch
from gradleak.labels.soft.explanations import KNOWN_FEATURE
from gradleak.labels.verdict import KNOWN
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import Row, built
from gradleak.studies.shared.samples import DTYPES, inputs_of, soft_labels

PLACE = "Beyond section 3"
SMALLEST: dict[str, Any] = {}
# A batch counts as found if every label is this near in L1, and every feature relative to its length.
NEAR_LABEL, NEAR_FEATURE = 2e-4, 1e-3


class Cell(Form):
    """An untrained network and its batches."""

    network: str
    classes: Whole = Field(ge=2)
    size: Whole = Field(ge=1)
    drawn: Literal["distinct", "repeated"]
    labels: Literal["smoothing", "mixup", "onehot"]


class Trained(Form):
    """A trained network on its private images, and the size of its batches."""

    dataset: str
    network: str
    size: Whole = Field(ge=1)

    @property
    def row(self) -> Row:
        """The network."""
        return Row.of(f"{self.dataset}/{self.network}/trained")

    def check(self) -> None:
        """Say so where there is no recipe for it."""
        self.row.check()


class Parameters(studies.Parameters):
    """What a rerun may change."""

    batches: int = Field(1, ge=1, le=10_000, description="batches a cell")
    cells: list[Cell] = Field(
        ["resnet18/20/4/distinct/smoothing", "lenet/20/4/repeated/onehot"],
        validate_default=True,
        description="untrained networks, as network/classes C/batch size B/distinct or repeated classes/labels",
    )
    trained: list[Trained] = Field([], description="trained ones, as dataset/network/batch size")
    precisions: list[str] = Field(["float32"], description="what gradients are computed in")
    noises: list[float] = Field([1e-6], description="noise added to the first cell's gradients")
    dataset: str = Field("photos", description="private images, test split")

    paper: ClassVar[dict[str, Any]] = {
        "batches": 50,
        "cells": [
            *(f"resnet18/100/{size}/distinct/smoothing" for size in (2, 4, 8, 16, 24, 32, 40, 44, 48)),
            *(f"lenet/100/{size}/distinct/smoothing" for size in (2, 4, 8, 16, 24, 32)),
            *(f"{network}/100/16/repeated/smoothing" for network in ("resnet18", "lenet")),
            "resnet18/1000/32/distinct/smoothing",
            "resnet18/1000/32/repeated/smoothing",
            *(f"resnet18/100/16/repeated/{labels}" for labels in ("onehot", "mixup")),
        ],
        "trained": ["cifar10/lenet/2", "cifar10/lenet/3", "cifar10/resnet20/2", "cifar10/resnet20/3"],
        "precisions": list(DTYPES),
        "noises": [1e-8, 1e-7, 1e-6, 1e-5, 1e-4],
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they are shown."""
        return [*(Sees(cell.network, self.dataset) for cell in self.cells), *(one.row.sees for one in self.trained)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return f"{parameters.batches} batches a cell, {data.title(parameters.dataset)}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    own = [name for one in parameters.trained for name in (one.dataset, one.row.training)]
    return list(dict.fromkeys([parameters.dataset, *own]))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a cell in one precision each."""
    device = studies.resolve_device(parameters.device)
    common = {"batches": parameters.batches, "seed": parameters.seed, "device": device, "noise": 0.0}
    cells = [
        {"network": cell.network, "classes": cell.classes, "size": cell.size, "repeated": cell.drawn == "repeated"}
        | {"labels": cell.labels, "stage": "untrained", "dataset": parameters.dataset}
        for cell in parameters.cells
    ]
    cells += [
        {"network": one.network, "classes": 0, "size": one.size, "repeated": False}
        | {"labels": "smoothing", "stage": "trained", "dataset": one.dataset}
        for one in parameters.trained
    ]
    clean = [cell | {"dtype": dtype} | common for cell in cells for dtype in parameters.precisions]
    noisy = [clean[0] | {"noise": noise} for noise in parameters.noises]
    return clean + noisy


def trial(
    *,
    network: str,
    classes: int,
    size: int,
    repeated: bool,
    labels: str,
    stage: str,
    dataset: str,
    dtype: str,
    noise: float,
    batches: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Recover the labels of all batches of a cell; one row a batch."""
    private = data.load(dataset, "test")
    if stage == "trained":
        row = Row.of(f"{dataset}/{network}/trained")
        model, classes = attacked_networks.network(row, labels, private, seed, device)[0], private.classes
    else:
        model = built(network, private, seed, device, classes=classes, bias=False)
    model = model.to(device, DTYPES[dtype])
    own = stage == "trained"
    return [
        {"batch": n} | row
        for n in range(batches)
        for row in _batch(model, private, n + seed, size, repeated, labels, classes, own, dtype, noise, device)
    ]


def _batch(
    model: nn.Module,
    private: data.Dataset,
    seed: int,
    size: int,
    repeated: bool,
    labels: str,
    classes: int,
    own: bool,
    dtype: str,
    noise: float,
    device: str,
) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(private), generator=generator)[:size]
    inputs = data.normalise(private.images[chosen]).to(device, DTYPES[dtype])
    # Untrained networks know nothing of their classes, so images are given any.
    targets = draw(labels, classes, size, repeated, private.labels[chosen] if own else None, generator)
    targets = targets.to(device, DTYPES[dtype])
    leaks = observe_heads(model, inputs, targets)
    gradient, utility = leaks.weight_gradients.mean(dim=0), 1.0
    if noise:
        disturb = defenses.gaussian(noise, generator)
        clean, gradient = gradient, disturb({"head": gradient})["head"]
        utility = defenses.utility({"head": clean}, {"head": gradient})
    (hidden,) = inputs_of([model.get_submodule("head")], model, inputs)
    rows = []
    for attacker, known in (("unaware", 0.0), ("aware", noise)) if noise else (("unaware", 0.0),):
        started = time.perf_counter()
        found = recover_batch(gradient, leaks.weight, batch_size=size, prior=labels, noise=known, seed=seed)
        row = {"attacker": attacker, "seconds": time.perf_counter() - started, "utility": utility}
        rows.append(row | judge(found, hidden, targets))
    return rows


def draw(
    labels: str, classes: int, size: int, repeated: bool, own: Tensor | None, generator: torch.Generator
) -> Tensor:
    """Return a batch's labels (B, C): of classes all different, or of half as many as samples, or of their `own`."""
    if own is not None:
        first = own
    elif repeated:
        few = torch.randperm(classes, generator=generator)[: max(1, size // 2)]
        first = few[torch.randint(len(few), (size,), generator=generator)]
    else:
        first = torch.randperm(classes, generator=generator)[:size]
    return soft_labels(labels, first, classes, generator)


def judge(found: BatchLabels, hidden: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return whether a batch was found, how exactly, and whether what was called unique is wrong."""
    hidden, targets = hidden.double(), targets.double()
    complete = bool(found.found.all())
    row: dict[str, Any] = {"status": found.status, "found": int(found.found.sum())}
    if complete:
        order = metrics.match_batch(found.features, hidden)
        label = metrics.label_error(found.labels[order], targets)
        feature = (found.features[order] - hidden).norm(dim=1) / hidden.norm(dim=1)
        claimed = found.open[order]
        row |= {
            "label_error": float(label.max()),
            "feature_error": float(feature.max()),
            "claimed": float(claimed.max()),
            "residual": found.residual,
        }
        right = float(label.max()) < NEAR_LABEL and float(feature.max()) < NEAR_FEATURE
    else:
        right = False
    wrong = complete and (row["label_error"] > KNOWN or row["feature_error"] > KNOWN_FEATURE)
    return row | {
        "whole": right and found.status == "unique",
        "silent": found.status == "unique" and wrong,
        "flagged": found.status != "unique",
    }


def _cells(record: Record) -> pd.DataFrame:
    frame = record.frame()
    names = ["stage", "dataset", "network", "classes", "size", "repeated", "labels", "dtype"]
    lines = []
    for key, group in frame[frame["noise"] == 0].groupby(names, sort=False):
        known = group[group["whole"]]
        lines.append(
            dict(zip(names, key, strict=True))
            | {
                "n": len(group),
                "whole": 100 * group["whole"].mean(),
                "silent": int(group["silent"].sum()),
                "flagged": 100 * group["flagged"].mean(),
                "label": known["label_error"].max() if len(known) else math.nan,
                "feature": known["feature_error"].max() if len(known) else math.nan,
                "residual": known["residual"].max() if len(known) else math.nan,
                "seconds": group["seconds"].median(),
            }
        )
    return pd.DataFrame(lines)


def table(record: Record) -> pd.DataFrame:
    """Return every cell, a line a cell, both precisions side by side."""
    cells = _cells(record)
    cells["drawn"] = [
        "their own" if stage == "trained" else "repeated" if repeated else "distinct"
        for stage, repeated in zip(cells["stage"], cells["repeated"], strict=True)
    ]
    keys = ["stage", "network", "classes", "size", "labels", "drawn", "n"]
    lines = []
    for (stage, network, classes, size, labels, drawn, n), group in cells.groupby(keys, sort=False):
        line: dict[str, Any] = {
            "network": network if stage == "untrained" else f"trained {network}",
            "C": str(classes) if classes else "own",
            "B": size,
            "labels": f"{labels}, {drawn}",
            "n": n,
        }
        for own in group.to_dict("records"):
            line |= {f"whole, {own['dtype']}": f"{own['whole']:.0f} %", f"L1, {own['dtype']}": _number(own["label"])}
        lines.append(line | {"silently wrong": group["silent"].sum(), "s": f"{group['seconds'].median():.2g}"})
    return pd.DataFrame(lines)


def _number(value: Any) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:.0e}"


def noise_table(record: Record) -> pd.DataFrame:
    """Return what noise on the gradient leaves of the first cell."""
    frame = record.frame()
    lines = []
    for noise, group in frame[frame["noise"] > 0].groupby("noise"):
        own = dict(list(group.groupby("attacker")))
        errors = own["aware"]["label_error"].dropna()
        lines.append(
            {
                "standard deviation": f"{noise:g}",
                "cosine": f"{group['utility'].mean():.6f}",
                "n": len(own["aware"]),
                "unaware: refused": f"{100 * own['unaware']['flagged'].mean():.0f} %",
                "aware: all samples": f"{100 * len(errors) / len(own['aware']):.0f} %",
                "worst label, median": _number(errors.median() if len(errors) else None),
                "silently wrong": int(group["silent"].sum()),
            }
        )
    return pd.DataFrame(lines)


def figure_frontier(record: Record) -> Figure:
    """Draw the share of whole batches against the batch size, and where the equations run out."""
    cells = _cells(record)
    cells = cells[(cells["stage"] == "untrained") & (cells["labels"] == "smoothing") & ~cells["repeated"]]
    figure, axes = figures.panels(1, 1, height=3.7)
    axis = axes[0][0]
    for index, ((network, classes), group) in enumerate(cells.groupby(["network", "classes"], sort=False)):
        for dash, (dtype, own) in enumerate(group.groupby("dtype", sort=False)):
            own = own.sort_values("size")
            axis.plot(
                own["size"],
                own["whole"],
                color=figures.COLOURS[index % len(figures.COLOURS)],
                linestyle=figures.DASHES[dash],
                marker="os"[dash % 2],
                markersize=4,
                label=f"{network}, C = {classes}, {dtype}",
            )
    for classes in sorted(set(cells["classes"])):
        if (classes - 2) / 2 <= 1.6 * cells["size"].max():
            axis.axvline((classes - 2) / 2, color=figures.TRUTH, linewidth=1.2, linestyle=(0, (4, 2)))
            axis.text(
                (classes - 2) / 2, 12, f"B = (C − 2) / 2, C = {classes} ", ha="right", fontsize=9, color=figures.TRUTH
            )
    axis.set(xlabel="batch size B", ylabel="whole batches, %", ylim=(-4, 104), xlim=(0, None))
    figures.legend_below(figure, 3)
    return figure


def figure_certificate(record: Record) -> Figure:
    """Draw how far off each batch is against how far off it is claimed to be."""
    frame = record.frame()
    frame = frame[(frame["noise"] == 0) & frame["label_error"].notna() & (frame["labels"] != "onehot")]
    figure, axes = figures.panels(1, 2, height=3.4)
    for index, (dtype, own) in enumerate(frame.groupby("dtype", sort=False)):
        colour = figures.COLOURS[2 * index]
        unique = own["status"] == "unique"
        for mask, marker in ((unique, "o"), (~unique, "x")):
            label = f"{dtype}, {'unique' if marker == 'o' else 'flagged'}"
            claimed, error = own[mask]["claimed"].astype(float), own[mask]["label_error"].astype(float)
            if not mask.any():
                continue
            axes[0][0].plot(
                claimed.clip(upper=10), error.clip(lower=1e-17), marker, color=colour, markersize=4, label=label
            )
            residual = own[mask]["residual"].astype(float)
            axes[0][1].plot(residual, error.clip(lower=1e-17), marker, color=colour, markersize=4)
    low, high = 1e-16, 10.0
    axes[0][0].plot([low, high], [low, high], color=figures.TRUTH, linewidth=1)
    axes[0][0].set(
        xscale="log", yscale="log", xlabel="claimed label error (three deviations)", ylabel="worst label error (L1)"
    )
    axes[0][1].set(xscale="log", yscale="log", xlabel="relative error of the rebuilt gradient")
    figures.legend_below(figure, 4)
    return figure
