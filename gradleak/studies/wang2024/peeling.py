"""Peeling: a batch restored from a residual network, layer by layer

Beyond wang2024, section 4.2: restore every image of a batch from one averaged ResNet18 gradient, layer by layer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from gradleak import claims, data, metrics, models, studies
from gradleak.images import Adam, match, peel
from gradleak.images.peeling.attack import counts_of
from gradleak.images.peeling.network import Network
from gradleak.leak import Leak, observe
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import Measure, among, count, mean, median, only, select, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import peeled
from gradleak.studies.shared.defended import sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, Outcome, collected, median_of, network_in_words
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
# In an exactly restored batch, the lowest PSNR (dB) measures only rounding errors, and the ratio compares them with the
# errors that the attack claims.
COLUMNS = {"least": kinds.rounding(decibels=True), "images_ratio": kinds.rounding(near=10.0)}
NETWORK = "resnet18-cifar"
COUNTED = (1, 2, 4, 8, 16)


class Parameters(studies.Parameters):
    """Parameters of the page: batch sizes, numbers of batches, noise, and steps of search and matching."""

    sizes: list[int] = setting([1], paper=[1, 4], about="batch sizes B, in samples")
    repeats: int = setting(
        1, paper=10, ge=1, le=1000, about="batches per batch size, each with other images and weights"
    )
    large: list[int] = setting([], about="further batch sizes, with one batch each")
    noises: list[float] = setting(
        [1e-5], paper=[1e-8, 1e-6], about="standard deviations of noise on the gradient of a single image"
    )
    matching: int = setting(
        2, paper=200, ge=1, le=100_000, about="steps of gradient matching on one batch per batch size, for comparison"
    )
    classes: int = setting(100, ge=4, le=10_000, about="classes C of the network; the images get random labels")
    side: int = setting(16, paper=32, ge=8, le=64, about="side (pixels) to which images are downsampled")
    steps: int = setting(
        50,
        paper=1200,
        ge=1,
        le=100_000,
        about="steps of the search for the images from the inputs of the lowest layer reached",
    )
    dataset: str = setting("photos", paper="cifar10", about="dataset of the private images, test split")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees(NETWORK, self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the batches that are peeled, then single images with noise, then the batches that are matched."""
        sizes = [(size, self.repeats) for size in self.sizes] + [(size, 1) for size in self.large]
        for size, repeats in sizes:
            for batch in range(repeats):
                yield Peeling.of(self, size=size, batch=batch)
        for level in self.noises:
            yield FromNoise.of(self, level=level)
        for size in self.sizes:
            yield Matching.of(self, size=size, steps=self.matching)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        sizes = ", ".join(map(str, self.sizes))
        return f"batches per size: {self.repeats}, B = {sizes}, {data.title(self.dataset)}"


class TimedBatch(PeeledBatch):
    """A peeled batch with wall-clock and CPU time (s); the first batch has a picture of private and found images."""

    seconds: float
    cpu_seconds: float
    picture: str = ""


class NoisyBatch(PeeledBatch):
    """A batch that an attacker peeled from a gradient with noise."""

    attacker: str


class MatchedBatch(Row):
    """A batch that gradient matching restored, with mean and lowest PSNR (dB); `what` is "batch"."""

    what: str
    cpu_seconds: float
    psnr: float
    least: float
    picture: str


class OnBatch(Experiment):
    """An experiment on one batch of private images and an untrained network; each batch has other weights."""

    classes: int
    side: int
    dataset: str

    def private(self, size: int, batch: int) -> tuple[Tensor, Tensor, Leak]:
        """Return the batch's images (B, C, H, W) in [0, 1], the normalised inputs, and the client's leak."""
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
    """Peel one batch."""

    part: ClassVar[str] = "peeled"
    size: int
    batch: int
    steps: int

    def run(self) -> list[Row]:
        """Peel the batch; return a row for the batch and one for each layer that was reached."""
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
    """Peel one image from a gradient with noise, as an attacker who expects no noise and as one who knows its level."""

    part: ClassVar[str] = "noise"
    level: float
    steps: int

    def run(self) -> Iterator[NoisyBatch]:
        """Add the noise, and peel the image as both attackers."""
        images, inputs, clean = self.private(1, 0)
        leak = replace(clean, gradients=sent_behind("gaussian", self.level, clean.gradients, self.seed))
        for attacker, noise in (("unaware", 0.0), ("aware", self.level)):
            found = peel(leak, noise=noise, steps=self.steps)
            yield NoisyBatch.of(judged(found, images, inputs), attacker=attacker)


class Matching(OnBatch):
    """Restore the first batch of a size by gradient matching."""

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


