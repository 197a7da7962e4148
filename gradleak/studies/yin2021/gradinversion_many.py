"""GradInversion on many images and with many steps: batches of up to 48, pictures of ImageNet, and peeling

yin2021, Figures 6 to 8, and beyond: with more classes than samples, the last layer's gradient separates all samples.
Single images and batches of four are matched in many steps, and single images are peeled wherever this is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from matplotlib.figure import Figure
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, models
from gradleak.images import GradInversion, peel
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.show.summary import Summary
from gradleak.studies import Experiment, Record, Sees, setting
from gradleak.studies.shared import peeled, restored_batches
from gradleak.studies.shared.attacked_networks import Adapted
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.deep_networks import SMALL, made
from gradleak.studies.shared.last_layers import MEAN, STD, TRAINED
from gradleak.studies.shared.restored_batches import KINDS, Case, OnBatches, Rows, Scene, gained, named, restored_images
from gradleak.studies.shared.shown_batches import draw_sizes, rows_of, strips

PLACE = "Figures 6 to 8, and beyond"
# The attack with the batch norm statistics of each batch, and the same with the feature and error of every sample.
ATTACKS: dict[str, GradInversion] = {
    "batch alone": SETTINGS["gradinversion+pyramid"],
    "features": SETTINGS["gradinversion+features"],
}
ALONE, FEATURES = ATTACKS
MATCHED, PEELED, EITHER = "matched", "peeled", "peeled, else matched"
# The pictures of ImageNet, and the small pictures on which the network that identifies them is trained.
PICTURES, SHRUNK = "imagenet-sample", "tinyimagenet32"


class Parameters(restored_batches.Parameters):
    """Parameters of the page: batches of a small network and of ImageNet pictures, then batches of a trained network.

    `network`, `judge`, `dataset`, `steps` and the fields below them belong to the trained network.
    """

    small_dataset: str = setting(paper="tinyimagenet32")
    small_sizes: list[int] = setting(paper=[16, 24, 48], smallest=[2], min_length=1)
    small_groups: int = setting(paper=2, ge=1, le=10_000)
    small_steps: int = setting(paper=200, smallest=2, ge=2, le=1_000_000)
    picture_sizes: list[int] = setting(paper=[1, 2, 4])
    pictures: int = setting(ge=1, le=1000)
    side: int = setting(ge=32, le=224)
    picture_steps: int = setting(paper=120, ge=2, le=1_000_000)
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
        """The names of all networks that see `dataset`."""
        return [self.network, self.judge, *self.also]

    def sees(self) -> list[Sees]:
        """Return the networks that are built here, with their images."""
        return [Sees(SMALL, self.small_dataset, learns=self.small_dataset), *super().sees()]

    @model_validator(mode="after")
    def _divided(self) -> Self:
        restored_batches.check_sizes(self.small_sizes, max(self.small_sizes))
        restored_batches.check_sizes(self.picture_sizes, self.pictures)
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield a small network's batches, ImageNet pictures, then a few images or batches of a trained network each.

        The trained network's images are matched and peeled alone, then matched in batches. Other networks' images are
        peeled alone.
        """
        small = {"sizes": self.small_sizes, "groups": self.small_groups, "steps": self.small_steps}
        yield SmallImages.of(self, dataset=self.small_dataset, **small)
        if self.picture_sizes:
            yield ImageNetPictures.of(self, sizes=self.picture_sizes, steps=self.picture_steps)
        kinds: list[tuple[type[OnBatches], int, str]] = [
            (SingleImages, self.singles, self.network),
            (MatchedBatches, self.batches, self.network),
            *((PeeledImages, self.also_singles, network) for network in self.also),
        ]
        for kind, number, network in kinds:
            for first in range(0, number, self.together):
                yield kind.of(self, network=network, first=first, batches=min(self.together, number - first))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return (
            f"batches of {', '.join(map(str, self.small_sizes))}, {self.small_steps} steps, "
            f"{data.title(self.small_dataset)}; {self.singles} images alone and {self.batches} batches of {self.size}, "
            f"{self.steps} steps, {data.title(self.dataset)}, {self.network}"
        )


class SmallImages(Experiment, part="batches"):
    """A dataset's images in batches of every size, with and without their features."""

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
        random, vulnerable = (
            [row | {"first": 0} for row in scene.in_batches(kind, self.groups, most, self.sizes, ATTACKS, self.steps)]
            for kind in KINDS
        )
        every = random + vulnerable
        pairs = [
            *featured_pairs(self.sizes, ALONE),
            *(
                (named("random", min(self.sizes), attack), named("random", most, attack))
                for attack in ATTACKS
                if min(self.sizes) < most
            ),
            *((named("vulnerable", size, ALONE), named("random", size, ALONE)) for size in sorted(self.sizes)),
        ]
        # Each kind of image has its own baselines, so the mean colour is compared with random images only.
        return [
            *every,
            *gained(every, pairs, most, self.seed),
            *gained(random, featured_pairs(self.sizes, "mean colour"), most, self.seed),
        ]


class ImageNetPictures(Experiment, part="pictures"):
    """ImageNet pictures in batches of every size, with and without their features."""

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
        judge = nn.Sequential(nn.AdaptiveAvgPool2d(32), made(SMALL, SHRUNK, self.seed)).eval()
        scene = Scene(private, model, judge, self.seed, self.device)
        rows = scene.in_batches(KINDS[0], 1, self.pictures, self.sizes, ATTACKS, self.steps)
        rows = [row | {"first": 0} for row in rows]
        pairs = featured_pairs(self.sizes, ALONE)
        return [*rows, *gained(rows, pairs + featured_pairs(self.sizes, "mean colour"), self.pictures, self.seed)]


