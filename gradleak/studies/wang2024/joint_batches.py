"""Batches of up to C − 2 samples, all at once

Beyond wang2024, section 3: where too few equations are left to look for samples one by one, look for all together.
"""

from __future__ import annotations

import math
import time
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Tensor

from gradleak import data, metrics, studies
from gradleak.errors import InputError
from gradleak.labels import recover_jointly
from gradleak.labels.verdict import KNOWN
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import Row
from gradleak.studies.shared.samples import DTYPES, inputs_of, soft_labels

PLACE = "Beyond section 3"
SMALLEST: dict[str, Any] = {"cells": ["8/5/distinct/told", "8/6/distinct/told"], "networks": [], "batches": 2}
FEATURES = 256
NEAR_FEATURE = 1e-2
# Starts cost with the fifth power of the batch size; so fewer are taken for batches of more than so many samples.
LARGEST, FEWEST = 8, 4
# And so few batches of more than so many samples: minutes each.
MANY, FEW = 40, 3
# What the classes of a cell's samples are, in the table's words.
KINDS = {"repeated": "repeated", "mixed": "mixed, two each"}


class Cell(Form):
    """Random layers, and batches of them whose classes are told or not; mixed labels have two each, which are told."""

    classes: Whole = Field(ge=4)
    size: Whole = Field(ge=1)
    drawn: Literal["distinct", "repeated", "mixed"]
    known: Literal["told", "untold"]

    def check(self) -> None:
        """Say so where pairs of classes are not told."""
        if self.drawn == "mixed" and self.known == "untold":
            raise InputError("samples with mixed labels are found together where the two classes of each are told")


