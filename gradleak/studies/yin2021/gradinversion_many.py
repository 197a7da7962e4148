"""Batches of up to 48 where classes are many, and pictures of ImageNet

yin2021, Figures 6 to 8, and beyond: where there are more classes than samples, the last layer tells every sample apart.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, models, studies
from gradleak.images import GradInversion
from gradleak.images.gradinversion.settings import preset
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.deep_networks import SMALL, made, pooled
from gradleak.studies.shared.last_layers import MEAN, STD
from gradleak.studies.shared.restored_batches import (
    FLOORS,
    Case,
    Scene,
    chosen,
    gained,
    gradient_norms,
    scaled,
)
from gradleak.studies.shared.shown_batches import draw_sizes, gain_table, quality_line, rows_of, strips

PLACE = "Figures 6 to 8, and beyond"
SMALLEST: dict[str, Any] = {"steps": 2, "sizes": [2]}

KINDS = ("random", "vulnerable")
# The attack with every batch's own statistics, and the same with every sample's own feature and error.
ATTACKS: dict[str, GradInversion] = {
    "batch alone": preset("gradinversion+pyramid"),
    "features": preset("gradinversion+features"),
}
ALONE, FEATURES = ATTACKS
PICTURES = "imagenet-sample"
# Small pictures tell the large ones apart: the judge of ImageNet's has learned these.
SHRUNK = "tinyimagenet32"


class Parameters(studies.Parameters):
    """What a rerun may change."""

    dataset: str = Field("photos", description="private images, test split")
    sizes: list[int] = Field([2, 4], min_length=1, description="images in a batch; each divides the largest")
    groups: int = Field(1, ge=1, le=10_000, description="groups of as many images as the largest batch, of each kind")
    steps: int = Field(6, ge=2, le=1_000_000, description="gradients an attack may ask for")
    picture_sizes: list[int] = Field([], description="ImageNet pictures in a batch; each divides all")
    pictures: int = Field(4, ge=1, le=1000, description="ImageNet pictures in all, no class twice")
    side: int = Field(96, ge=32, le=224, description="pixels of such a picture's side")
    picture_steps: int = Field(6, ge=2, le=1_000_000, description="gradients an attack on them may ask for")

    paper: ClassVar[dict[str, Any]] = {
        "dataset": "tinyimagenet32",
        "sizes": [16, 24, 48],
        "groups": 2,
        "steps": 200,
        "picture_sizes": [1, 2, 4],
        "picture_steps": 120,
    }

    def sees(self) -> list[Sees]:
        """Return the network that is built here, and the images that it is shown."""
        return [Sees(SMALL, self.dataset, learns=self.dataset)]

    @model_validator(mode="after")
    def _divided(self) -> Self:
        for sizes, whole in ((self.sizes, max(self.sizes)), (self.picture_sizes, self.pictures)):
            if any(size < 1 or whole % size for size in sizes):
                raise ValueError(f"every size of a batch divides the {whole} images; got {sizes}")
        return self


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset, *([PICTURES, SHRUNK] if parameters.picture_sizes else [])]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    sizes = ", ".join(map(str, parameters.sizes))
    told = (
        f"{parameters.groups * max(parameters.sizes)} random and as many vulnerable images in batches of {sizes}, "
        f"{parameters.steps} steps, {data.title(parameters.dataset)}"
    )
    if not parameters.picture_sizes:
        return told
    return f"{told}; {parameters.pictures} ImageNet pictures of {parameters.side} pixels, {parameters.picture_steps}"


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a small network's batches of every size, and ImageNet pictures."""
    common = {"seed": parameters.seed, "device": studies.resolve_device(parameters.device)}
    small = parameters.model_dump(include={"dataset", "sizes", "groups", "steps"})
    shown = {"pictures": parameters.pictures, "side": parameters.side, "steps": parameters.picture_steps}
    large = [{"part": "pictures", "sizes": parameters.picture_sizes} | shown] if parameters.picture_sizes else []
    return [part | common for part in ({"part": "batches"} | small, *large)]


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Restore a dataset's images, or pictures, in batches of every size, with and without their features."""
    return _batches(**inputs) if part == "batches" else _pictures(**inputs)