def headline(record: Record) -> Headline:
    """Return the finding: peeling restores all images of small batches, where gradient matching restores none."""
    known = claims.judgements(record)
    restored, matched, wrong = known["peel-four"], known["peel-matching"], known["peel-silent"]
    size = restored.claim.measure.where["size"]
    own = select(record.rows(Peeling), what="batch", size=size)
    return Headline(
        f"From one averaged gradient of an untrained ResNet18, peeling restores all {size} images of a batch at "
        f"{math.floor(own['least'].min())} dB or more in {restored.cases} batches; a short gradient matching of "
        f"one batch reaches {matched.text} on average.",
        true=bool(restored.value == 100 and wrong.value == 0 and matched.agrees),
        claim="peel-four",
        what=f"batches of {size} with every image above {metrics.EXACT:.0f} dB (untrained ResNet18, CIFAR-10, float32)",
        of="batches",
        figure=figure_batch,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the results of peeling, beside gradient matching.

    Rows: batch sizes B. Columns: n batches; batches that are certified, batches with every image exact, and wrong
    certificates; the lowest PSNR (dB); the median CPU time (s); mean PSNR (dB) and CPU time (s) of
    matching.
    """
    rows = pd.concat([batches(record.rows(Peeling)), record.rows(Matching)]).astype({"size": int})
    measures = {"batches": count()} | OUTCOMES | {"median CPU time (s)": median("cpu_seconds", ".0f")}
    own = {head: among(measure, part=Peeling.part) for head, measure in measures.items()}
    rival = {
        "matching: mean PSNR (dB)": among(mean("psnr", decibels), part=Matching.part),
        "matching: CPU time (s)": among(mean("cpu_seconds", ".0f"), part=Matching.part),
    }
    return summary(rows.sort_values("size", kind="stable"), {"B": "size"}, own | rival)


def layer_table(record: Record) -> pd.DataFrame:
    """Return the accuracy of each layer's recovered inputs.

    Rows: layers and batch sizes B. Columns: equations, unknowns, the number of batches in which the layer was reached,
    and the largest claimed and true errors.
    """
    return peeled.layer_table(record.rows(Peeling).astype({"size": int}), B="size")


def noise_table(record: Record) -> pd.DataFrame:
    """Return the results of peeling a single sample from a gradient with noise.

    Rows: standard deviations of the noise. Columns: status, recovered layers and PSNR (dB) for an attacker who expects
    no noise and for one who knows its level.
    """

    def answered(attacker: str, words: str) -> dict[str, Measure]:
        return {
            f"{words}: status": among(only("status"), attacker=attacker),
            f"{words}: layers recovered": among(only("layers", ".0f"), attacker=attacker),
            f"{words}: PSNR (dB)": among(only("least", decibels), attacker=attacker),
        }

    rows = record.rows(FromNoise).sort_values("level", kind="stable")
    measures = answered("unaware", "noise not expected") | answered("aware", "noise known")
    return summary(
        rows.assign(level=rows["level"].map("{:.0e}".format)), {"standard deviation of the noise": "level"}, measures
    )


def counts_table() -> pd.DataFrame:
    """Return the layer at which too few equations stop peeling, by counting alone.

    Rows: networks, and batch sizes B from which on the layer changes. Columns: the layer, and the reason.
    """
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
                lines.append({"network": label, "from B": f"{size}", "peeling ends at": where, "reason": stops.reason})
            before = stops.name
    return pd.DataFrame(lines)


def figure_batch(record: Record) -> Figure:
    """Show the first batch of the largest size: private, peeled, and restored by gradient matching."""
    size = record.rows(Matching)["size"].max()
    pictures = [select(record.rows(kind), size=size)["picture"].dropna().iloc[0] for kind in (Peeling, Matching)]
    figure, axes = figures.panels(1, 1, height=3.4)
    show(axes[0][0], pictures, ["private", "peeled", "gradient matching"])
    return figure


def figure_layers(record: Record) -> Figure:
    """Plot the claimed against the true relative error of every layer's inputs, over all batches.

    Dashed lines are a factor of 10 away from equality.
    """
    frame = select(record.rows(Peeling), what="layer", reason="")
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    for index, (size, group) in enumerate(frame.groupby("size")):
        axis.scatter(group["off"], group["claimed"], s=12, color=figures.COLOURS[index], label=f"{size:.0f} per batch")
    ends = [frame[["off", "claimed"]].min().min() / 3, frame[["off", "claimed"]].max().max() * 3]
    axis.plot(ends, ends, color=figures.TRUTH, linewidth=1.2, label="claimed = true")
    for factor in (FACTOR, 1 / FACTOR):
        axis.plot(ends, [end * factor for end in ends], color=figures.TRUTH, linewidth=0.8, linestyle=(0, (4, 2)))
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="true relative error of a layer's inputs",
        ylabel="claimed relative error",
        xlim=ends,
        ylim=ends,
    )
    figures.legend_below(figure, 3)
    return figure


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    own = line(table(record), "4")
    return Leaks(
        "all images, layer by layer",
        f"batches of {own['B']}; ResNet18, untrained",
        f"{own['certified']} of {own['batches']} batches certified, lowest PSNR {own['lowest PSNR (dB)']} dB",
        f"{own['median CPU time (s)']} s",
        kind="images",
        attack="peeling",
        network=network_in_words(NETWORK),
        batch=int(own["B"]),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    worst = median_of("least", "PSNR of a batch's worst image", "batches")
    rows = record.rows(Peeling)
    rows = rows[rows["what"] == "batch"]
    found = collected(
        record, rows, "images", worst, attack="peeling", network=NETWORK, data=rows["dataset"],
        batch=rows["size"].astype(int),
    )  # fmt: skip
    rows = record.rows(FromNoise)
    found += collected(
        record, rows, "images", worst, attack="peeling, " + rows["attacker"].map(KNOWLEDGE),
        network=NETWORK, data=rows["dataset"],
        defense=[f"gaussian/{level:g}" for level in rows["level"]],
    )  # fmt: skip
    rows = record.part("matched")
    return found + collected(
        record, rows, "images", worst, attack="gradient matching", network=NETWORK, data=rows["dataset"],
        batch=rows["size"].astype(int),
    )  # fmt: skip
