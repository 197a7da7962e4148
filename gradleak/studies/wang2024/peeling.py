"""A batch peeled out of a residual network

Beyond wang2024, section 4.2: every image of a batch out of one averaged gradient of a ResNet18, layer by layer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from gradleak import data, metrics, models, studies
from gradleak.images import Adam, match, peel
from gradleak.images.peeling.attack import counts_of
from gradleak.images.peeling.network import Network
from gradleak.leak import Leak, observe
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.leaks import PICTURES_STOPPED, Leaks, largest_recovered, least_stopping
from gradleak.show.summaries import Measure, among, count, mean, median, only, select, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import peeled
from gradleak.studies.shared.defended import sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.peeled import (
    FACTOR,
    OUTCOMES,
    PeeledBatch,
    batches,
    decibels,
    judged,
    layers_of,
    short,
)

PLACE = "Beyond section 4.2"
# Of an exact batch, the least PSNR in dB says how large the rounding errors are, and the ratio compares these with what
# the attack claims.
COLUMNS = {"least": kinds.rounding(decibels=True), "images_ratio": kinds.rounding(near=10.0)}
NETWORK = "resnet18-cifar"
COUNTED = (1, 2, 4, 8, 16)


class Parameters(studies.Parameters):
    """How large the batches are, how many there are, and how long is searched in front of the last layer reached."""

    sizes: list[int] = setting([1], paper=[1, 4], about="batch sizes B")
    repeats: int = setting(1, paper=10, ge=1, le=1000, about="batches a size, each with images and weights of its own")
    large: list[int] = setting([], about="further batch sizes, of one batch each")
    noises: list[float] = setting([1e-5], paper=[1e-8, 1e-6], about="noise on single gradients: its standard deviation")
    matching: int = setting(
        2, paper=200, ge=1, le=100_000, about="steps of gradient matching on one batch a size, to compare"
    )
    classes: int = setting(100, ge=4, le=10_000, about="classes C of the network; images are given any")
    side: int = setting(16, paper=32, ge=8, le=64, about="pixels a side that images are brought down to")
    steps: int = setting(
        50, paper=1200, ge=1, le=100_000, about="steps of the search in front of the last layer reached"
    )
    dataset: str = setting("photos", paper="cifar10", about="private images, test split")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees(NETWORK, self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Give the batches that are peeled, then a single image from noise, then the batches that are matched."""
        sizes = [(size, self.repeats) for size in self.sizes] + [(size, 1) for size in self.large]
        for size, repeats in sizes:
            for batch in range(repeats):
                yield Peeling.of(self, size=size, batch=batch)
        for level in self.noises:
            yield FromNoise.of(self, level=level)
        for size in self.sizes:
            yield Matching.of(self, size=size, steps=self.matching)

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        sizes = ", ".join(map(str, self.sizes))
        return f"{self.repeats} batches a size, B = {sizes}, {data.title(self.dataset)}"


class TimedBatch(PeeledBatch):
    """A peeled batch with the time that it took, and of the first batch a picture: the private and the found images."""

    seconds: float
    cpu_seconds: float
    picture: str = ""


class NoisyBatch(PeeledBatch):
    """A batch that an attacker peeled out of a gradient with noise."""

    attacker: str


class MatchedBatch(Row):
    """A batch restored by gradient matching; `what` is "batch"."""

    what: str
    cpu_seconds: float
    psnr: float
    least: float
    picture: str


class OnBatch(Experiment):
    """A batch of private images, and a network with weights of its own."""

    classes: int
    side: int
    dataset: str

    def private(self, size: int, batch: int) -> tuple[Tensor, Tensor, Leak]:
        """Return the batch's images, the network's inputs, and what the client sends."""
        private = data.load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed + batch)
        images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
        images = F.adaptive_avg_pool2d(images, self.side)
        labels = torch.randint(self.classes, (size,), generator=generator)
        model = models.build(
            NETWORK,
            classes=self.classes,
            in_channels=images.shape[1],
            image_size=self.side,
            seed=self.seed + batch,
        )
        inputs = data.normalise(images).to(self.device)
        return images, inputs, observe(model.to(self.device), inputs.float(), labels.to(self.device))


class Peeling(OnBatch):
    """One batch, peeled."""

    part: ClassVar[str] = "peeled"
    size: int
    batch: int
    steps: int

    def run(self) -> list[Row]:
        """Peel the batch; a row for it, and one for each layer that was reached."""
        images, inputs, leak = self.private(self.size, self.batch)
        started, cpu = time.perf_counter(), time.process_time()
        found = peel(leak, steps=self.steps)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        row = TimedBatch.of(judged(found, images, inputs), seconds=seconds, cpu_seconds=cpu_seconds)
        if self.batch == 0:
            restored = data.denormalise(found.images.cpu())
            restored = restored[metrics.match_batch(restored, images)]
            row = TimedBatch.of(row, picture=packed(torch.cat([images, restored]), self.size))
        return [row, *layers_of(leak.model, found, inputs)]


class FromNoise(OnBatch):
    """One image behind noise, peeled by an attacker who expects none and by one who knows of it."""

    part: ClassVar[str] = "noise"
    level: float
    steps: int

    def run(self) -> Iterator[NoisyBatch]:
        """Add the noise, and peel the image twice."""
        images, inputs, clean = self.private(1, 0)
        leak = replace(clean, gradients=sent_behind("gaussian", self.level, clean.gradients, self.seed))
        for attacker, noise in (("unaware", 0.0), ("aware", self.level)):
            found = peel(leak, noise=noise, steps=self.steps)
            yield NoisyBatch.of(judged(found, images, inputs), attacker=attacker)