def _batches(dataset: str, sizes: list[int], groups: int, steps: int, seed: int, device: str) -> list[dict[str, Any]]:
    scene, most = Scene(SMALL, SMALL, dataset, seed, device), max(sizes)
    # A network of the same kind that began elsewhere: the attacked one's features are a target.
    other = made(SMALL, dataset, seed + 1)
    scene.judges["identified"] = other, pooled(other, scene.private.images)
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        lengths = gradient_norms(scene.model, scene.private) if kind == "vulnerable" else None
        places = chosen(scene.private, most, groups, seed, lengths)
        rows += [{"kind": kind} | row for row in _restored(scene, places, sizes, steps, kind)]
    # Each kind has floors of its own.
    random = [row for row in rows if row["kind"] == KINDS[0]]
    return [*rows, *gained(rows, pairs(sizes), most, seed), *gained(random, colour_pairs(sizes), most, seed)]


def _pictures(pictures: int, side: int, sizes: list[int], steps: int, seed: int, device: str) -> list[dict[str, Any]]:
    scene = Pictures(side, seed, device)
    places = chosen(scene.private, pictures, 1, seed)
    rows = [{"kind": KINDS[0]} | row for row in _restored(scene, places, sizes, steps, KINDS[0])]
    return [*rows, *gained(rows, picture_pairs(sizes), pictures, seed)]


def _restored(scene: Scene, places: Tensor, sizes: list[int], steps: int, kind: str) -> list[dict[str, Any]]:
    """Return the rows of the same images in batches of every size, by every attack; the floors once."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        case = Case(scene, places.reshape(-1, size))
        told = [] if rows else [*case.private(), *case.floors()]
        alone, features = (scaled(settings, steps) for settings in ATTACKS.values())
        plain = case.restored(named(kind, size, ALONE), alone, exact=True)
        # Where no batch's features are found there is nothing to add.
        more = [row | {"run": named(kind, size, FEATURES)} for row in plain]
        if case.known.there.any():
            more = case.restored(named(kind, size, FEATURES), features, exact=True)
        told += [*plain, *more]
        rows += [{"first": 0, "batch_size": size, "labels": float(case.counted.mean())} | row for row in told]
    return rows


class Pictures(Scene):
    """ImageNet pictures, EfficientNet-Lite0, and a small network that tells them apart as it sees them: small."""

    def __init__(self, side: int, seed: int, device: str) -> None:
        self.seed, self.device = seed, device
        whole = data.load(PICTURES, "test")
        self.private = replace(whole, images=F.interpolate(whole.images, size=(side, side), mode="area"))
        self.model: nn.Module = Shown(models.plain_lite0()).eval()
        small = Small(made(SMALL, SHRUNK, seed)).eval()
        judges = {"identified": small, "identified_by_own": self.model}
        self.judges = {name: (judge, pooled(judge, self.private.images)) for name, judge in judges.items()}
        self.model.to(device)


class Shown(nn.Module):
    """EfficientNet-Lite0, which is shown what `data.normalise` gives."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.body((data.denormalise(x) - MEAN) / STD)
        return out


