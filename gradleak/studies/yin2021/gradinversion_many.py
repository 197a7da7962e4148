"""GradInversion with many classes: batches of up to 48, and pictures of ImageNet

yin2021, Figures 6 to 8, and beyond: with more classes than samples, the last layer's gradient separates all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from gradleak.show.summaries import cells, mean
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.deep_networks import SMALL, made
from gradleak.studies.shared.last_layers import MEAN, STD
from gradleak.studies.shared.outcomes import Outcome, restored_images
from gradleak.studies.shared.restored_batches import (
    FLOORS,
    KINDS,
    Case,
    Rows,
    Scene,
    check_sizes,
    chosen,
    gained,
    marked,
    of_both_kinds,
    scaled,
)
from gradleak.studies.shared.shown_batches import draw_sizes, quality_table, restored, rows_of, strips
from gradleak.studies.yin2021.columns import COLUMNS

PLACE = "Figures 6 to 8, and beyond"
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
        check_sizes(self.sizes, max(self.sizes))
        check_sizes(self.picture_sizes, self.pictures)
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

    def run(self) -> Rows:
        """Restore random images and vulnerable ones, and compare attacks and batch sizes."""
        # Another network identifies images, because the attack matches the attacked network's features.
        model, judge = (made(SMALL, self.dataset, self.seed + n) for n in (0, 1))
        scene = Scene(data.load(self.dataset, "test"), model, judge, self.seed, self.device)
        most = max(self.sizes)
        rows = {
            kind: _restored(scene, places, self.sizes, self.steps, kind)
            for kind, places in of_both_kinds(scene, most, self.groups)
        }
        every = [row for own in rows.values() for row in own]
        # Each kind of image has its own baselines, so the mean colour is compared with random images only.
        return [
            *every,
            *gained(every, pairs(self.sizes), most, self.seed),
            *gained(rows[KINDS[0]], colour_pairs(self.sizes), most, self.seed),
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

    def run(self) -> Rows:
        """Restore the pictures, and compare the attacks."""
        whole = data.load(PICTURES, "test")
        private = replace(whole, images=F.interpolate(whole.images, size=(self.side, self.side), mode="area"))
        # A small network identifies the pictures at a reduced size.
        model = Adapted(as_imagenet, models.plain_lite0()).eval()
        judge = Adapted(reduced, made(SMALL, SHRUNK, self.seed)).eval()
        scene = Scene(private, model, judge, self.seed, self.device)
        places = chosen(private, self.pictures, 1, self.seed)
        rows = _restored(scene, places, self.sizes, self.steps, KINDS[0])
        pairs = [(named(KINDS[0], size, FEATURES), named(KINDS[0], size, ALONE)) for size in self.sizes]
        return [*rows, *gained(rows, pairs + colour_pairs(self.sizes), self.pictures, self.seed)]


def _restored(scene: Scene, places: Tensor, sizes: list[int], steps: int, kind: str) -> Rows:
    """Return the rows of the same images in batches of every size, by every attack; baselines only once."""
    rows: Rows = []
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
        rows += marked(found, first=0, batch_size=size, labels=float(case.counted.mean()), kind=kind)
    return rows


class Adapted(nn.Module):
    """A network whose inputs are changed first."""

    def __init__(self, change: Callable[[Tensor], Tensor], body: nn.Module) -> None:
        super().__init__()
        self.change, self.body = change, body

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.body(self.change(x))
        return out


def as_imagenet(x: Tensor) -> Tensor:
    """Normalise inputs that `data.normalise` made as networks for ImageNet expect them."""
    return (data.denormalise(x) - MEAN) / STD


def reduced(x: Tensor) -> Tensor:
    """Reduce images to 32 pixels a side."""
    return F.interpolate(x, size=(32, 32), mode="area")


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


def table(record: Record) -> pd.DataFrame:
    """Return the quality of the restored images, small ones and pictures of ImageNet.

    One row for each kind of image, batch size B and attack, and for each baseline. The last column is the share of
    images whose feature was recovered.
    """
    stated = record.stated(Parameters)
    parts = {
        data.title(stated.dataset): ("batches", max(stated.sizes)),
        "ImageNet pictures": ("pictures", stated.pictures),
    }
    groups = {}
    for name, (part, most) in parts.items():
        images = rows_of(record, "image", part)
        # Each kind of image has its own baselines.
        runs = images["run"].where(~images["run"].isin(FLOORS), images["kind"] + ", " + images["run"])
        groups[name] = images.assign(run=runs), most
    found = cells(COLUMNS, "known_feature", by=lambda column, text: restored(mean(column, text)))
    return quality_table(groups, stated.seed, found)


def figure_images(record: Record, part: str = "batches", kind: str = KINDS[0]) -> Figure:
    """Draw the first images of a part: the private ones above those of the baselines and of every batch size."""
    return strips(record, part, kind=kind)


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images (%) and the PSNR (dB) against the batch size, a line per kind and attack."""
    runs = {f"{kind}, {attack}": (kind, partial(named, kind, attack=attack)) for attack in ATTACKS for kind in KINDS}
    titles = {"identified": "identified by another network (%)", "psnr": "PSNR (dB)"}
    stated = record.stated(Parameters)
    return draw_sizes(record, "batches", sorted(stated.sizes), stated.seed, runs, titles)


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.part("batches")
    found = restored_images(record, rows, network=SMALL, batch=rows["batch_size"].fillna(1).astype(int))
    rows = record.part("pictures")
    sizes = rows["batch_size"].fillna(1).astype(int)
    return found + restored_images(record, rows, network="efficientnet-lite0", batch=sizes)