class Matching(OnBatch):
    """The first batch of a size, by gradient matching."""

    part: ClassVar[str] = "matched"
    size: int
    steps: int

    def run(self) -> list[MatchedBatch]:
        """Match the batch's gradient."""
        images, _, leak = self.private(self.size, 0)
        cpu = time.process_time()
        found = match(leak, distance="cosine", optimizer=Adam(steps=self.steps, signed=True), seed=self.seed)
        seconds = time.process_time() - cpu
        restored = data.denormalise(found.images.cpu().double())
        restored = restored[metrics.match_batch(restored, images)]
        psnr = metrics.psnr(restored, images)
        return [
            MatchedBatch(
                what="batch",
                cpu_seconds=seconds,
                psnr=float(psnr.mean()),
                least=float(psnr.min()),
                picture=packed(restored, self.size),
            )
        ]


def table(record: Record) -> pd.DataFrame:
    """Return the batches by their size, matching beside them."""
    rows = pd.concat([batches(record.rows(Peeling)), record.rows(Matching)]).astype({"size": int})
    measures = {"n": count()} | OUTCOMES | {"CPU s": median("cpu_seconds", ".0f")}
    own = {head: among(measure, part=Peeling.part) for head, measure in measures.items()}
    rival = {
        "matching": among(mean("psnr", decibels), part=Matching.part),
        "its CPU s": among(mean("cpu_seconds", ".0f"), part=Matching.part),
    }
    return summary(rows.sort_values("size", kind="stable"), {"B": "size"}, own | rival)


def layer_table(record: Record) -> pd.DataFrame:
    """Return each layer by batch size: in how many batches its inputs were had, claimed and true errors."""
    return peeled.layer_table(record.rows(Peeling).astype({"size": int}), B="size")


def noise_table(record: Record) -> pd.DataFrame:
    """Return how deep a single sample is peeled out of a gradient with noise."""

    def told(attacker: str) -> dict[str, Measure]:
        return {
            f"{attacker} says": among(only("status"), attacker=attacker),
            f"layers, {attacker}": among(only("layers", ".0f"), attacker=attacker),
            f"PSNR, {attacker}": among(only("least", decibels), attacker=attacker),
        }

    rows = record.rows(FromNoise).sort_values("level", kind="stable")
    lines = summary(rows, {"noise": "level"}, told("unaware") | told("aware"))
    return lines.assign(noise=[f"{float(level):.0e}" for level in lines["noise"]])


def counts_table() -> pd.DataFrame:
    """Return where each network's count ends the way down, a line for each batch size from which it is elsewhere."""
    lines, side = [], 32
    for name, label in (
        ("resnet18-cifar", "ResNet18, CIFAR form"),
        ("resnet18", "ResNet18, 7×7 stem"),
        ("resnet20", "ResNet20"),
        ("resnet50-cifar", "ResNet50, CIFAR form"),
    ):
        model, before = models.build(name, classes=100, image_size=side).to("meta"), ""
        network = Network(model, (3, side, side))
        for size in COUNTED:
            stops = next(count for count in counts_of(network, size) if count.reason)
            if stops.name != before:
                where = short(stops.name)
                lines.append({"network": label, "from B": f"{size}", "gives up at": where, "because": stops.reason})
            before = stops.name
    return pd.DataFrame(lines)


def figure_batch(record: Record) -> Figure:
    """Draw the first batch of the largest repeated size: private, peeled, and matched."""
    size = record.rows(Matching)["size"].max()
    pictures = [select(record.rows(kind), size=size)["picture"].dropna().iloc[0] for kind in (Peeling, Matching)]
    figure, axes = figures.panels(1, 1, height=3.4)
    show(axes[0][0], pictures, ["private", "peeled", "matching"])
    return figure


def figure_layers(record: Record) -> Figure:
    """Draw claimed against true errors of every layer's inputs, all batches."""
    frame = select(record.rows(Peeling), what="layer", reason="")
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    for index, (size, group) in enumerate(frame.groupby("size")):
        axis.scatter(group["off"], group["claimed"], s=12, color=figures.COLOURS[index], label=f"B = {size:.0f}")
    ends = [frame[["off", "claimed"]].min().min() / 3, frame[["off", "claimed"]].max().max() * 3]
    axis.plot(ends, ends, color=figures.TRUTH, linewidth=1.2)
    for factor in (FACTOR, 1 / FACTOR):
        axis.plot(ends, [end * factor for end in ends], color=figures.TRUTH, linewidth=0.8, linestyle=(0, (4, 2)))
    axis.set(
        xscale="log", yscale="log", xlabel="true error of a layer's inputs", ylabel="claimed", xlim=ends, ylim=ends
    )
    figures.legend_below(figure, 3)
    return figure


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    rows = record.rows(Peeling)
    peeled = rows[rows["what"] == "batch"]
    size, _ = largest_recovered(peeled.assign(back=peeled["back"].astype(float)), "back", 1.0)
    shown = peeled[peeled["size"] == size]
    noisy = record.rows(FromNoise).assign(defense="gaussian")
    return Leaks(
        "all images, layer by layer",
        f"batch of {size}; ResNet18, untrained",
        f"all {size} images, {shown['psnr'].median():.0f} dB (median of {len(shown)} batches)",
        shown["cpu_seconds"].median(),
        least_stopping(noisy.assign(success=noisy["least"]), PICTURES_STOPPED),
    )