class Network(Row):
    """A network on its private images, and the size of its batches."""

    size: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    cells: list[Cell] = Field(
        ["10/6/distinct/told", "10/8/distinct/told"],
        validate_default=True,
        description="random layers, as classes C/batch size B/distinct, repeated or mixed/told or untold",
    )
    networks: list[Network] = Field(
        ["photos/lenet/untrained/6"],
        validate_default=True,
        description="networks, as dataset/network/stage/batch size; their classes are told",
    )
    batches: int = Field(2, ge=1, le=10_000, description="batches a cell")
    starts: int = Field(
        32,
        ge=1,
        le=100_000,
        description="random starts a batch; fewer for more than eight samples",
    )

    paper: ClassVar[dict[str, Any]] = {
        "cells": [
            *(f"10/{size}/distinct/told" for size in (2, 4, 5, 6, 7, 8)),
            *(f"10/{size}/repeated/told" for size in (4, 6, 7)),
            *(f"10/{size}/{drawn}/untold" for size in (4, 5, 6, 7) for drawn in ("distinct", "repeated")),
            *(f"20/{size}/distinct/told" for size in (9, 14, 17)),
            "20/14/repeated/told",
            "50/30/distinct/told",
            "50/36/distinct/told",
            "50/44/distinct/told",
            "100/50/distinct/told",
            "100/60/distinct/told",
            *(f"10/{size}/mixed/told" for size in (4, 6, 7)),
            "20/14/mixed/told",
            "5/3/distinct/told",
            "6/4/distinct/told",
        ],
        "networks": [
            *(f"cifar10/lenet/untrained/{size}" for size in (4, 6, 7)),
            *(f"cifar10/resnet18/untrained/{size}" for size in (4, 6, 7)),
            "cifar10/lenet/trained/6",
        ],
        "batches": 10,
        "starts": 200,
    }

    def sees(self) -> list[Sees]:
        """Return the networks, and the images that they are shown."""
        return [one.sees for one in self.networks]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    fewer = any(cell.size > MANY for cell in parameters.cells) and parameters.batches > FEW
    few = f"{FEW} of more than {MANY} samples, " if fewer else ""
    return f"{parameters.batches} batches a cell, {few}{parameters.starts} starts each"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    trained = [one.training for one in parameters.networks if one.stage == "trained"]
    return list(dict.fromkeys([*(one.dataset for one in parameters.networks), *trained]))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a cell in a precision each, or a network."""
    common: dict[str, Any] = {"starts": parameters.starts, "seed": parameters.seed}
    common["device"] = studies.resolve_device(parameters.device)

    def batches(size: int) -> dict[str, int]:
        return {"batches": parameters.batches if size <= MANY else min(parameters.batches, FEW)}

    made = [
        {"cell": str(cell), "dtype": dtype} | common | batches(cell.size)
        for cell in parameters.cells
        for dtype in DTYPES
    ]
    return made + [{"cell": str(one), "dtype": "float32"} | common | batches(one.size) for one in parameters.networks]


def trial(cell: str, dtype: str, batches: int, starts: int, seed: int, device: str) -> list[dict[str, Any]]:
    """Take averaged gradients of one kind apart; a row a batch."""
    rows = []
    parts = cell.split("/")
    layer = None if parts[0].isdigit() else Network.of(cell)
    sent = _networks(layer, batches, seed, device) if layer else _layers(Cell.of(cell), dtype, batches, seed, device)
    told = layer is not None or parts[-1] == "told"
    mixed = "mixed" in parts
    for gradient, weight, hidden, targets in sent:
        size = len(hidden)
        named = targets.topk(2, dim=1).indices if mixed else targets.argmax(dim=1)
        started = time.perf_counter()
        tried = max(FEWEST, round(starts * min(1.0, (LARGEST / size) ** 3)))
        found = recover_jointly(
            gradient,
            weight,
            classes=named if told else None,
            batch_size=None if told else size,
            prior="mixup" if mixed else "smoothing",
            starts=tried,
            seed=seed,
        )
        row: dict[str, Any] = {"classes": len(weight), "size": size, "seconds": time.perf_counter() - started}
        row |= {
            "starts": tried,
            "told": told,
            "source": "/".join(parts[:3]) if layer else "random layer",
            "status": found.status,
        }
        right = False
        if found.status != "failed":
            order = metrics.match_batch(found.features.cpu(), hidden.cpu().double())
            label = metrics.label_error(found.labels.cpu()[order], targets.cpu().double())
            feature = (found.features.cpu()[order] - hidden.cpu()).norm(dim=1) / hidden.cpu().norm(dim=1)
            row |= {"label_error": float(label.max()), "feature_error": float(feature.max())}
            right = float(label.max()) < KNOWN and float(feature.max()) < NEAR_FEATURE
        rows.append(row | {"right": right, "wrong": found.status == "found" and not right})
    return rows


Sent = list[tuple[Tensor, Tensor, Tensor, Tensor]]


def _layers(cell: Cell, dtype: str, batches: int, seed: int, device: str) -> Sent:
    """Return gradients, weights, features and smoothed or mixed labels of random layers behind a ReLU."""
    sent = []
    for number in range(batches):
        generator = torch.Generator().manual_seed(seed + number)
        weight = torch.randn(cell.classes, FEATURES, generator=generator, dtype=torch.float64) / math.sqrt(FEATURES)
        hidden = torch.randn(cell.size, FEATURES, generator=generator, dtype=torch.float64).relu()
        hidden = hidden / (hidden @ weight.T).std()
        kind = "mixup" if cell.drawn == "mixed" else "smoothing"
        targets = soft_labels(kind, _classes(cell, generator), cell.classes, generator)
        weight, hidden, targets = (value.to(device, DTYPES[dtype]) for value in (weight, hidden, targets))
        errors = (hidden @ weight.T).softmax(dim=1) - targets
        sent.append((errors.T @ hidden / cell.size, weight, hidden, targets))
    return sent


def _classes(cell: Cell, generator: torch.Generator) -> Tensor:
    if cell.drawn != "repeated":
        return torch.randperm(cell.classes, generator=generator)[: cell.size]
    few = torch.randperm(cell.classes, generator=generator)[: max(1, cell.size // 2)]
    return few[torch.randint(len(few), (cell.size,), generator=generator)]


def _networks(one: Network, batches: int, seed: int, device: str) -> Sent:
    """Return the same of a network and private images with their own classes, smoothed."""
    private = data.load(one.dataset, "test")
    model, _ = attacked_networks.network(one, "smoothing", private, seed, device)
    model = model.to(device)
    sent = []
    for number in range(batches):
        generator = torch.Generator().manual_seed(seed + number)
        chosen = torch.randperm(len(private), generator=generator)[: one.size]
        inputs = data.normalise(private.images[chosen]).to(device)
        targets = soft_labels("smoothing", private.labels[chosen], private.classes, generator).to(inputs)
        leaks = observe_heads(model, inputs, targets, batch_size=one.size)
        (hidden,) = inputs_of([model.get_submodule("head")], model, inputs)
        sent.append((leaks.weight_gradients[0], leaks.weight, hidden, targets))
    return sent


def table(record: Record) -> pd.DataFrame:
    """Return what becomes of each kind of batch, and how many equations it has to spare."""
    lines = []
    names = ["source", "classes", "size", "told", "dtype", "drawn"]
    frame = record.frame()
    frame = frame.assign(drawn=[KINDS.get(cell.split("/")[2], "distinct") for cell in frame["cell"]])
    for key, group in frame.groupby(names, sort=False):
        source, classes, size = str(key[0]), int(str(key[1])), int(str(key[2]))
        told, dtype, drawn = key[3:]
        random = source == "random layer"
        lines.append(
            {"gradient of": source.replace("/", ", "), "C": classes, "B": size}
            | {"classes": f"{drawn if random else 'their own'}, {'told' if told else 'not told'}", "precision": dtype}
            | {"equations to spare": (classes - 1) * size - size * (size + 1), "n": len(group)}
            | {"found and right": f"{100 * (group['right'] & group['status'].eq('found')).mean():.0f} %"}
            | {"ambiguous": f"{100 * group['status'].eq('ambiguous').mean():.0f} %"}
            | {"failed": f"{100 * group['status'].eq('failed').mean():.0f} %"}
            | {"found and wrong": int(group["wrong"].sum()), "s": f"{group['seconds'].astype(float).median():.2g}"}
        )
    return pd.DataFrame(lines)


def figure_sizes(record: Record) -> Figure:
    """Draw the share of batches found against their size, random layers, and where either search ends."""
    frame = record.frame()
    frame = frame[(frame["source"] == "random layer") & frame["cell"].str.contains("distinct")]
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    many = frame["classes"].value_counts().index[0]
    frame = frame[frame["classes"] == many]
    for index, ((told, dtype), own) in enumerate(frame.groupby(["told", "dtype"], sort=False)):
        share = own.assign(good=100 * (own["right"] & own["status"].eq("found"))).groupby("size")["good"].mean()
        axis.plot(
            share.index, share, "-" if told else "--", marker="osD^"[index % 4], markersize=7 - 2 * (index % 2),
            linewidth=3.5 - 2 * (index % 2), color=figures.COLOURS[index],
            label=f"{dtype}, classes {'told' if told else 'not told'}",
        )  # fmt: skip
    for place, word in (((many - 2) / 2, " one by one"), (many - 2, " together")):
        axis.axvline(place, color="0.4", linestyle=figures.DASHES[1], linewidth=1.1)
        axis.text(place, 106, word, ha="left", fontsize=9)
    axis.set(xlabel=f"batch size B, C = {many}", ylabel="found and right, %", ylim=(-4, 114), xlim=(1.5, many - 0.5))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figures.legend_below(figure, 4)
    return figure
