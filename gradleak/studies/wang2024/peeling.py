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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from gradleak import claims, data, metrics, models, studies
from gradleak.images import Adam, match, peel
from gradleak.leak import Leak, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import DASHED, drawn, scattered
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import among, cells, count, least, mean, median, select, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.defended import sent_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, Outcome, collected, median_of, network_in_words
from gradleak.studies.shared.peeled import FACTOR, batch_row, batches, in_order, layer_rows, similarity
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Beyond section 4.2"
NETWORK = "resnet18-cifar"


class Parameters(studies.Parameters):
    """Parameters of the page: batch sizes, numbers of batches, noise, and steps of search and matching."""

    sizes: list[int] = setting(paper=[1, 4])
    repeats: int = setting(paper=10, ge=1, le=1000)
    large: list[int]
    noises: list[float] = setting(paper=[1e-8, 1e-6])
    matching: int = setting(paper=200, ge=1, le=100_000)
    classes: int = setting(ge=4, le=10_000)
    side: int = setting(paper=32, ge=8, le=64)
    steps: int = setting(paper=1200, ge=1, le=100_000)
    dataset: str = setting(paper="cifar10")

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


class OnBatch(Experiment):
    """An experiment on one batch of private images and an untrained network; each batch has other weights."""

    classes: int
    side: int
    dataset: str

    def private(self, size: int, batch: int) -> tuple[Tensor, Leak]:
        """Return the batch's images (B, C, H, W) in [0, 1] and the client's leak."""
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
        return images, observe(model.to(self.device), inputs.float(), labels.to(self.device))


class Peeling(OnBatch):
    """Peel one batch."""

    part: ClassVar[str] = "peeled"
    size: int
    batch: int
    steps: int

    def run(self) -> list[Columns]:
        """Peel the batch; return a row for the batch and one for each layer. The first batch has a picture."""
        images, leak = self.private(self.size, self.batch)
        started, cpu = time.perf_counter(), time.process_time()
        found = peel(leak, steps=self.steps)
        row: Columns = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        row |= batch_row(found, images)
        if self.batch == 0:
            restored, _ = in_order(found.images, images)
            row["picture"] = packed(torch.cat([images, restored]), self.size)
        return [row, *layer_rows(leak.model, found, images)]


class FromNoise(OnBatch):
    """Peel one image from a gradient with noise, as an attacker who expects no noise and as one who knows its level."""

    part: ClassVar[str] = "noise"
    level: float
    steps: int

    def run(self) -> Iterator[Columns]:
        """Add the noise, and peel the image as both attackers."""
        images, clean = self.private(1, 0)
        leak = replace(clean, gradients=sent_behind("gaussian", self.level, clean.gradients, self.seed))
        for attacker, noise in (("unaware", 0.0), ("aware", self.level)):
            yield batch_row(peel(leak, noise=noise, steps=self.steps), images) | {"attacker": attacker}


class Matching(OnBatch):
    """Restore the first batch of a size by gradient matching."""

    part: ClassVar[str] = "matched"
    size: int
    steps: int

    def run(self) -> list[Columns]:
        """Match the batch's gradient."""
        images, leak = self.private(self.size, 0)
        cpu = time.process_time()
        found = match(leak, distance="cosine", optimizer=Adam(steps=self.steps, signed=True), seed=self.seed)
        seconds = time.process_time() - cpu
        restored, _ = in_order(found.images, images)
        row: Columns = {"what": "batch", "cpu_seconds": seconds, "picture": packed(restored, self.size)}
        return [row | similarity(restored, images)]


def headline(record: Record) -> Headline:
    """Return the finding: peeling restores all images of small batches, where gradient matching restores none."""
    known = claims.judgements(record)
    restored, matched, wrong = known["peel-four"], known["peel-matching"], known["peel-silent"]
    size = restored.claim.measure.where["size"]
    own = select(record.rows(Peeling), what="batch", size=size)
    return Headline(
        f"From one averaged gradient of an untrained ResNet18, peeling restores all {size} images of a batch at "
        f"{math.floor(own['lowest_psnr'].min())} dB or more in {restored.cases} batches; a short gradient matching of "
        f"one batch reaches {matched.text} on average.",
        true=bool(restored.value == 100 and wrong.value == 0 and matched.agrees),
        claim="peel-four",
        what=f"batches of {size} with every image above {metrics.EXACT:.0f} dB (untrained ResNet18, CIFAR-10, float32)",
        of="batches",
        figure=figure_batch,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the results of peeling beside those of gradient matching, one row for each batch size B."""
    peeled = {
        "batches": count(),
        "certified": total("certified"),
        **cells(COLUMNS, "lowest_psnr", by=least),
        **cells(COLUMNS, "cpu_seconds", by=median, head="median {}"),
    }
    matched = {
        **cells(COLUMNS, "psnr", by=mean, head="matching: mean {}"),
        **cells(COLUMNS, "cpu_seconds", by=mean, head="matching: {}"),
    }
    measures = {head: among(measure, part=Peeling.part) for head, measure in peeled.items()}
    measures |= {head: among(measure, part=Matching.part) for head, measure in matched.items()}
    rows = batches(record.frame()).dropna(subset="size").astype({"size": int})
    return summary(rows.sort_values("size", kind="stable"), {"B": "size"}, measures)


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
    return drawn(
        select(record.rows(Peeling), what="layer", reason=""),
        scattered("off", "claimed", by="size", label="{:.0f} per batch".format, markersize=4),
        _equality,
        height=3.4,
        legend=3,
        xscale="log",
        yscale="log",
        xlabel="true relative error of a layer's inputs",
        ylabel="claimed relative error",
    )


def _equality(axis: Axes, rows: pd.DataFrame) -> None:
    """Draw the line on which claimed and true errors are equal, and two lines a factor of 10 away from it."""
    ends = rows["off"].min() / 3, rows["off"].max() * 3
    axis.plot(ends, ends, color=figures.TRUTH, linewidth=1.2, label="claimed = true")
    for factor in (FACTOR, 1 / FACTOR):
        axis.plot(ends, [end * factor for end in ends], color=figures.TRUTH, linewidth=0.8, linestyle=DASHED)


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
    rows = batches(record.frame())
    peeling = "peeling" + (", " + rows["attacker"].map(KNOWLEDGE)).fillna("")
    return collected(
        record, rows, "images", median_of("lowest_psnr", "PSNR of a batch's worst image", "batches"),
        attack=peeling.mask(rows["part"] == Matching.part, "gradient matching"), network=NETWORK, data=rows["dataset"],
        batch=rows["size"].fillna(1).astype(int),
        defense=("gaussian/" + rows["level"].map("{:g}".format)).where(rows["level"].notna(), "none"),
    )  # fmt: skip
