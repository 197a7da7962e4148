"""GradInversion in batches of one to eight: which images are identified, and from which network

yin2021, Table 3 and Figures 5 to 8.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import model_validator

from gradleak import claims, data
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.runs.records import Record
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, cells, only, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.deep_networks import SMALL
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import (
    FLOORS,
    KINDS,
    Case,
    Rows,
    drawn,
    gained,
    marked,
    of_both_kinds,
    scaled,
    scene_of,
)
from gradleak.studies.shared.shown_batches import draw_sizes, quality, restored, rows_of, strips
from gradleak.studies.yin2021.columns import COLUMNS

PLACE = "Section 4, Table 3 and Figures 5 to 8"
# The attack of this page, which has the batch norm statistics of each batch.
ATTACK = SETTINGS["gradinversion+pyramid"]
# FFT2D / PSNR / LPIPS of Table 3, the best features first: ImageNet, batches of 8.
PUBLISHED = (
    ".175 / 12.929 / .484, ResNet-50, MoCo v2",
    ".204 / 11.771 / .584, ResNet-50",
    ".218 / 10.729 / .693, ResNet-18",
)


class Parameters(restored_batches.Parameters):
    """Parameters of the page: batch sizes, the networks of Table 3, images and steps."""

    sizes: list[int] = setting(paper=[1, 2, 4, 8], min_length=1)
    groups: int = setting(paper=4, ge=1, le=10_000)
    together: int = setting(paper=4, ge=1, le=1000)
    steps: int = setting(paper=500, smallest=2, ge=2, le=1_000_000)
    networks: list[str] = setting(paper=["cifar10-resnet56+head", "cifar10-resnet20+head", SMALL])
    network_size: int = setting(paper=4, ge=1, le=64)
    network_batches: int = setting(paper=4, ge=0, le=10_000)
    network_steps: int = setting(paper=500, smallest=2, ge=2, le=1_000_000)

    @property
    def every(self) -> list[str]:
        """The names of all networks."""
        return [self.network, self.judge, *self.networks]

    @model_validator(mode="after")
    def _together(self) -> Self:
        restored_batches.check_sizes(self.sizes, max(self.sizes))
        restored_batches.check_together(self.together, self.groups, "groups", least=1)
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield groups of images in batches of every size, then batches on several networks."""
        for first in range(0, self.groups, self.together):
            yield SizesOfBatches.of(self, first=first, groups=self.together)
        if self.network_batches:
            yield FromNetworks.of(
                self, first=0, batches=self.network_batches, size=self.network_size, steps=self.network_steps
            )

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        sizes = ", ".join(map(str, self.sizes))
        return (
            f"{self.groups * max(self.sizes)} random and as many vulnerable images in batches of {sizes}, "
            f"{self.steps} steps, {data.title(self.dataset)}, {self.network}"
        )


