"""GradInversion at length, and peeling: single images and batches of four

Beyond yin2021, section 4: the setting of GradInversion, with peeling in place of a search wherever this is possible.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from gradleak import claims, data
from gradleak.images import peel, restore_batches
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.runs.records import Record
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, cells, median, ranged, select, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import peeled, restored_batches
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import Case, OnBatches, Rows, few, marked, scaled
from gradleak.studies.shared.shown_batches import draw_runs, quality_table, rows_of, strips
from gradleak.studies.yin2021.columns import COLUMNS

PLACE = "Beyond section 4"
MATCHED, PEELED, EITHER = "matched", "peeled", "peeled, else matched"


class Parameters(restored_batches.Parameters):
    """Parameters of the page: images and batches, steps, and further networks."""

    singles: int = setting(paper=30, smallest=1, ge=1, le=10_000)
    size: int = setting(paper=4, ge=1, le=64)
    batches: int = setting(paper=6, ge=0, le=10_000)
    together: int = setting(paper=6, ge=1, le=1000)
    steps: int = setting(paper=1000, smallest=2, ge=2, le=1_000_000)
    front: int = setting(paper=1200, smallest=2, ge=1, le=100_000)
    also: list[str] = setting(paper=["cifar10-resnet20", "cifar10-resnet56+head"])
    also_singles: int = setting(paper=10, ge=0, le=10_000)

    @property
    def every(self) -> list[str]:
        """The names of all networks."""
        return [self.network, self.judge, *self.also]

    def experiments(self) -> Iterator[Experiment]:
        """Yield images alone, then batches, then images that are peeled on other networks, some in each experiment."""
        for first, count in few(self.singles, self.together):
            yield SingleImages.of(self, first=first, batches=count)
        for first, count in few(self.batches, self.together):
            yield MatchedBatches.of(self, first=first, batches=count)
        for network in self.also:
            for first, count in few(self.also_singles, self.together):
                yield PeeledImages.of(self, network=network, first=first, batches=count)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"{self.singles} images alone and {self.batches} batches of {self.size}, {self.steps} "
            f"steps of matching, {data.title(self.dataset)}, {self.network}"
        )


class SingleImages(OnBatches):
    """Images alone, matched and peeled."""

    part: ClassVar[str] = "one"
    front: int
    steps: int

    def run(self) -> Rows:
        """Restore the images by matching, by peeling, and by peeling with matching as a fallback."""
        case = self.drawn(1)
        settings = scaled(SETTINGS["gradinversion+features"], self.steps)
        found = restore_batches(case.leaks, "recovered", settings=settings, statistics=case.statistics, seed=case.seed)
        matched = data.denormalise(found.images).cpu()[case.order]
        rows, nearest = _peeled(case, self.front)
        either = torch.where(nearest.isnan().flatten(1).any(dim=1)[:, None, None, None], matched, nearest)
        restored = {MATCHED: matched, PEELED: nearest, EITHER: either}
        return [
            *case.private(),
            *case.floors(),
            *(row for name, images in restored.items() for row in case.measured(name, images)),
            *rows,
        ]


class MatchedBatches(OnBatches):
    """Batches of several images, matched."""

    part: ClassVar[str] = "many"
    size: int
    steps: int

    def run(self) -> Rows:
        """Restore the batches."""
        case = self.drawn(self.size)
        settings = scaled(SETTINGS["gradinversion+features"], self.steps)
        return [*case.private(), *case.floors(), *case.restored(MATCHED, settings, exact=True)]


class PeeledImages(OnBatches):
    """Images alone, peeled on another network."""

    part: ClassVar[str] = "also"
    front: int

    def run(self) -> Rows:
        """Peel the images."""
        case = self.drawn(1)
        rows, nearest = _peeled(case, self.front)
        return [*case.private(), *case.floors(), *case.measured(PEELED, nearest), *rows]


def _peeled(case: Case, front: int) -> tuple[Rows, torch.Tensor]:
    """Return the rows of images and layers, and the nearest images in [0, 1], NaN where there are none."""
    rows: Rows = []
    nearest = []
    for number, leak, image in zip(case.numbers, case.leaks, case.truth, strict=True):
        started = time.process_time()
        found = peel(leak, prior="onehot", steps=front, seed=case.seed)
        seconds = time.process_time() - started
        nearest.append(data.denormalise(found.nearest).float().cpu())
        layers = sum(not layer.reason for layer in found.layers)
        result = {
            "what": "peeled",
            "status": found.status,
            "reason": found.reason,
            "layers": layers,
            "matched": found.matched,
            "opened": layers > 0,
            "cpu_seconds": seconds,
        }
        rows += marked([result, *peeled.layer_rows(case.model, found, image[None].double())], run=PEELED, image=number)
    return rows, torch.cat(nearest)


def headline(record: Record) -> Headline:
    """Return the finding: equations restore a single image far better than a search does."""
    known = claims.judgements(record)
    peeled_first, matched, opened = known["gl-one"], known["gl-one-matched"], known["gl-opened"]
    return Headline(
        f"Linear equations recover the last maps nearly exactly for {opened.cases} single images in a trained "
        "ResNet, and a search restores the image from them. With matching for the other images the mean PSNR is "
        f"{peeled_first.text}; matching alone reaches {matched.text}.",
        true=bool(peeled_first.agrees and opened.agrees)
        and (peeled_first.value or 0) > 30
        and (matched.value or 0) < 20,
        claim="gl-one",
        what="mean PSNR of single images, peeled if possible, else matched (ResNet-20, retrained last layer, CIFAR-10)",
        figure=figure_images,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the quality of the restored images; one row for each batch size and each attack or baseline."""
    stated = record.stated(Parameters)
    parts = {"single images": ("one", 1), f"batches of {stated.size}": ("many", stated.size)}
    groups = {name: (rows_of(record, "image", part), size) for name, (part, size) in parts.items()}
    return quality_table(groups, stated.seed)


