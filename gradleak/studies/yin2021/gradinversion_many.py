"""GradInversion with many classes: batches of up to 48, and pictures of ImageNet

yin2021, Figures 6 to 8, and beyond: with more classes than samples, the last layer's gradient separates all samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

import pandas as pd
from matplotlib.figure import Figure
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, models, studies
from gradleak.images import GradInversion
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show.headline import Headline
from gradleak.show.summaries import mean, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.deep_networks import SMALL, made, pooled
from gradleak.studies.shared.last_layers import MEAN, STD
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import (
    FLOORS,
    Case,
    CaseRow,
    Scene,
    chosen,
    gained,
    gradient_norms,
    marked,
    scaled,
)
from gradleak.studies.shared.shown_batches import draw_sizes, gain_table, hundredths, quality, restored, rows_of, strips

PLACE = "Figures 6 to 8, and beyond"
KINDS = ("random", "vulnerable")
# The attack with the batch norm statistics of each batch, and the same with the feature and error of every sample.
ATTACKS: dict[str, GradInversion] = {
    "batch alone": SETTINGS["gradinversion+pyramid"],
    "features": SETTINGS["gradinversion+features"],
}
ALONE, FEATURES = ATTACKS
PICTURES = "imagenet-sample"
# The network that identifies ImageNet pictures is trained on these small pictures.
SHRUNK = "tinyimagenet32"


class Parameters(studies.Parameters):
    """Parameters of the page: batches of small images and of ImageNet pictures, and steps."""

    dataset: str = setting(paper="tinyimagenet32")
    sizes: list[int] = setting(paper=[16, 24, 48], smallest=[2], min_length=1)
    groups: int = setting(paper=2, ge=1, le=10_000)
    steps: int = setting(paper=200, smallest=2, ge=2, le=1_000_000)
    picture_sizes: list[int] = setting(paper=[1, 2, 4])
    pictures: int = setting(ge=1, le=1000)
    side: int = setting(ge=32, le=224)
    picture_steps: int = setting(paper=120, ge=2, le=1_000_000)

    def sees(self) -> list[Sees]:
        """Return the network that is built here, with its images."""
        return [Sees(SMALL, self.dataset, learns=self.dataset)]

    @model_validator(mode="after")
    def _divided(self) -> Self:
        for sizes, whole in ((self.sizes, max(self.sizes)), (self.picture_sizes, self.pictures)):
            if any(size < 1 or whole % size for size in sizes):
                raise ValueError(f"every batch size must divide the {whole} images; got {sizes}")
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield a small network's batches of every size, then ImageNet pictures."""
        yield SmallImages.of(self)
        if self.picture_sizes:
            yield ImageNetPictures.of(self, sizes=self.picture_sizes, steps=self.picture_steps)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        sizes = ", ".join(map(str, self.sizes))
        small = (
            f"{self.groups * max(self.sizes)} random and as many vulnerable images in batches of {sizes}, "
            f"{self.steps} steps, {data.title(self.dataset)}"
        )
        if not self.picture_sizes:
            return small
        return f"{small}; {self.pictures} ImageNet pictures of {self.side} pixels, {self.picture_steps} steps"


class SmallImages(Experiment):
    """A dataset's images in batches of every size, with and without their features."""

    part: ClassVar[str] = "batches"
    dataset: str
    sizes: list[int]
    groups: int
    steps: int

    def run(self) -> list[CaseRow]:
        """Restore random images and vulnerable ones, and compare attacks and batch sizes."""
        scene, most = Scene(SMALL, SMALL, self.dataset, self.seed, self.device), max(self.sizes)
        # Another network identifies images, because the attack matches the attacked network's features.
        other = made(SMALL, self.dataset, self.seed + 1)
        scene.judges["identified"] = other, pooled(other, scene.private.images)
        rows: list[CaseRow] = []
        for kind in KINDS:
            lengths = gradient_norms(scene.model, scene.private) if kind == "vulnerable" else None
            places = chosen(scene.private, most, self.groups, self.seed, lengths)
            rows += marked(_restored(scene, places, self.sizes, self.steps, kind), kind=kind)
        # Each kind of image has its own baselines, so the mean colour is compared with random images only.
        random = [row for row in rows if row.kind == KINDS[0]]
        return [
            *rows,
            *gained(rows, pairs(self.sizes), most, self.seed),
            *gained(random, colour_pairs(self.sizes), most, self.seed),
        ]


