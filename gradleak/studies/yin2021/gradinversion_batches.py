"""Batches of one, two, four and eight: who can be identified, and from which network

yin2021, Table 3 and Figures 5 to 8.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator

from gradleak import data, studies
from gradleak.images.gradinversion.settings import preset
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.deep_networks import SMALL
from gradleak.studies.shared.restored_batches import (
    FLOORS,
    Case,
    Scene,
    chosen,
    drawn,
    gained,
    gradient_norms,
    scaled,
)
from gradleak.studies.shared.shown_batches import draw_sizes, gain_table, quality_line, rows_of, strips

PLACE = "Section 4, Table 3 and Figures 5 to 8"
SMALLEST: dict[str, Any] = {"steps": 2, "network_steps": 2, "groups": 1, "network_batches": 1}

# The attack of this page, with every batch's own statistics.
ATTACK = preset("gradinversion+pyramid")
KINDS = ("random", "vulnerable")
# FFT2D / PSNR / LPIPS of Table 3, by how good the features are: ImageNet, batches of 8.
PUBLISHED = (
    ".175 / 12.929 / .484, ResNet-50, MoCo v2",
    ".204 / 11.771 / .584, ResNet-50",
    ".218 / 10.729 / .693, ResNet-18",
)


class Parameters(restored_batches.Parameters):
    """What a rerun may change."""

    sizes: list[int] = Field([1, 2], min_length=1, description="images in a batch; each divides the largest")
    groups: int = Field(1, ge=1, le=10_000, description="groups of as many images as the largest batch, of each kind")
    together: int = Field(1, ge=1, le=1000, description="groups that one trial restores and compares")
    steps: int = Field(6, ge=2, le=1_000_000, description="gradients an attack may ask for")
    networks: list[str] = Field([SMALL], description="networks of Table 3, the best features first")
    network_size: int = Field(2, ge=1, le=64, description="images in a batch there")
    network_batches: int = Field(1, ge=0, le=10_000, description="batches that each of them is asked for")
    network_steps: int = Field(6, ge=2, le=1_000_000, description="gradients an attack may ask for there")

    paper: ClassVar[dict[str, Any]] = {
        "network": "cifar10-resnet20+head",
        "judge": "cifar10-resnet56",
        "dataset": "cifar10",
        "sizes": [1, 2, 4, 8],
        "groups": 4,
        "together": 4,
        "steps": 500,
        "networks": ["cifar10-resnet56+head", "cifar10-resnet20+head", SMALL],
        "network_size": 4,
        "network_batches": 4,
        "network_steps": 500,
    }

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


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    sizes = ", ".join(map(str, parameters.sizes))
    return (
        f"{parameters.groups * max(parameters.sizes)} random and as many vulnerable images in batches of {sizes}, "
        f"{parameters.steps} steps, {data.title(parameters.dataset)}, {parameters.network}"
    )


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: the same images in batches of every size, and batches from several networks."""
    common = parameters.model_dump(include={"judge", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    sizes = parameters.model_dump(include={"network", "sizes", "steps"}) | {"groups": parameters.together}
    networks = {"networks": parameters.networks, "size": parameters.network_size, "steps": parameters.network_steps}
    few = parameters.network_batches
    return [
        *({"part": "sizes", "first": n} | sizes | common for n in range(0, parameters.groups, parameters.together)),
        *([{"part": "networks", "first": 0, "batches": few} | networks | common] if few else []),
    ]


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Restore some images in batches of every size, or some batches from every network."""
    return _sizes(**inputs) if part == "sizes" else _networks(**inputs)


def _sizes(
    network: str,
    judge: str,
    dataset: str,
    sizes: list[int],
    first: int,
    groups: int,
    steps: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    scene, most = Scene(network, judge, dataset, seed, device), max(sizes)
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        lengths = gradient_norms(scene.model, scene.private) if kind == "vulnerable" else None
        own = chosen(scene.private, most, first + groups, seed, lengths)[first:]
        for size in sizes:
            case = Case(scene, own.reshape(-1, size), first * most // size)
            found = case.restored(named(kind, size), scaled(ATTACK, steps), exact=True)
            if size == sizes[0]:
                found = [*case.private(), *case.floors(), *found]
            rows += [{"kind": kind, "batch_size": size, "labels": float(case.counted.mean())} | row for row in found]
    return [*rows, *gained(rows, pairs(sizes), most, seed)]


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


def _networks(networks: list[str], steps: int, **inputs: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in networks:
        case = drawn(name, **inputs)
        private = case.scene.private
        with torch.no_grad():
            said = case.model(data.normalise(private.images).to(case.device)).argmax(dim=1).cpu()
        found = case.restored(name, scaled(ATTACK, steps), exact=True)
        if name == networks[0]:
            found = [*case.private(), *case.floors(), *found]
        accuracy = 100 * float((said == private.labels).double().mean())
        rows += [{"accuracy": accuracy} | row for row in found]
    return [*rows, *gained(rows, list(itertools.pairwise(networks)), inputs["size"], inputs["seed"])]


def sizes_table(record: Record) -> pd.DataFrame:
    """Return Figures 5 to 8 as a table: a line a size of batch for random and for vulnerable images, and the floors."""
    most, seed = max(record.parameters["sizes"]), record.parameters["seed"]
    lines = []
    for (kind, run), images in rows_of(record, "image", "sizes").groupby(["kind", "run"], sort=False):
        size = run if run in FLOORS else f"{images['batch_size'].iloc[0]:.0f}"
        labels = "–" if run in FLOORS else f"{100 * images['labels'].astype(float).mean():.0f}"
        lines.append({"images": kind, "B, or floor": size} | quality_line(images, most, seed) | {"labels, %": labels})
    return pd.DataFrame(lines)


def networks_table(record: Record) -> pd.DataFrame:
    """Return Table 3: a line a network, the best features first, and the paper's line beside it."""
    parameters = record.parameters
    names = parameters["networks"]
    lines = []
    for run, images in rows_of(record, "image", "networks").groupby("run", sort=False):
        own = quality_line(images, parameters["network_size"], parameters["seed"])
        known = run in names
        stated = dict(zip(names, PUBLISHED, strict=False)).get(str(run), "–") if len(names) == len(PUBLISHED) else "–"
        accuracy = f"{images['accuracy'].iloc[0]:.1f}" if known else "–"
        del own["IIP, %"], own["by the attacked network, %"]
        lines.append({"network": run, "accuracy, %": accuracy} | own | {"paper: FFT2D / PSNR / LPIPS": stated})
    return pd.DataFrame(lines)


def gains(record: Record, part: str = "sizes") -> pd.DataFrame:
    """Return what each pair of runs differs by, over all images of a part, and whether that is decided."""
    parameters = record.parameters
    images = rows_of(record, "image", part)
    if part == "sizes":
        return gain_table(images, pairs(parameters["sizes"]), max(parameters["sizes"]), parameters["seed"])
    own = list(itertools.pairwise(parameters["networks"]))
    # Who tells the images apart may be one of the networks itself.
    return gain_table(images, own, parameters["network_size"], parameters["seed"], ("psnr", "lpips"))


def figure_images(record: Record, kind: str = "random") -> Figure:
    """Draw the first images, the private ones above the floors and what batches of every size gave."""
    return strips(record, "sizes", kind=kind)


def figure_networks(record: Record) -> Figure:
    """Draw the first images of Table 3, the private ones above the floors and what every network gave."""
    return strips(record, "networks")


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images, and PSNR, over the size of the batch, with what a bootstrap leaves open."""
    most, seed = max(record.parameters["sizes"]), record.parameters["seed"]
    images = rows_of(record, "image", "sizes")
    sizes = sorted(record.parameters["sizes"])
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