def peeled_table(record: Record) -> pd.DataFrame:
    """Return how far single images were peeled on each network.

    One row for each network. Columns: the number of images, how many had the inputs of any layer recovered, the
    median number of layers in this case, the number of restored images, their PSNR (dB) as median (min … max), and the
    median CPU time (s).
    """
    frame = record.frame()
    frame = frame[frame["what"].eq("peeled") | (frame["what"].eq("image") & frame["run"].eq(PEELED))]
    frame = frame.assign(had=frame["what"].eq("image") & np.isfinite(frame["psnr"].astype(float)))
    return summary(
        frame.assign(peeled=frame["what"].eq("peeled"), opened=frame["opened"].eq(True)),
        {"network": "network"},
        {
            "images": total("peeled"),
            "last map recovered": total("opened"),
            "layers recovered in these": among(median("layers", ".0f"), opened=True),
            "images restored": total("had"),
            "PSNR of these (dB)": among(ranged(median("psnr", ".1f"), "psnr", ".1f"), had=True),
        }
        | {head: among(time, peeled=True) for head, time in cells(COLUMNS, "cpu_seconds", by=median).items()},
    )


def layer_table(record: Record) -> pd.DataFrame:
    """Return how often the inputs of each layer were recovered, and their errors; one row for each layer."""
    rows = select(record.frame(), what="layer", part="one")
    return peeled.layer_table(rows) if len(rows) else pd.DataFrame(columns=["layer", *peeled.LAYERS])


def figure_images(record: Record, part: str = "one") -> Figure:
    """Draw the first images of a part: the private ones above those of the baselines and attacks."""
    return strips(record, part)


def figure_quality(record: Record) -> Figure:
    """Draw the PSNR (dB) of every single image for each attack, with its mean; 0 dB if peeling gives no image."""
    return draw_runs(rows_of(record, "image", "one"), {"psnr": "PSNR (dB)"})


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    return restored_images(record, rows, network=rows["network"], batch=rows["size"].fillna(1).astype(int))
