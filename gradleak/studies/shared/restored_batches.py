"""Private batches that are restored from a deep network's gradient: what is sent, what comes out, and its floors."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from gradleak import augment, data, metrics, studies
from gradleak.images import GradInversion, Reconstruction, match, observe_statistics, restore_batches
from gradleak.images.gradinversion.attack import Known, known_of
from gradleak.images.presets import preset as published
from gradleak.leak import observe
from gradleak.runs.fitting import Sees
from gradleak.studies.shared.deep_networks import NAMES, SMALL, made, pooled
from gradleak.studies.shared.mosaics import packed

FLOORS = ("noise", "unrelated", "mean colour")
AVERAGED = ", averaged"
# Images side by side in a strip, and how many times LPIPS sees them enlarged.
SHOWN, ENLARGED = 8, 4
# The least share of `steps` that warms up, in the published schedule: 50 of 20,000.
PRINTED_WARMUP = 50 / 20_000
# Draws of a bootstrap, and what makes a measure's difference a gain: in dB, in points, in per cent.
DRAWS = 4000
# Images whose gradients are taken as one program.
TOGETHER = 32
GAINS = {"psnr": 1.0, "ssim": 1.0, "lpips": -1.0, "identified": 100.0}


def check_together(together: int, whole: int, name: str, *, least: int) -> None:
    """Raise a clear error if so many batches or groups (`name`) cannot be restored `together` at a time."""
    if whole % together:
        fitting = [n for n in range(least, whole + 1) if whole % n == 0]
        raise ValueError(
            f"'together' must divide '{name}'; got {together} and {whole}: "
            f"take together from {fitting}, or {name} a multiple of {together}"
        )


class Parameters(studies.Parameters):
    """What a rerun of every page of restored batches may change."""

    network: str = Field(SMALL, description=f"the network that is attacked: {', '.join(NAMES)}")
    judge: str = Field(SMALL, description="the network whose features tell images apart")
    dataset: str = Field("photos", description="private images, test split")

    # How many channels the page's attacks take, where their presets bound colours.
    channels: ClassVar[int] = 0

    @property
    def every(self) -> list[str]:
        """The names of all networks."""
        return [self.network, self.judge]

    def sees(self) -> list[Sees]:
        """Return the network that is built here, and the images that it is shown."""
        return [Sees(SMALL, self.dataset, learns=self.dataset, channels=self.channels)] if SMALL in self.every else []

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.every:
            if name not in NAMES:
                raise ValueError(f"'{name}' is none of the networks: {', '.join(NAMES)}")
            if name != SMALL and self.dataset != "cifar10":
                raise ValueError(f"'{name}' knows CIFAR-10's classes, and is shown '{self.dataset}'")
        return self


class Scene:
    """A dataset, the network that is attacked, and those that are asked which image a restored one shows."""

    def __init__(self, network: str, judge: str, dataset: str, seed: int, device: str) -> None:
        self.seed, self.device = seed, device
        self.private = data.load(dataset, "test")
        self.model = made(network, dataset, seed)
        # Who is asked is another network, for the attacked one's features may be a target. It stays on the CPU.
        judges = {"identified": made(judge, dataset, seed), "identified_by_own": copy.deepcopy(self.model)}
        self.judges: dict[str, tuple[nn.Module, Tensor]] = {
            name: (one, pooled(one, self.private.images)) for name, one in judges.items()
        }
        self.model.to(device)


class Case:
    """Private batches of a scene, what is sent of them, and what is no reconstruction of them."""

    def __init__(self, scene: Scene, places: Tensor, first: int = 0) -> None:
        """Take the images at `places` (N, B) of the test split as N batches, numbered from `first` on."""
        private = scene.private
        self.scene, self.seed, self.device, self.size = scene, scene.seed, scene.device, places.shape[1]
        self.model, self.judges = scene.model, scene.judges
        self.places = places.flatten()
        self.truth, labels = private.images[self.places], private.labels[self.places]
        self.numbers = range(first * self.size, (first + len(places)) * self.size)
        inputs = data.normalise(self.truth).to(self.device)
        parts = list(zip(inputs.split(self.size), labels.to(self.device).split(self.size), strict=True))
        self.leaks = [observe(self.model, *part) for part in parts]
        self.statistics = [observe_statistics(self.model, part) for part, _ in parts]
        self.known: Known = known_of(self.leaks, "recovered")
        hot = augment.one_hot(labels, private.classes)
        self.order = torch.cat(
            [
                n * self.size + metrics.match_batch(own.cpu(), theirs)
                for n, (own, theirs) in enumerate(zip(self.known.labels, hot.split(self.size), strict=True))
            ]
        )
        self.right = (self.known.labels.flatten(0, 1).cpu()[self.order] * hot).sum(dim=1) > 0.5
        counted = known_of(self.leaks, "counted").labels.sum(dim=1).cpu()
        sent = torch.stack([part.sum(dim=0) for part in hot.split(self.size)])
        self.counted = metrics.count_overlap(counted, sent)
        with torch.no_grad():
            self.loud = (self.model(inputs).softmax(dim=1).cpu() - hot).norm(dim=1)
        self.colours = self.truth.mean(dim=(2, 3), keepdim=True).expand_as(self.truth)
        self.others = private.images[unrelated(private, self.places, first * self.size, self.seed)]

    def measured(self, run: str, images: Tensor, losses: Tensor | None = None) -> list[dict[str, Any]]:
        """Return a row an image (N·B, C, H, W), in the batches' order, and a strip of the first ones."""
        images = images.detach().cpu()
        columns = {
            "psnr": metrics.psnr(images, self.truth),
            "ssim": metrics.ssim(images, self.truth),
            "registered": metrics.registered_psnr(images, self.truth),
            "frequencies": metrics.fft2d(images, self.truth),
            "relative_l2": metrics.relative_l2(images, self.truth),
        }
        shown = images.nan_to_num(0.5, 0.5, 0.5).clamp(0, 1)
        for name, (judge, gallery) in self.judges.items():
            features = pooled(judge, shown)
            columns[name] = metrics.identified(features, gallery, self.places)
        lpips = metrics.lpips(enlarged(shown), enlarged(self.truth)).values
        rows = []
        for n, number in enumerate(self.numbers):
            row: dict[str, Any] = {"what": "image", "run": run, "image": number}
            row |= {name: values[n].item() for name, values in columns.items()}
            row |= {"lpips": None if lpips is None else float(lpips[n]), "loud": float(self.loud[n])}
            row |= {"right_label": bool(self.right[n]), "known_feature": bool(self.known.there[n // self.size])}
            row["loss"] = None if losses is None else float(losses[n // self.size])
            rows.append(row)
        picture = packed(shown[:SHOWN], min(SHOWN, len(shown)))
        return [*rows, {"what": "picture", "run": run, "picture": picture}]

    def floors(self) -> list[dict[str, Any]]:
        """Return the rows of what is no reconstruction: noise, another image, and the image's own mean colour."""
        noise = torch.randn(self.truth.shape, generator=torch.Generator().manual_seed(self.seed))
        images = (data.denormalise(noise), self.others, self.colours)
        return [row for name, own in zip(FLOORS, images, strict=True) for row in self.measured(name, own)]

    def restored(self, name: str, settings: GradInversion, *, exact: bool, seeds: int = 1) -> list[dict[str, Any]]:
        """Return the rows of an attack: of its first seed and, where there are several, of their mean."""
        found = restore_batches(
            self.leaks,
            "recovered",
            settings=settings,
            statistics=self.statistics if exact else None,
            seeds=seeds,
            seed=self.seed,
        )
        return self.judged(name, found)

    def of_another(self, name: str, found: Reconstruction) -> list[dict[str, Any]]:
        """Return the rows of a control: what was found for a batch is held against the images of the next one."""
        images = data.denormalise(found.attempts[:, 0].roll(1, dims=0).flatten(0, 1)).cpu()
        return self.measured(name, images[self.order])

    def judged(self, name: str, found: Reconstruction) -> list[dict[str, Any]]:
        """Return the rows of what an attack found: of its first seed and, where there are several, of their mean."""
        attempts = data.denormalise(found.attempts.flatten(0, 2)).cpu().unflatten(0, found.attempts.shape[:3])
        rows = self.measured(name, attempts[:, 0].flatten(0, 1)[self.order], found.losses[:, 0])
        if attempts.shape[1] > 1:
            rows += self.measured(name + AVERAGED, attempts.mean(dim=1).flatten(0, 1)[self.order])
        return rows

    def matched(self, name: str, steps: int) -> list[dict[str, Any]]:
        """Return the rows of a published attack that the matching engine runs, labels recovered as for all others."""
        if name == "DLG":
            own = dict(published("dlg"))
            own["optimizer"] = replace(own["optimizer"], steps=max(1, steps // own["optimizer"].inner))
        else:
            own = dict(published("inverting-gradients"))
            own["optimizer"] = replace(own["optimizer"], steps=steps)
        own["labels"] = self.known.labels.flatten(0, 1)
        return self.judged(name, match(self.leaks, seed=self.seed, **own))

    def private(self) -> list[dict[str, Any]]:
        """Return the private images' strip, and how many labels the paper's rule finds."""
        picture = packed(self.truth[:SHOWN], min(SHOWN, len(self.truth)))
        gallery = len(self.judges["identified"][1])
        labels = {"counted": 100 * float(self.counted.mean()), "recovered": 100 * float(self.right.double().mean())}
        return [
            {"what": "picture", "run": "private", "picture": picture},
            {"what": "batches", "chance": 100 / gallery, "gallery": gallery, "count": len(self.truth)} | labels,
        ]


def chosen(private: data.Dataset, size: int, count: int, seed: int, first: Tensor | None = None) -> Tensor:
    """Return which images make up so many batches (count, size): no class twice in one, classes in rising order.

    A class's images are taken at random, or those with most of `first` (N,) first.
    """
    generator = torch.Generator().manual_seed(seed)
    # Every class's images in an order of their own, so that more batches leave the first ones what they are.
    orders = [
        (members := (private.labels == label).nonzero()[:, 0])[torch.randperm(len(members), generator=generator)]
        for label in range(private.classes)
    ]
    if first is not None:
        orders = [members[first[members].argsort(descending=True)] for members in orders]
    taken = [0] * private.classes
    places = []
    for _ in range(count):
        for label in torch.randperm(private.classes, generator=generator)[:size].sort().values.tolist():
            places.append(orders[label][taken[label] % len(orders[label])])
            taken[label] += 1
    return torch.stack(places).reshape(count, size)


def drawn(network: str, judge: str, dataset: str, size: int, first: int, batches: int, seed: int, device: str) -> Case:
    """Return so many batches of a dataset, from batch `first` on, and a network that is attacked."""
    scene = Scene(network, judge, dataset, seed, device)
    return Case(scene, chosen(scene.private, size, first + batches, seed)[first:], first)


def few(count: int, together: int) -> list[dict[str, int]]:
    """Return the first and the number of the batches of every trial, where so many in all are restored together."""
    return [{"first": n, "batches": min(together, count - n)} for n in range(0, count, together)]


def unrelated(private: data.Dataset, places: Tensor, first: int, seed: int) -> Tensor:
    """Return which images (N,) stand for unrelated ones beside those at `places` (N,): any but these."""
    others = torch.randperm(len(private), generator=torch.Generator().manual_seed(seed + 1))
    others = others[~torch.isin(others, places)]
    return others[(first + torch.arange(len(places))) % len(others)]


def gradient_norms(model: nn.Module, private: data.Dataset) -> Tensor:
    """Return the length of the gradient that each image of a dataset gives by itself (N,)."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(own: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, own, (image.unsqueeze(0),)), label.unsqueeze(0))

    like = next(iter(parameters.values()))
    inputs, labels = data.normalise(private.images).to(like), private.labels.to(like.device)
    lengths = []
    for part in zip(inputs.split(TOGETHER), labels.split(TOGETHER), strict=True):
        slopes = vmap(grad(loss), (None, 0, 0))(parameters, *part)
        lengths.append(torch.stack([own.flatten(1).norm(dim=1) for own in slopes.values()]).norm(dim=0))
    return torch.cat(lengths).cpu()


def enlarged(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) so large that LPIPS tells them apart."""
    return F.interpolate(images, scale_factor=ENLARGED, mode="bilinear")


def scaled(settings: GradInversion, steps: int) -> GradInversion:
    """Return an attack with so many steps, its warm-up as long a part of them."""
    warmup = math.ceil(PRINTED_WARMUP * steps) if settings.warmup else 0
    return replace(settings, steps=steps, warmup=warmup)


def gained(
    rows: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]], size: int, seed: int
) -> list[dict[str, Any]]:
    """Compare runs image by image, in batches of `size`: what the first of a pair gains; more than nothing is better.

    95 % of a bootstrap over batches, and over images in each, lie between `low` and `high`.
    """
    found = []
    for first, second in pairs:
        for measure, scale in GAINS.items():
            own, other = (values_of(rows, run, measure) for run in (first, second))
            if own is None or other is None:
                continue
            gain = scale * (own - other)
            low, high = interval_of(gain, size, seed)
            found.append(
                {"what": "gain", "run": f"{first} against {second}", "measure": measure, "gain": float(gain.mean())}
                | {"low": low, "high": high, "count": len(gain), "batches": len(gain) // size}
            )
    return found


def values_of(rows: Sequence[Mapping[str, Any]], run: str, measure: str) -> np.ndarray | None:
    """Return a measure of a run's images in their order (N,), None where it has none; what is lost has no decibels."""
    own = sorted((row for row in rows if row["what"] == "image" and row["run"] == run), key=lambda row: row["image"])
    if not own or any(row[measure] is None for row in own):
        return None
    values = np.array([float(row[measure]) for row in own])
    return values.clip(0, 200) if measure == "psnr" else values


def interval_of(values: np.ndarray, size: int, seed: int) -> tuple[float, float]:
    """Return between what 95 % of a bootstrap's means lie: batches of `size` are drawn, then images of each."""
    many = values[: len(values) // size * size].reshape(-1, size)
    generator = np.random.default_rng(seed)
    batches = generator.integers(len(many), size=(DRAWS, len(many), 1))
    means = many[batches, generator.integers(size, size=(DRAWS, len(many), size))].mean(axis=(1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
