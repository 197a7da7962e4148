"""An exact batch: every image from one gradient

Beyond wang2024, section 4.2: restore every image of a batch from one averaged gradient of a fully connected network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import model_validator
from torch import Tensor, nn

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.images import bias_attack, trace_fully_connected
from gradleak.leak import Leak, observe
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import bound, drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import NOTHING, among, cells, count, least, mean, median, select, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.defended import BehindDefence, Defence, sent_behind, with_defence_cells
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, Outcome, collected, median_of, written
from gradleak.studies.shared.samples import DTYPES, soft_labels
from gradleak.studies.wang2024.columns import COLUMNS
from gradleak.wording import counted

PLACE = "Beyond section 4.2"
SIZE = 64
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-9, 1e-8, 1e-7, 1e-6, 1e-5),
    "clip": (0.5,),
    "quantize": (16,),
    "half": (16,),
}
CLOSED_FORM, BIAS_ATTACK = "closed form", "bias attack"


class Parameters(studies.Parameters):
    """Parameters of the page: batch sizes, numbers of batches, precisions and defences."""

    sizes: list[int] = setting(paper=[1, 2, 4, 8, 16, 24, 32, 40, 44, 48])
    repeats: int = setting(paper=10, ge=1, le=1000)
    precisions: list[str] = setting(paper=list(DTYPES))
    classes: int = setting(paper=100, ge=4, le=10_000)
    shown: int = setting(paper=16, ge=1, le=256)
    defenses: list[Defence] = setting(paper=list(DEFENSES), min_length=1)
    dataset: str = setting(paper="flowers17")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees("fcn4", self.dataset, size=SIZE, channels=3)]

    @model_validator(mode="after")
    def _shown_is_one_of_the_sizes(self) -> Self:
        if self.shown not in self.sizes:
            raise ValueError(f"'shown' must be one of the sizes; got {self.shown} and {self.sizes}")
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield the batches by size and precision, then the defences of one batch."""
        for size, dtype in product(self.sizes, self.precisions):
            yield Inverted.of(self, size=size, dtype=dtype, shown=size == self.shown)
        for defense in self.defenses:
            for level in DEFENSES[defense]:
                yield DefendedBatch.of(self, defense=defense, level=level, size=self.shown)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        sizes = sorted(self.sizes)
        span = f"B from {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"B = {sizes[0]}"
        return f"{counted(self.repeats, 'batch')} per size, {span}, {data.title(self.dataset)}"


class Inverted(Experiment):
    """Restore batches of one size and precision by the closed form and by the bias attack."""

    part: ClassVar[str] = "closed"
    size: int
    dtype: str
    repeats: int
    shown: bool
    classes: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Restore every batch by both attacks, and yield a picture of the first."""
        model = _network(self.classes, False, self.dtype, self.seed, self.device)
        biased = _network(self.classes, True, self.dtype, self.seed, self.device)
        for n in range(self.repeats):
            images, labels = _private(self.dataset, self.classes, self.size, self.seed + n)
            leak = _leak(model, images, labels)
            started = time.perf_counter()
            found = trace_fully_connected(leak)
            seconds = time.perf_counter() - started
            restored = data.denormalise(found.inputs.cpu().reshape(images.shape))
            yield nearness(restored, images) | {
                "batch": n,
                "attack": CLOSED_FORM,
                "seconds": seconds,
                "status": found.status,
                "reason": found.reason,
                "certified": found.status == "exact",
            }
            started = time.perf_counter()
            best = nearest(bias_attack(_leak(biased, images, labels)), data.normalise(images).flatten(1))
            seconds = time.perf_counter() - started
            units = data.denormalise(best.cpu().reshape(images.shape))
            about: Columns = {"batch": n, "attack": BIAS_ATTACK, "seconds": seconds, "status": "best unit"}
            yield nearness(units, images) | about
            if self.shown and n == 0 and self.dtype == "float32":
                order = metrics.match_batch(restored, images)
                yield {"picture": packed(torch.cat([images, units, restored[order]]), self.size)}


class DefendedBatch(BehindDefence):
    """Restore one batch behind a defence, by an attacker who expects no noise and by one who estimates it."""

    size: int
    classes: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Defend the batch, and invert it as both attackers."""
        model = _network(self.classes, False, "float32", self.seed, self.device)
        images, labels = _private(self.dataset, self.classes, self.size, self.seed)
        clean = _leak(model, images, labels)
        sent = replace(clean, gradients=sent_behind(self.defense, self.level, clean.gradients, self.seed))
        utility = defenses.utility(clean.gradients, sent.gradients)
        for attacker, noise in (("unaware", 0.0), ("aware", None)):
            found = trace_fully_connected(sent, noise=noise)
            restored = data.denormalise(found.inputs.cpu().reshape(images.shape))
            yield nearness(restored, images) | {"attacker": attacker, "status": found.status, "utility": utility}