class ImageNetPictures(Experiment):
    """ImageNet pictures in batches of every size, with and without their features."""

    part: ClassVar[str] = "pictures"
    pictures: int
    side: int
    sizes: list[int]
    steps: int

    def reads(self) -> list[str]:
        """Return the dataset of the pictures, and the training set of the network that identifies them."""
        return [PICTURES, SHRUNK]

    def run(self) -> list[CaseRow]:
        """Restore the pictures, and compare the attacks."""
        scene = Pictures(self.side, self.seed, self.device)
        places = chosen(scene.private, self.pictures, 1, self.seed)
        rows = marked(_restored(scene, places, self.sizes, self.steps, KINDS[0]), kind=KINDS[0])
        return [*rows, *gained(rows, picture_pairs(self.sizes), self.pictures, self.seed)]


def _restored(scene: Scene, places: Tensor, sizes: list[int], steps: int, kind: str) -> list[CaseRow]:
    """Return the rows of the same images in batches of every size, by every attack; baselines only once."""
    rows: list[CaseRow] = []
    for size in sizes:
        case = Case(scene, places.reshape(-1, size))
        found = [] if rows else [*case.private(), *case.floors()]
        alone, features = (scaled(settings, steps) for settings in ATTACKS.values())
        plain = case.restored(named(kind, size, ALONE), alone, exact=True)
        # Without recovered features both attacks are the same.
        more = marked(plain, run=named(kind, size, FEATURES))
        if case.known.there.any():
            more = case.restored(named(kind, size, FEATURES), features, exact=True)
        found += [*plain, *more]
        rows += marked(found, first=0, batch_size=size, labels=float(case.counted.mean()))
    return rows