class SingleImages(OnBatches, part="one"):
    """Images alone, matched and peeled."""

    front: int
    steps: int

    def run(self) -> Rows:
        """Restore the images by matching, by peeling, and by peeling with matching as a fallback."""
        case = self.drawn(1)
        found = case.attacked(ATTACKS[FEATURES], self.steps)
        matched = data.denormalise(found.images).cpu()[case.order]
        rows, nearest = _peeled(case, self.front)
        either = torch.where(nearest.isnan().flatten(1).any(dim=1)[:, None, None, None], matched, nearest)
        restored = {MATCHED: matched, PEELED: nearest, EITHER: either}
        measured = [row for name, images in restored.items() for row in case.measured(name, images)]
        return [*case.private(), *measured, *rows]


class MatchedBatches(OnBatches, part="many"):
    """Batches of several images, matched."""

    size: int
    steps: int

    def run(self) -> Rows:
        """Restore the batches."""
        case = self.drawn(self.size)
        return [*case.private(), *case.judged(MATCHED, case.attacked(ATTACKS[FEATURES], self.steps))]


class PeeledImages(OnBatches, part="also"):
    """Images alone, peeled on another network."""

    front: int

    def run(self) -> Rows:
        """Peel the images."""
        case = self.drawn(1)
        rows, nearest = _peeled(case, self.front)
        return [*case.private(), *case.measured(PEELED, nearest), *rows]


def _peeled(case: Case, front: int) -> tuple[Rows, Tensor]:
    """Return the rows of images and layers, and the nearest images in [0, 1], NaN where there are none."""
    rows: Rows = []
    nearest = []
    for number, leak, image in zip(case.numbers, case.leaks, case.truth, strict=True):
        found, seconds = timed(peel, leak, prior="onehot", steps=front, seed=case.seed)
        nearest.append(data.denormalise(found.nearest).float().cpu())
        layers = sum(not layer.reason for layer in found.layers)
        status = {"status": found.status, "reason": found.reason, "layers": layers, "matched": found.matched}
        result = {"what": "peeled", **status, "opened": layers > 0, "cpu_seconds": seconds}
        own: Rows = [result, *peeled.layer_rows(case.model, found, image[None].double())]
        rows += [row | {"run": PEELED, "image": number} for row in own]
    return rows, torch.cat(nearest)


def as_imagenet(x: Tensor) -> Tensor:
    """Normalise inputs that `data.normalise` made as networks for ImageNet expect them."""
    return (data.denormalise(x) - MEAN) / STD


def featured_pairs(sizes: list[int], other: str) -> list[tuple[str, str]]:
    """Return the pairs that compare the attack with features on random images with another attack or a baseline."""
    return [
        (named("random", size, FEATURES), named("random", size, other) if other in ATTACKS else other)
        for size in sorted(sizes)
    ]


def summary(record: Record) -> Summary:
    """Return the finding: large batches of many classes do not protect, nor does a trained ResNet protect an image."""
    known = claims.judgements(record)
    found, plain, peeled_first, matched = (known[name] for name in ("gm-found", "gm-iip", "gl-one", "gl-one-matched"))
    size = max(record.stated(Parameters).small_sizes)
    images = rows_of(record, "image", "batches")
    identified = images[images["run"] == named("random", size, FEATURES)]["identified"]
    rows = record.frame().fillna({"dataset": PICTURES})
    built = rows["part"].map({SmallImages.part: SMALL, ImageNetPictures.part: TRAINED})
    return Summary(
        f"Batches of {size} do not protect: with the features of the last layer's gradient, {identified.sum():.0f} of "
        f"{len(identified)} random images are identified, without them {plain.cases}; from a trained ResNet, linear "
        f"equations restore single images with {peeled_first.text}, many steps of matching with {matched.text}.",
        true=bool(found.agrees and peeled_first.agrees)
        and 100 * identified.mean() > (plain.value or 0)
        and (peeled_first.value or 0) > (matched.value or 0) + 10,
        claim="gm-iip",
        what="random images identified by another network, batches of 48, without features (small network, "
        "Tiny ImageNet)",
        figure=figure_images,
        of="images",
        outcomes=restored_images(record, rows, network=rows["network"].fillna(built)),
    )


def peeled_images(record: Record) -> str:
    """Return in words how many single images of each network were restored by peeling."""
    images = record.frame().query(f"what == 'image' and run == '{PEELED}'").astype({"psnr": float})
    found = []
    for network, own in images.groupby("network", sort=False)["psnr"]:
        back = own[np.isfinite(own)]
        median = f" (median PSNR {back.median():.0f} dB)" if len(back) else ""
        found.append(f"{len(back)} of {len(own)} on {network}{median}")
    return f"Images restored by peeling: {'; '.join(found)}."


def figure_images(record: Record, part: str = "batches") -> Figure:
    """Draw the first images of a part: the private ones above those of the baselines and of every attack."""
    return strips(record, part, **({"kind": "random"} if part in ("batches", "pictures") else {}))


def figure_sizes(record: Record) -> Figure:
    """Draw the share of identified images (%) and the PSNR (dB) for each batch size, a colour per kind and attack."""
    return draw_sizes(record, "batches", "identified", "psnr")
