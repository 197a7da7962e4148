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
from gradleak.show.summaries import NOTHING, mean, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.deep_networks import SMALL
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import (
    FLOORS,
    Case,
    CaseRow,
    Scene,
    chosen,
    drawn,
    gained,
    gradient_norms,
    marked,
    scaled,
)
from gradleak.studies.shared.shown_batches import draw_sizes, gain_table, hundredths, quality, restored, rows_of, strips

PLACE = "Section 4, Table 3 and Figures 5 to 8"
# The attack of this page, which has the batch norm statistics of each batch.
ATTACK = SETTINGS["gradinversion+pyramid"]
KINDS = ("random", "vulnerable")
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
        if min(self.sizes) < 1 or any(max(self.sizes) % size for size in self.sizes):
            raise ValueError(f"every batch size must divide the largest; got {self.sizes}")
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

    def run(self) -> list[CaseRow]:
        """Restore random images and vulnerable ones, and compare the batch sizes."""
        scene = Scene(self.network, self.judge, self.dataset, self.seed, self.device)
        most = max(self.sizes)
        rows: list[CaseRow] = []
        for kind in KINDS:
            lengths = gradient_norms(scene.model, scene.private) if kind == "vulnerable" else None
            own = chosen(scene.private, most, self.first + self.groups, self.seed, lengths)[self.first :]
            for size in self.sizes:
                case = Case(scene, own.reshape(-1, size), self.first * most // size)
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

    def run(self) -> list[CaseRow]:
        """Restore the batches on every network, and compare the networks."""
        rows: list[CaseRow] = []
        for name in self.networks:
            case = drawn(name, self.judge, self.dataset, self.size, self.first, self.batches, self.seed, self.device)
            private = case.scene.private
            with torch.no_grad():
                predicted = case.model(data.normalise(private.images).to(case.device)).argmax(dim=1).cpu()
            found = case.restored(name, scaled(ATTACK, self.steps), exact=True)
            if name == self.networks[0]:
                found = [*case.private(), *case.floors(), *found]
            rows += marked(found, accuracy=100 * float((predicted == private.labels).double().mean()))
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

    One row for each kind of image and batch size B, and for each baseline. The last column is the share of labels found
    by the paper's rule (%).
    """
    images = rows_of(record, "image", "sizes")
    sizes = images["batch_size"].map("{:.0f}".format).where(~images["run"].isin(FLOORS), images["run"])
    stated = record.stated(Parameters)
    measures = quality(images, max(stated.sizes), stated.seed)
    measures["labels found (%)"] = restored(mean("labels", hundredths))
    return summary(images.assign(shown=sizes), {"kind of image": "kind", "batch size, or floor": "shown"}, measures)


def networks_table(record: Record) -> pd.DataFrame:
    """Return Table 3: the quality of the images restored from each network, beside the paper's values.

    One row for each network, the best features first, and for each baseline.
    """
    parameters = record.stated(Parameters)
    images, names = rows_of(record, "image", "networks"), parameters.networks
    published = dict(zip(names, PUBLISHED, strict=True)) if len(names) == len(PUBLISHED) else {}
    measures = quality(images, parameters.network_size, parameters.seed)
    del measures["identified by another network (%)"], measures["identified by the attacked network (%)"]
    accuracy = restored(only("accuracy", ".1f"))
    paper = only("run", lambda run: published.get(run, NOTHING))
    keys = {"network": "run"}
    return summary(images, keys, {"accuracy (%)": accuracy, **measures, "paper: FFT2D / PSNR / LPIPS": paper})


def gains(record: Record, part: str = "sizes") -> pd.DataFrame:
    """Return the mean differences between pairs of runs over all images of a part, one row for each pair."""
    parameters = record.stated(Parameters)
    images = rows_of(record, "image", part)
    if part == "sizes":
        return gain_table(images, pairs(parameters.sizes), max(parameters.sizes), parameters.seed)
    own = list(itertools.pairwise(parameters.networks))
    # IIP is left out, because the network that identifies images may be one of the attacked networks.
    return gain_table(images, own, parameters.network_size, parameters.seed, ("psnr", "lpips"))


def figure_images(record: Record, kind: str = "random") -> Figure:
    """Draw the first images: the private ones above those of the baselines and of every batch size."""
    return strips(record, "sizes", kind=kind)


def figure_networks(record: Record) -> Figure:
    """Draw the first images of Table 3: the private ones above those of the baselines and of every network."""
    return strips(record, "networks")


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images (%) and the PSNR (dB) against the batch size, with 95 % intervals."""
    images, stated = rows_of(record, "image", "sizes"), record.stated(Parameters)
    sizes = sorted(stated.sizes)
    runs = {kind: (kind, partial(named, kind)) for kind in KINDS}
    chance = rows_of(record, "batches", "sizes")["chance"].astype(float).iloc[0]
    shown = {
        "identified": ("identified by\nanother network (%)", chance),
        "identified_by_own": ("identified by\nthe attacked network (%)", chance),
        "psnr": ("PSNR (dB)\n", select(images, run="mean colour")["psnr"].astype(float).mean()),
    }
    return draw_sizes(
        images, runs, shown, floor="chance, or mean colour", sizes=sizes, most=max(sizes), seed=stated.seed
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.part("sizes")
    found = restored_images(record, rows, network=rows["network"], batch=rows["batch_size"].fillna(1).astype(int))
    rows = record.part("networks")
    return found + restored_images(record, rows, network=rows["run"], batch=rows["size"].fillna(1).astype(int))