class SizesOfBatches(Experiment):
    """The same images, in batches of every size."""

    part: ClassVar[str] = "sizes"
    network: str
    judge: str
    dataset: str
    sizes: list[int]
    first: int
    groups: int
    steps: int

    def run(self) -> Rows:
        """Restore random images and vulnerable ones, and compare the batch sizes."""
        scene, most = scene_of(self.network, self.judge, self.dataset, self.seed, self.device), max(self.sizes)
        rows: Rows = []
        for kind, places in of_both_kinds(scene, most, self.groups, self.first):
            for size in self.sizes:
                case = Case(scene, places.reshape(-1, size), self.first * most // size)
                found = case.restored(named(kind, size), scaled(ATTACK, self.steps), exact=True)
                if size == self.sizes[0]:
                    found = [*case.private(), *case.floors(), *found]
                rows += marked(found, kind=kind, batch_size=size, labels=float(case.counted.mean()))
        return [*rows, *gained(rows, pairs(self.sizes), most, self.seed)]


class FromNetworks(Experiment):
    """The same batches on several networks, the one with the best features first."""

    part: ClassVar[str] = "networks"
    networks: list[str]
    judge: str
    dataset: str
    size: int
    first: int
    batches: int
    steps: int

    def run(self) -> Rows:
        """Restore the batches on every network, and compare the networks."""
        rows: Rows = []
        for name in self.networks:
            case = drawn(name, self.judge, self.dataset, self.size, self.first, self.batches, self.seed, self.device)
            private = case.scene.private
            with torch.no_grad():
                predicted = case.model(data.normalise(private.images).to(case.device)).argmax(dim=1).cpu()
            found = case.restored(name, scaled(ATTACK, self.steps), exact=True)
            if name == self.networks[0]:
                found = [*case.private(), *case.floors(), *found]
            rows += marked(found, test_accuracy=100 * float((predicted == private.labels).double().mean()))
        return [*rows, *gained(rows, list(itertools.pairwise(self.networks)), self.size, self.seed)]


def named(kind: str, size: int) -> str:
    """Return the name of a run."""
    return f"{kind}, B = {size}"


def pairs(sizes: list[int]) -> list[tuple[str, str]]:
    """Return the pairs of runs to compare: smaller batches with larger ones, and vulnerable images with random ones."""
    ordered = sorted(sizes)
    steps = [*itertools.pairwise(ordered), *([(ordered[0], ordered[-1])] if len(ordered) > 2 else [])]
    return [
        *((named("random", small), named("random", large)) for small, large in steps),
        *((named("vulnerable", size), named("random", size)) for size in ordered),
    ]


def headline(record: Record) -> Headline:
    """Return the finding: larger batches reveal less of each image."""
    known = claims.judgements(record)
    falls = known["gs-alone"]
    images = rows_of(record, "image", "sizes")
    sizes = sorted(record.stated(Parameters).sizes)
    alone, shared = (images[images["run"] == named("random", size)]["identified"] for size in (sizes[0], sizes[-1]))
    return Headline(
        f"Another network identifies {alone.sum():.0f} of {len(alone)} random images that are restored alone, and "
        f"{shared.sum():.0f} of {len(shared)} in batches of {sizes[-1]}.",
        true=bool(falls.agrees) and bool(alone.mean() > shared.mean()),
        claim="gs-alone",
        what="lower 95 % bound of the difference in images identified, single images minus batches of 8 (ResNet-20)",
        figure=figure_sizes,
        of="images",
    )


def sizes_table(record: Record) -> pd.DataFrame:
    """Return Figures 5 to 8 as a table: the quality of the restored images.

    One row for each kind of image and batch size B, and for each baseline.
    """
    images, stated = rows_of(record, "image", "sizes"), record.stated(Parameters)
    sizes = images["batch_size"].map("{:.0f}".format).where(~images["run"].isin(FLOORS), images["run"])
    keys = {COLUMNS["kind"].head: "kind", "batch size, or baseline": "B"}
    return summary(images.assign(B=sizes), keys, quality(COLUMNS, images, max(stated.sizes), stated.seed))


def networks_table(record: Record) -> pd.DataFrame:
    """Return Table 3: the quality of the images restored from each network, beside the paper's values.

    One row for each network, the best features first, and for each baseline.
    """
    stated, images = record.stated(Parameters), rows_of(record, "image", "networks")
    names = stated.networks
    published = dict(zip(names, PUBLISHED, strict=True)) if len(names) == len(PUBLISHED) else {}
    # Identified images are left out, because one of the attacked networks may be the judge.
    measures = quality(
        COLUMNS, images.drop(columns=["identified", "identified_by_own"]), stated.network_size, stated.seed
    )
    measures["paper: FFT2D / PSNR / LPIPS"] = only("run", lambda run: published.get(run, NOTHING))
    accuracy = {head: restored(measure) for head, measure in cells(COLUMNS, "test_accuracy").items()}
    return summary(images, {"network": "run"}, accuracy | measures)


def figure_images(record: Record, kind: str = "random") -> Figure:
    """Draw the first images: the private ones above those of the baselines and of every batch size."""
    return strips(record, "sizes", kind=kind)


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images (%) and the PSNR (dB) against the batch size, with 95 % intervals."""
    titles = {
        "identified": "identified by\nanother network (%)",
        "identified_by_own": "identified by\nthe attacked network (%)",
        "psnr": "PSNR (dB)\n",
    }
    runs = {kind: (kind, partial(named, kind)) for kind in KINDS}
    stated = record.stated(Parameters)
    return draw_sizes(record, "sizes", sorted(stated.sizes), stated.seed, runs, titles)


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.part("sizes")
    found = restored_images(record, rows, network=rows["network"], batch=rows["batch_size"].fillna(1).astype(int))
    rows = record.part("networks")
    return found + restored_images(record, rows, network=rows["run"], batch=rows["size"].fillna(1).astype(int))
