"""Batches of up to C − 2 samples, all at once

Beyond wang2024, section 3: where too few equations are left to look for samples one by one, look for all together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import product
from typing import Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Tensor

from gradleak import data, metrics, studies
from gradleak.errors import InputError
from gradleak.labels import BatchLabels, recover_jointly
from gradleak.labels.verdict import KNOWN
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import count, mean, median, percent, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import AttackedNetwork
from gradleak.studies.shared.samples import DTYPES, inputs_of, soft_labels

PLACE = "Beyond section 3"
FEATURES = 256
NEAR_FEATURE = 1e-2
# A start's time grows with the fifth power of the batch size: batches of more than LARGEST samples get fewer starts.
LARGEST, FEWEST = 8, 4
# A batch of more than MANY samples takes minutes: no more than FEW of them are tried.
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


class Network(AttackedNetwork):
    """A network on its private images, and the size of its batches."""

    size: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """Which random layers and networks send batches, how many, and how many random starts each batch gets."""

    cells: list[Cell] = setting(
        ["10/6/distinct/told", "10/8/distinct/told"],
        paper=[
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
        smallest=["8/5/distinct/told", "8/6/distinct/told"],
        validate_default=True,
        about="random layers, as classes C/batch size B/distinct, repeated or mixed/told or untold",
    )
    networks: list[Network] = setting(
        ["photos/lenet/untrained/6"],
        paper=[
            *(f"cifar10/lenet/untrained/{size}" for size in (4, 6, 7)),
            *(f"cifar10/resnet18/untrained/{size}" for size in (4, 6, 7)),
            "cifar10/lenet/trained/6",
        ],
        smallest=[],
        validate_default=True,
        about="networks, as dataset/network/stage/batch size; their classes are told",
    )
    batches: int = setting(2, paper=10, ge=1, le=10_000, about="batches a cell")
    starts: int = setting(
        32, paper=200, ge=1, le=100_000, about="random starts a batch; fewer for more than eight samples"
    )

    def sees(self) -> list[Sees]:
        """Return the networks, and the images that they are shown."""
        return [one.sees for one in self.networks]

    def experiments(self) -> Iterator[Experiment]:
        """Give the random layers in every precision, then the networks."""
        for cell, dtype in product(self.cells, DTYPES):
            yield JointBatches.of(self, cell=str(cell), dtype=dtype, batches=self._batches(cell.size))
        for one in self.networks:
            yield JointBatches.of(self, cell=str(one), dtype="float32", batches=self._batches(one.size))

    def _batches(self, size: int) -> int:
        return self.batches if size <= MANY else min(self.batches, FEW)

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        fewer = any(cell.size > MANY for cell in self.cells) and self.batches > FEW
        few = f"{FEW} of more than {MANY} samples, " if fewer else ""
        return f"{self.batches} batches a cell, {few}{self.starts} starts each"


class AttackedBatch(Row):
    """A batch that was searched for all at once; `right`: all samples are; `wrong`: it is called found, and is not."""

    classes: int
    size: int
    seconds: float
    starts: int
    told: bool
    source: str
    status: str
    label_error: float = math.nan
    feature_error: float = math.nan
    right: bool
    wrong: bool


class JointBatches(Experiment):
    """Batches of one kind, whose samples are searched for all at once.

    `cell`: a random layer and its batches, or a network and its batch size, as the parameters name them.
    """

    cell: str
    dtype: str
    batches: int
    starts: int

    @property
    def _network(self) -> Network | None:
        return None if self.cell.partition("/")[0].isdigit() else Network.of(self.cell)

    def reads(self) -> list[str]:
        """Return the datasets that a network is shown and was trained on."""
        one = self._network
        return [] if one is None else [one.dataset, *([one.training] if one.stage == "trained" else [])]

    def run(self) -> Iterator[AttackedBatch]:
        """Recover every batch from its averaged gradient."""
        network, parts = self._network, self.cell.split("/")
        if network:
            sent = _networks(network, self.batches, self.seed, self.device)
        else:
            sent = _layers(Cell.of(self.cell), self.dtype, self.batches, self.seed, self.device)
        told, mixed = network is not None or parts[-1] == "told", "mixed" in parts
        source = "/".join(parts[:3]) if network else "random layer"
        for gradient, weight, hidden, targets in sent:
            size = len(hidden)
            named = targets.topk(2, dim=1).indices if mixed else targets.argmax(dim=1)
            started = time.perf_counter()
            tried = max(FEWEST, round(self.starts * min(1.0, (LARGEST / size) ** 3)))
            found = recover_jointly(
                gradient,
                weight,
                classes=named if told else None,
                batch_size=None if told else size,
                prior="mixup" if mixed else "smoothing",
                starts=tried,
                seed=self.seed,
            )
            seconds, errors, right = time.perf_counter() - started, {}, False
            if found.status != "failed":
                label, feature = _errors(found, hidden, targets)
                errors = {"label_error": label, "feature_error": feature}
                right = label < KNOWN and feature < NEAR_FEATURE
            yield AttackedBatch(
                classes=len(weight),
                size=size,
                seconds=seconds,
                starts=tried,
                told=told,
                source=source,
                status=found.status,
                right=right,
                wrong=found.status == "found" and not right,
                **errors,
            )


def _errors(found: BatchLabels, hidden: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the largest L1 error of a label and the largest relative error of a feature, in the best order."""
    order = metrics.match_batch(found.features.cpu(), hidden.cpu().double())
    label = metrics.label_error(found.labels.cpu()[order], targets.cpu().double())
    feature = (found.features.cpu()[order] - hidden.cpu()).norm(dim=1) / hidden.cpu().norm(dim=1)
    return float(label.max()), float(feature.max())


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
    rows = record.rows(JointBatches)
    random = rows["source"] == "random layer"
    drawn = rows["cell"].map(lambda cell: KINDS.get(cell.split("/")[2], "distinct")).where(random, "their own")
    rows = rows.assign(
        source=rows["source"].str.replace("/", ", "),
        drawn=drawn + rows["told"].map({True: ", told", False: ", not told"}),
        spare=(rows["classes"] - 1) * rows["size"] - rows["size"] * (rows["size"] + 1),
        found=100.0 * (rows["right"] & rows["status"].eq("found")),
        ambiguous=100.0 * rows["status"].eq("ambiguous"),
        failed=100.0 * rows["status"].eq("failed"),
    )
    keys = {"gradient of": "source", "C": "classes", "B": "size", "classes": "drawn", "precision": "dtype"}
    return summary(
        rows,
        keys | {"equations to spare": "spare"},
        {
            "n": count(),
            "found and right": mean("found", percent()),
            "ambiguous": mean("ambiguous", percent()),
            "failed": mean("failed", percent()),
            "found and wrong": total("wrong", ".0f"),
            "s": median("seconds", ".2g"),
        },
    )


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