def _private(dataset: str, classes: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    private = data.load(dataset, "test", size=SIZE)
    generator = torch.Generator().manual_seed(seed)
    images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
    chosen = torch.randint(classes, (size,), generator=generator)
    return images, soft_labels("smoothing", chosen, classes, generator)


def _network(classes: int, bias: bool, dtype: str, seed: int, device: str) -> nn.Module:
    return models.build("fcn4", classes=classes, bias=bias, image_size=SIZE, seed=seed).to(device, DTYPES[dtype])


def _leak(model: nn.Module, images: Tensor, labels: Tensor) -> Leak:
    weight = next(model.parameters())
    return observe(model, data.normalise(images).to(weight), labels.to(weight))


def nearest(said: Tensor, truth: Tensor) -> Tensor:
    """Return, for each true input (B, D), the nearest of the units' answers (O, D); no attacker has this choice."""
    said = said[said.isfinite().all(dim=1)]
    return said[torch.cdist(truth.to(said), said).argmin(dim=1)]


def nearness(restored: Tensor, images: Tensor) -> Columns:
    """Compare restored images (B, C, H, W) with the private images, in the best order."""
    order = metrics.match_batch(restored, images)
    psnr, lost = metrics.psnr(restored[order], images), ~restored.isfinite().flatten(1).all(dim=1)
    return {
        "images": len(images),
        "psnr": float(psnr.mean()),
        "lowest_psnr": float(psnr.min()),
        "ssim": float(metrics.ssim(restored[order], images).mean()),
        "over_40": 100 * float((psnr > 40).double().mean()),
        "not_restored": int(lost.sum()),
    }


def attacked(record: Record) -> pd.DataFrame:
    """Return the rows of both attacks without the pictures."""
    rows = record.rows(Inverted)
    return rows[rows["attack"].notna()]


def headline(record: Record) -> Headline:
    """Return the finding: the closed form restores all images of a batch, and the attack knows that it did."""
    known = claims.judgements(record)
    psnr, exact, mixed = known["exact-float32"], known["exact-said"], known["exact-bias"]
    size, large = psnr.claim.measure.where["size"], mixed.claim.measure.where["size"]
    rows = select(attacked(record), attack=CLOSED_FORM, dtype="float32", size=large)
    biased = select(attacked(record), attack=BIAS_ATTACK, dtype="float32", size=large)
    return Headline(
        "From one averaged gradient of an untrained fully connected network without biases, a closed form restores "
        f"all {size} images of a batch at {psnr.text}, and it still restores every batch of {large}; there the bias "
        f"attack makes {_indistinguishable(biased)} images indistinguishable.",
        true=bool(psnr.agrees and exact.agrees and mixed.agrees and rows["certified"].all()),
        claim="exact-float32",
        what=f"median over batches of the mean PSNR of {size} images (four-layer network, flowers, float32)",
        of="batches",
        figure=figure_sizes,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the results of the closed form, on clean gradients and behind defences, and of the bias attack."""
    behind = with_defence_cells(select(record.rows(DefendedBatch), attacker="aware"))
    behind = behind.assign(attack=CLOSED_FORM, dtype="float32", certified=behind["status"] == "exact")
    measures = {
        "batches": count(),
        **cells(COLUMNS, "certified", by=total),
        **cells(COLUMNS, "psnr", by=mean, head="mean {}"),
        **cells(COLUMNS, "lowest_psnr", by=least),
        **cells(COLUMNS, "seconds", by=median, head="median {}"),
    }
    return summary(
        pd.concat([attacked(record).assign(defence="none", strength=NOTHING), behind]),
        {"B": "size", "precision": "dtype", "defence": "defence", "strength": "strength"},
        {head: among(measure, attack=CLOSED_FORM) for head, measure in measures.items()}
        | {"bias attack: images above 40 dB": among(_indistinguishable, attack=BIAS_ATTACK)},
    ).replace("nan", NOTHING)


def _indistinguishable(rows: pd.DataFrame) -> str:
    """Measure how many images are indistinguishable from the private ones, and of how many."""
    return f"{round((rows['over_40'] * rows['images']).sum() / 100):,} of {rows['images'].sum():,.0f}"


def figure_batch(record: Record) -> Figure:
    """Show one batch: the private images, the bias attack's best units, and the closed form's images."""
    rows = record.rows(Inverted)
    row = rows[rows["picture"].notna()].iloc[0]
    count = int(row["size"])
    figure, axes = figures.panels(1, 1, height=min(3.6, max(1.2, 8.4 * 3 / count)))
    show(axes[0][0], row["picture"], ["private", "bias attack", "closed form"])
    return figure


def figure_sizes(record: Record) -> Figure:
    """Plot the mean PSNR (dB) of both attacks against the batch size; shading spans the means of single batches.

    A vertical line marks the batch size B = (C − 2) / 2 beyond which the equations no longer suffice.
    """
    rows = attacked(record)
    rows = rows[(rows["psnr"] > -math.inf) & ((rows["attack"] == CLOSED_FORM) | (rows["dtype"] == "float32"))]
    return drawn(
        rows,
        lines("size", "psnr", by=["attack", "dtype"], band="range"),
        bound((record.stated(Parameters).classes - 2) / 2, label="B = (C − 2) / 2"),
        height=3.4,
        legend=4,
        xlabel="batch size B (images)",
        ylabel="mean PSNR (dB)",
        ylim=(0, None),
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    own = line(table(record), "32", "float32", "none")
    return Leaks(
        "all images, in closed form",
        f"batches of {own['B']}; fully connected, no biases",
        f"{own['batches certified']} of {own['batches']} batches certified, mean PSNR {own['mean PSNR (dB)']} dB",
        f"{own['median time (s)']} s elapsed",
        kind="images",
        attack="closed form",
        network="fully connected, 4 layers",
        batch=int(own["B"]),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = attacked(record)
    mean = median_of("psnr", "mean PSNR of a batch", "batches")
    found = collected(
        record, rows, "images", mean, attack=rows["attack"], network="fcn4", data=rows["dataset"], batch=rows["size"],
        client=rows["dtype"],
    )  # fmt: skip
    rows = record.part("defense")
    return found + collected(
        record, rows, "images", mean, cosine=rows["utility"], attack="closed form, " + rows["attacker"].map(KNOWLEDGE),
        network="fcn4",
        data=rows["dataset"], batch=rows["size"],
        defense=written(rows["defense"], rows["level"], {"clip": "clip-share"}),
    )  # fmt: skip
