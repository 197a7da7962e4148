"""Batches of one, two, four and eight: who can be identified, and from which network

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

from gradleak import data
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.deep_networks import SMALL
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
from gradleak.studies.shared.shown_batches import draw_sizes, gain_table, quality_line, rows_of, strips

PLACE = "Section 4, Table 3 and Figures 5 to 8"
# The attack of this page, with every batch's own statistics.
ATTACK = SETTINGS["gradinversion+pyramid"]
KINDS = ("random", "vulnerable")
# FFT2D / PSNR / LPIPS of Table 3, by how good the features are: ImageNet, batches of 8.
PUBLISHED = (
    ".175 / 12.929 / .484, ResNet-50, MoCo v2",
    ".204 / 11.771 / .584, ResNet-50",
    ".218 / 10.729 / .693, ResNet-18",
)


class Parameters(restored_batches.Parameters):
    """The sizes of batches, the networks of Table 3, and how many images and steps each gets."""

    sizes: list[int] = setting(
        [1, 2], paper=[1, 2, 4, 8], min_length=1, about="images in a batch; each divides the largest"
    )
    groups: int = setting(
        1, paper=4, ge=1, le=10_000, about="groups of as many images as the largest batch, of each kind"
    )
    together: int = setting(1, paper=4, ge=1, le=1000, about="groups that one trial restores and compares")
    steps: int = setting(6, paper=500, smallest=2, ge=2, le=1_000_000, about="gradients an attack may ask for")
    networks: list[str] = setting(
        [SMALL],
        paper=["cifar10-resnet56+head", "cifar10-resnet20+head", SMALL],
        about="networks of Table 3, the best features first",
    )
    network_size: int = setting(2, paper=4, ge=1, le=64, about="images in a batch there")
    network_batches: int = setting(1, paper=4, ge=0, le=10_000, about="batches that each of them is asked for")
    network_steps: int = setting(
        6, paper=500, smallest=2, ge=2, le=1_000_000, about="gradients an attack may ask for there"
    )

    @property
    def every(self) -> list[str]:
        """The names of all networks."""
        return [self.network, self.judge, *self.networks]

    @model_validator(mode="after")
    def _together(self) -> Self:
        if min(self.sizes) < 1 or any(max(self.sizes) % size for size in self.sizes):
            raise ValueError(f"every size of a batch divides the largest; got {self.sizes}")
        restored_batches.check_together(self.together, self.groups, "groups", least=1)
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Give the same images in batches of every size, then batches from several networks."""
        for first in range(0, self.groups, self.together):
            yield SizesOfBatches.of(self, first=first, groups=self.together)
        if self.network_batches:
            yield FromNetworks.of(
                self, first=0, batches=self.network_batches, size=self.network_size, steps=self.network_steps
            )

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
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
        """Restore random images and vulnerable ones, and compare the sizes."""
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
    """The same batches from several networks, the one with the best features first."""

    part: ClassVar[str] = "networks"
    networks: list[str]
    judge: str
    dataset: str
    size: int
    first: int
    batches: int
    steps: int

    def run(self) -> list[CaseRow]:
        """Restore the batches from every network, and compare the networks."""
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
    """Return which runs are compared: smaller batches with larger ones, and vulnerable images with random ones."""
    ordered = sorted(sizes)
    steps = [*itertools.pairwise(ordered), *([(ordered[0], ordered[-1])] if len(ordered) > 2 else [])]
    return [
        *((named("random", small), named("random", large)) for small, large in steps),
        *((named("vulnerable", size), named("random", size)) for size in ordered),
    ]


def sizes_table(record: Record) -> pd.DataFrame:
    """Return Figures 5 to 8 as a table: a line a size of batch for random and for vulnerable images, and the floors."""
    most, seed = max(record.stated(Parameters).sizes), record.stated(Parameters).seed
    lines = []
    for (kind, run), images in rows_of(record, "image", "sizes").groupby(["kind", "run"], sort=False):
        size = run if run in FLOORS else f"{images['batch_size'].iloc[0]:.0f}"
        labels = "–" if run in FLOORS else f"{100 * images['labels'].astype(float).mean():.0f}"
        lines.append({"images": kind, "B, or floor": size} | quality_line(images, most, seed) | {"labels, %": labels})
    return pd.DataFrame(lines)


def networks_table(record: Record) -> pd.DataFrame:
    """Return Table 3: a line a network, the best features first, and the paper's line beside it."""
    parameters = record.stated(Parameters)
    names = parameters.networks
    lines = []
    for run, images in rows_of(record, "image", "networks").groupby("run", sort=False):
        own = quality_line(images, parameters.network_size, parameters.seed)
        known = run in names
        stated = dict(zip(names, PUBLISHED, strict=False)).get(str(run), "–") if len(names) == len(PUBLISHED) else "–"
        accuracy = f"{images['accuracy'].iloc[0]:.1f}" if known else "–"
        del own["IIP, %"], own["by the attacked network, %"]
        lines.append({"network": run, "accuracy, %": accuracy} | own | {"paper: FFT2D / PSNR / LPIPS": stated})
    return pd.DataFrame(lines)


def gains(record: Record, part: str = "sizes") -> pd.DataFrame:
    """Return what each pair of runs differs by, over all images of a part, and whether that is decided."""
    parameters = record.stated(Parameters)
    images = rows_of(record, "image", part)
    if part == "sizes":
        return gain_table(images, pairs(parameters.sizes), max(parameters.sizes), parameters.seed)
    own = list(itertools.pairwise(parameters.networks))
    # Who tells the images apart may be one of the networks itself.
    return gain_table(images, own, parameters.network_size, parameters.seed, ("psnr", "lpips"))


def figure_images(record: Record, kind: str = "random") -> Figure:
    """Draw the first images, the private ones above the floors and what batches of every size gave."""
    return strips(record, "sizes", kind=kind)


def figure_networks(record: Record) -> Figure:
    """Draw the first images of Table 3, the private ones above the floors and what every network gave."""
    return strips(record, "networks")


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images, and PSNR, over the size of the batch, with what a bootstrap leaves open."""
    most, seed = max(record.stated(Parameters).sizes), record.stated(Parameters).seed
    images = rows_of(record, "image", "sizes")
    sizes = sorted(record.stated(Parameters).sizes)
    lines = {kind: (kind, partial(named, kind)) for kind in KINDS}
    columns = {
        "identified": "IIP by another network, %",
        "identified_by_own": "IIP by the attacked network, %",
        "psnr": "PSNR, dB",
    }
    figure, axes = figures.panels(1, 3, height=3.2)
    for axis, (column, label) in zip(axes[0], columns.items(), strict=True):
        draw_sizes(axis, images, lines, column, sizes, most, seed)
        axis.set_ylabel(label)
    style = {"color": figures.TRUTH, "linestyle": (0, (4, 2)), "linewidth": 1.4}
    gallery = rows_of(record, "batches", "sizes")["chance"].astype(float)
    for axis in axes[0][:2]:
        axis.axhline(gallery.iloc[0], label="chance, and mean colour", **style)
    floor = images[images["run"] == "mean colour"]["psnr"].astype(float)
    axes[0][2].axhline(floor.mean(), label="chance, and mean colour", **style)
    figures.legend_below(figure, 3)
    return figure