class Pictures(Scene):
    """ImageNet pictures, EfficientNet-Lite0, and a small network that identifies the pictures at a reduced size."""

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
    """EfficientNet-Lite0 for inputs that were normalised by `data.normalise`."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.body((data.denormalise(x) - MEAN) / STD)
        return out


class Small(nn.Module):
    """A network for images of 32 pixels that reduces larger images to this size."""

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
    """Return the pairs of runs to compare.

    These are attacks with and without features, the smallest batches with the largest, and vulnerable images with
    random ones.
    """
    few, many = min(sizes), max(sizes)
    random, vulnerable = KINDS
    return [
        *((named(random, size, FEATURES), named(random, size, ALONE)) for size in sorted(sizes)),
        *((named(random, few, attack), named(random, many, attack)) for attack in ATTACKS if few < many),
        *((named(vulnerable, size, ALONE), named(random, size, ALONE)) for size in sorted(sizes)),
    ]


def colour_pairs(sizes: list[int]) -> list[tuple[str, str]]:
    """Return the pairs that compare runs on random images with their mean colours."""
    return [(named(KINDS[0], size, FEATURES), "mean colour") for size in sorted(sizes)]


def picture_pairs(sizes: list[int]) -> list[tuple[str, str]]:
    """Return the pairs of runs on pictures: with and without features, and features with the mean colour."""
    random = KINDS[0]
    return [*((named(random, size, FEATURES), named(random, size, ALONE)) for size in sizes), *colour_pairs(sizes)]


def headline(record: Record) -> Headline:
    """Return the finding: with many classes, large batches do not protect an image."""
    known = claims.judgements(record)
    found, plain = known["gm-found"], known["gm-iip"]
    size = max(record.stated(Parameters).sizes)
    images = rows_of(record, "image", "batches")
    identified = images[images["run"] == named(KINDS[0], size, FEATURES)]["identified"]
    return Headline(
        f"On a small network with many classes even batches of {size} do not protect: the last layer's gradient gives "
        f"the features of {found.text} of the images; with these features another network identifies "
        f"{identified.sum():.0f} of {len(identified)} random images, and without them {plain.cases}.",
        true=bool(found.agrees) and 100 * float(identified.mean()) > (plain.value or 0),
        claim="gm-iip",
        what="random images identified by another network, batches of 48, without features (small network, "
        "Tiny ImageNet)",
        figure=figure_images,
        of="images",
    )


def table(record: Record, part: str = "batches") -> pd.DataFrame:
    """Return the quality of the restored images of a part.

    One row for each kind of image, batch size B and attack, and for each baseline. The last column is the share of
    images whose feature was recovered (%).
    """
    images, stated = rows_of(record, "image", part), record.stated(Parameters)
    runs = [run.removeprefix(f"{kind}, ") for kind, run in zip(images["kind"], images["run"], strict=True)]
    return summary(
        images.assign(shown=runs),
        {"kind of image": "kind", "batch size and attack, or floor": "shown"},
        quality(images, _most(stated, part), stated.seed)
        | {"features found (%)": restored(mean("known_feature", hundredths))},
    )


def _most(stated: Parameters, part: str) -> int:
    """Return the number of images in each group that the bootstrap resamples."""
    return max(stated.sizes) if part == "batches" else stated.pictures


def gains(record: Record, part: str = "batches") -> pd.DataFrame:
    """Return the mean differences between pairs of runs over all images of a part, one row for each pair."""
    images, stated = rows_of(record, "image", part), record.stated(Parameters)
    groups = _most(stated, part), stated.seed
    if part == "pictures":
        return gain_table(images, picture_pairs(stated.picture_sizes), *groups)
    random = images[images["kind"] == KINDS[0]]
    compared = (images, pairs(stated.sizes)), (random, colour_pairs(stated.sizes))
    return pd.concat([gain_table(*both, *groups) for both in compared], ignore_index=True)


def figure_images(record: Record, part: str = "batches", kind: str = KINDS[0]) -> Figure:
    """Draw the first images of a part: the private ones above those of the baselines and of every batch size."""
    return strips(record, part, kind=kind)


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images (%) and the PSNR (dB) against the batch size, a line per kind and attack."""
    images, stated = rows_of(record, "image", "batches"), record.stated(Parameters)
    most, sizes = _most(stated, "batches"), sorted(stated.sizes)
    runs = {f"{kind}, {attack}": (kind, partial(named, kind, attack=attack)) for attack in ATTACKS for kind in KINDS}
    chance = rows_of(record, "batches", "batches")["chance"].astype(float).iloc[0]
    colour = select(images, run="mean colour", kind=KINDS[0])["psnr"].astype(float).mean()
    shown = {"identified": ("identified by another network (%)", chance), "psnr": ("PSNR (dB)", colour)}
    return draw_sizes(images, runs, shown, floor="chance, or mean colour", sizes=sizes, most=most, seed=stated.seed)


def sharing(record: Record) -> pd.DataFrame:
    """Return the number of batches in which every sample's feature was recovered; one row for each batch size B."""
    images = rows_of(record, "image", "batches")
    images = images[~images["run"].isin(FLOORS)].drop_duplicates(["kind", "batch_size", "image"])
    lines = []
    for (kind, size), group in images.groupby(["kind", "batch_size"], sort=False):
        side = int(group["batch_size"].iloc[0])
        batches = group.sort_values("image")["known_feature"].astype(float).to_numpy().reshape(-1, side)
        lines.append(
            {
                "kind of image": kind,
                "batch size": f"{size:.0f}",
                "batches with all features": f"{batches.all(axis=1).sum()} of {len(batches)}",
            }
        )
    return pd.DataFrame(lines)


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.part("batches")
    found = restored_images(record, rows, network=SMALL, batch=rows["batch_size"].fillna(1).astype(int))
    rows = record.part("pictures")
    sizes = rows["batch_size"].fillna(1).astype(int)
    return found + restored_images(record, rows, network="efficientnet-lite0", batch=sizes)