class Small(nn.Module):
    """A network for images of 32 pixels, which is shown larger ones."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.body(F.interpolate(x, size=(32, 32), mode="area"))
        return out


def named(kind: str, size: int, attack: str) -> str:
    """Return the name of a run."""
    return f"{kind}, B = {size}, {attack}"


def pairs(sizes: list[int]) -> list[tuple[str, str]]:
    """Return which runs are compared: features with none, small batches with large ones, vulnerable with random."""
    few, many = min(sizes), max(sizes)
    random, vulnerable = KINDS
    return [
        *((named(random, size, FEATURES), named(random, size, ALONE)) for size in sorted(sizes)),
        *((named(random, few, attack), named(random, many, attack)) for attack in ATTACKS if few < many),
        *((named(vulnerable, size, ALONE), named(random, size, ALONE)) for size in sorted(sizes)),
    ]


def colour_pairs(sizes: list[int]) -> list[tuple[str, str]]:
    """Return which runs on random images are compared with their mean colours."""
    return [(named(KINDS[0], size, FEATURES), "mean colour") for size in sorted(sizes)]


def picture_pairs(sizes: list[int]) -> list[tuple[str, str]]:
    """Return which runs on pictures are compared: features with none, and both with the mean colour."""
    random = KINDS[0]
    return [*((named(random, size, FEATURES), named(random, size, ALONE)) for size in sizes), *colour_pairs(sizes)]


def table(record: Record, part: str = "batches") -> pd.DataFrame:
    """Return a line a kind of image, size of batch and attack, and the floors."""
    most, seed = _most(record, part), record.parameters["seed"]
    lines = []
    for (kind, run), images in rows_of(record, "image", part).groupby(["kind", "run"], sort=False):
        floor = run in FLOORS
        known = "–" if floor else f"{100 * images['known_feature'].astype(float).mean():.0f}"
        line = {"images": kind, "B, attack, or floor": run if floor else str(run).removeprefix(f"{kind}, ")}
        lines.append(line | quality_line(images, most, seed) | {"features found, %": known})
    return pd.DataFrame(lines)


def _most(record: Record, part: str) -> int:
    """Return how many images are drawn together, of which a bootstrap draws groups."""
    return int(max(record.parameters["sizes"]) if part == "batches" else record.parameters["pictures"])


def gains(record: Record, part: str = "batches") -> pd.DataFrame:
    """Return what each pair of runs differs by, over all images of a part, and whether that is decided."""
    images = rows_of(record, "image", part)
    groups = _most(record, part), record.parameters["seed"]
    if part == "pictures":
        return gain_table(images, picture_pairs(record.parameters["picture_sizes"]), *groups)
    sizes = record.parameters["sizes"]
    random = images[images["kind"] == KINDS[0]]
    compared = (images, pairs(sizes)), (random, colour_pairs(sizes))
    return pd.concat([gain_table(*both, *groups) for both in compared], ignore_index=True)


def figure_images(record: Record, part: str = "batches", kind: str = KINDS[0]) -> Figure:
    """Draw the first images of a part, the private ones above the floors and what batches of every size gave."""
    return strips(record, part, kind=kind)


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images, and PSNR, over the size of the batch, a line a kind and attack."""
    most, seed = _most(record, "batches"), record.parameters["seed"]
    images = rows_of(record, "image", "batches")
    sizes = sorted(record.parameters["sizes"])
    lines = {f"{kind}, {attack}": (kind, partial(named, kind, attack=attack)) for attack in ATTACKS for kind in KINDS}
    columns = {"identified": "IIP by another network, %", "psnr": "PSNR, dB"}
    figure, axes = figures.panels(1, 2, height=3.3)
    for axis, (column, label) in zip(axes[0], columns.items(), strict=True):
        draw_sizes(axis, images, lines, column, sizes, most, seed)
        axis.set_ylabel(label)
    style = {"color": figures.TRUTH, "linestyle": (0, (4, 2)), "linewidth": 1.4}
    axes[0][0].axhline(rows_of(record, "batches", "batches")["chance"].astype(float).iloc[0], label="floor", **style)
    floor = images[(images["run"] == "mean colour") & (images["kind"] == KINDS[0])]["psnr"].astype(float)
    axes[0][1].axhline(floor.mean(), label="floor", **style)
    figures.legend_below(figure, 3)
    return figure


def sharing(record: Record) -> pd.DataFrame:
    """Return in how many batches every sample's feature was found, a line a size of batch."""
    images = rows_of(record, "image", "batches")
    images = images[~images["run"].isin(FLOORS)].drop_duplicates(["kind", "batch_size", "image"])
    lines = []
    for (kind, size), group in images.groupby(["kind", "batch_size"], sort=False):
        side = int(group["batch_size"].iloc[0])
        batches = group.sort_values("image")["known_feature"].astype(float).to_numpy().reshape(-1, side)
        lines.append({"images": kind, "B": f"{size:.0f}", "found": f"{batches.all(axis=1).sum()} of {len(batches)}"})
    return pd.DataFrame(lines)
