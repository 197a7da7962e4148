"""Private batches that are restored from a deep network's gradient: the leaks, the measures, and the baselines."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from gradleak import augment, data, metrics, studies
from gradleak.images import GradInversion, Reconstruction, observe_statistics, restore_batches
from gradleak.images.gradinversion.attack import Known, known_of
from gradleak.images.presets import preset
from gradleak.leak import observe
from gradleak.studies import Experiment, Record, Sees, setting
from gradleak.studies.shared.deep_networks import NAMES, SMALL, TRAINED_ON, made, pooled
from gradleak.studies.shared.mosaics import strip
from gradleak.studies.shared.outcomes import PSNR, Axis, Outcome, collected, share_of

# The rows of an experiment. A row has the columns that its kind, `what`, needs.
Rows = list[dict[str, Any]]
# Images in random order, or those with the largest gradients of each class.
KINDS = ("random", "vulnerable")
FLOORS = ("noise", "unrelated", "mean colour")
# A grey image, which is every attack's start.
GREY = "grey"
# Runs of published attacks under a name of their own.
PUBLISHED = DLG, DEEP, INVERTING = "DLG", "DeepInversion", "inverting gradients"
# Suffixes of runs: the mean image of several seeds, and a control, whose images were restored for another batch.
AVERAGED, OF_ANOTHER = ", averaged", ", of another batch"
# An attack that searches for latent vectors of a generator.
LATENT = "latent projection"
# The number of images in a strip. For LPIPS, images are enlarged by a factor, unless they have at least this side.
SHOWN, ENLARGED, LARGE = 8, 4, 224
# The share of the steps that is warm-up in the published schedule: 50 of 20,000.
PRINTED_WARMUP = 50 / 20_000
# The number of bootstrap resamples.
DRAWS = 4000
# The number of images whose gradients are computed together.
TOGETHER = 32
# The limits of PSNRs (dB), so that lost and exact images have finite means.
PSNRS = (0, 200)
# The factor of each measure in a gain, negative where less is better: PSNR in dB, SSIM and LPIPS in units, IIP in %.
GAINS = {"psnr": 1.0, "ssim": 1.0, "lpips": -1.0, "identified": 100.0}


def check_sizes(sizes: Sequence[int], whole: int) -> None:
    """Raise an error if a batch size does not divide the number of images."""
    if any(size < 1 or whole % size for size in sizes):
        raise ValueError(f"every batch size must divide the {whole} images; got {sizes}")


class Parameters(studies.Parameters):
    """Parameters of the pages: the attacked network, the network that identifies images, and the private images."""

    network: str = setting(paper="cifar10-resnet20+head")
    judge: str = setting(paper="cifar10-resnet56")
    dataset: str = setting(paper="cifar10")

    # The number of channels that the page's attacks need, because their presets limit colours; 0 for any.
    channels: ClassVar[int] = 0

    @property
    def every(self) -> list[str]:
        """The names of all networks."""
        return [self.network, self.judge]

    def sees(self) -> list[Sees]:
        """Return the network that is built here, with its images."""
        return [Sees(SMALL, self.dataset, learns=self.dataset, channels=self.channels)] if SMALL in self.every else []

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.every:
            if name not in NAMES:
                raise ValueError(f"unknown network '{name}': choose one of {', '.join(NAMES)}")
            if (images := TRAINED_ON.get(name, self.dataset)) != self.dataset:
                raise ValueError(f"'{name}' is trained on '{images}', but the dataset is '{self.dataset}'")
        return self


class Scene:
    """Private images, the attacked network, and the networks whose features identify restored images."""

    def __init__(self, private: data.Dataset, model: nn.Module, judge: nn.Module, seed: int, device: str) -> None:
        self.private, self.seed, self.device = private, seed, device
        # Another network identifies images, because an attack may match the attacked network's features. Both copies
        # stay on the CPU.
        judges = {"identified": judge, "identified_by_own": copy.deepcopy(model)}
        self.judges = {name: (own, pooled(own, private.images)) for name, own in judges.items()}
        self.model = model.to(device)

    def in_batches(
        self, kind: str, groups: int, most: int, sizes: list[int], attacks: Mapping[str, GradInversion], steps: int
    ) -> Rows:
        """Restore the same images in batches of every size by every attack; the baselines are measured only once.

        Args:
            kind: The kind of the images, from `KINDS`.
            groups: The number of groups of images.
            most: The number of images in a group.
            sizes: The batch sizes, which divide `most`.
            attacks: The attacks, by name. If no feature is recovered, all of them are equal to the first.
            steps: The number of steps of an attack.
        """
        norms = gradient_norms(self.model, self.private) if kind == "vulnerable" else None
        places = chosen(self.private, most, groups, self.seed, norms)
        rows: Rows = []
        for size in sizes:
            case = Case(self, places.reshape(-1, size))
            found = [] if rows else case.private()
            for number, (attack, settings) in enumerate(attacks.items()):
                if number == 0 or case.known.there.any():
                    own = case.judged("", case.attacked(settings, steps))
                found += [row | {"run": named(kind, size, attack)} for row in own]
            rows += [row | {"kind": kind, "batch_size": size, "labels": float(case.counted.mean())} for row in found]
        return rows


class Case:
    """Private batches of a scene, with the clients' leaks and the images of the baselines."""

    def __init__(self, scene: Scene, places: Tensor, first: int = 0) -> None:
        """Take the images at `places` (N, B) of the test split as N batches, numbered from `first`."""
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
        batches = hot.unflatten(0, (-1, self.size))
        matches = map(metrics.match_batch, self.known.labels.cpu(), batches)
        self.order = torch.cat([n * self.size + match for n, match in enumerate(matches)])
        self.right = (self.known.labels.flatten(0, 1).cpu()[self.order] * hot).sum(dim=1) > 0.5
        counted = known_of(self.leaks, "counted").labels.sum(dim=1).cpu()
        self.counted = metrics.count_overlap(counted, batches.sum(dim=1))
        with torch.no_grad():
            self.loud = (self.model(inputs).softmax(dim=1).cpu() - hot).norm(dim=1)
        noise = torch.randn(self.truth.shape, generator=torch.Generator().manual_seed(self.seed))
        self.floors = {
            "noise": data.denormalise(noise),
            "unrelated": private.images[unrelated(private, self.places, first * self.size, self.seed)],
            "mean colour": self.truth.mean(dim=(2, 3), keepdim=True).expand_as(self.truth),
            GREY: data.denormalise(torch.zeros_like(self.truth)),
        }

    def measured(self, run: str, images: Tensor, losses: Tensor | None = None) -> Rows:
        """Return a row for each image (N·B, C, H, W), in the order of the batches, and a strip of the first images."""
        images = images.detach().cpu()
        shown = images.nan_to_num(0.5, 0.5, 0.5).clamp(0, 1)
        factor = ENLARGED if images.shape[-1] < LARGE else 1
        large, own = (F.interpolate(part, scale_factor=factor, mode="bilinear") for part in (shown, self.truth))
        columns: dict[str, Tensor | None] = {
            "psnr": metrics.psnr(images, self.truth),
            "ssim": metrics.ssim(images, self.truth),
            "registered": metrics.registered_psnr(images, self.truth),
            "frequencies": metrics.fft2d(images, self.truth),
            "relative_l2": metrics.relative_l2(images, self.truth),
            "lpips": metrics.lpips(large, own).values,
            "loud": self.loud,
            "right_label": self.right,
            "known_feature": self.known.there.bool().repeat_interleave(self.size),
            "loss": None if losses is None else losses.repeat_interleave(self.size),
        }
        for name, (judge, gallery) in self.judges.items():
            columns[name] = metrics.identified(pooled(judge, shown), gallery, self.places)
        rows: Rows = [{"what": "image", "run": run, "image": number} for number in self.numbers]
        for n, row in enumerate(rows):
            row.update({name: None if values is None else values[n].item() for name, values in columns.items()})
        return [*rows, strip(run, shown, SHOWN)]

    def attacked(self, settings: GradInversion, steps: int, *, exact: bool = True, seeds: int = 1) -> Reconstruction:
        """Return the images that GradInversion finds, with the batches' own batch-norm statistics if `exact`."""
        options: dict[str, Any] = {"statistics": self.statistics if exact else None, "seeds": seeds, "seed": self.seed}
        return restore_batches(self.leaks, "recovered", settings=scaled(settings, steps), **options)

    def of_another(self, name: str, found: Reconstruction) -> Rows:
        """Return the rows of a control: the images found for each batch are compared with those of the next batch."""
        images = data.denormalise(found.attempts[:, 0].roll(1, dims=0).flatten(0, 1)).cpu()
        return self.measured(name, images[self.order])

    def judged(self, name: str, found: Reconstruction) -> Rows:
        """Return the rows of a result: of its first seed and, if there are several, of the mean of their images."""
        attempts = data.denormalise(found.attempts.flatten(0, 2)).cpu().unflatten(0, found.attempts.shape[:3])
        rows = self.measured(name, attempts[:, 0].flatten(0, 1)[self.order], found.losses[:, 0])
        if attempts.shape[1] > 1:
            rows += self.measured(name + AVERAGED, attempts.mean(dim=1).flatten(0, 1)[self.order])
        return rows

    def matched(self, name: str, steps: int) -> Reconstruction:
        """Return the images that DLG or inverting gradients finds, with the same recovered labels as other attacks."""
        own = preset("dlg" if name == DLG else "inverting-gradients")
        own_steps = max(1, steps // own["optimizer"].inner) if name == DLG else steps
        optimizer = replace(own["optimizer"], steps=own_steps)
        labels = self.known.labels.flatten(0, 1)
        return own.run(self.leaks, labels, optimizer=optimizer, seed=self.seed)

    def private(self, floors: Iterable[str] = FLOORS) -> Rows:
        """Return the rows of the private batches, and those of baselines.

        The rows of the batches are the strip of the images and the labels that the paper's rule and the solver find
        (%).
        """
        gallery = len(self.judges["identified"][1])
        labels = {
            "what": "batches",
            "chance": 100 / gallery,
            "gallery": gallery,
            "count": len(self.truth),
            "counted": 100 * float(self.counted.mean()),
            "recovered": 100 * float(self.right.double().mean()),
        }
        baselines = [row for name in floors for row in self.measured(name, self.floors[name])]
        return [strip("private", self.truth, SHOWN), labels, *baselines]


def chosen(private: data.Dataset, size: int, count: int, seed: int, first: Tensor | None = None) -> Tensor:
    """Return the indices (count, size) of the images of all batches, without a repeated class in a batch.

    The classes of a batch are in rising order. Each class's images are taken in random order, or in descending order of
    their value in `first` (N,).
    """
    generator = torch.Generator().manual_seed(seed)
    # Each class has a fixed order of its images, so that the first batches do not depend on the number of batches.
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


def named(kind: str, size: int, attack: str = "") -> str:
    """Return the name of a run on images of a kind in batches of one size."""
    return f"{kind}, B = {size}" + (f", {attack}" if attack else "")


class OnBatches(Experiment):
    """Batches of a dataset, numbered from `first`, that clients of one network send.

    Attributes:
        network: The attacked network.
        judge: The network whose features identify images.
        dataset: The private images.
        first: The number of the first batch.
        batches: The number of batches.
    """

    network: str
    judge: str
    dataset: str
    first: int
    batches: int

    def scene(self) -> Scene:
        """Return the dataset's test images and the networks."""
        model, judge = (made(name, self.dataset, self.seed) for name in (self.network, self.judge))
        return Scene(data.load(self.dataset, "test"), model, judge, self.seed, self.device)

    def drawn(self, size: int) -> Case:
        """Return the batches of `size` images and their leaks."""
        scene = self.scene()
        return Case(scene, chosen(scene.private, size, self.first + self.batches, self.seed)[self.first :], self.first)


def unrelated(private: data.Dataset, places: Tensor, first: int, seed: int) -> Tensor:
    """Return the indices (N,) of unrelated images to compare with those at `places` (N,)."""
    others = torch.randperm(len(private), generator=torch.Generator().manual_seed(seed + 1))
    others = others[~torch.isin(others, places)]
    return others[(first + torch.arange(len(places))) % len(others)]


def gradient_norms(model: nn.Module, private: data.Dataset) -> Tensor:
    """Return the norm (N,) of the gradient of each image of a dataset."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(own: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, own, (image.unsqueeze(0),)), label.unsqueeze(0))

    like = next(iter(parameters.values()))
    lengths = []
    for images, labels in zip(private.images.split(TOGETHER), private.labels.split(TOGETHER), strict=True):
        inputs = data.normalise(images).to(like)
        slopes = vmap(grad(loss), (None, 0, 0))(parameters, inputs, labels.to(like.device))
        lengths.append(torch.stack([own.flatten(1).norm(dim=1) for own in slopes.values()]).norm(dim=0))
    return torch.cat(lengths).cpu()


def scaled(settings: GradInversion, steps: int) -> GradInversion:
    """Return an attack with another number of steps, and a warm-up in proportion."""
    warmup = math.ceil(PRINTED_WARMUP * steps) if settings.warmup else 0
    return replace(settings, steps=steps, warmup=warmup)


def gained(rows: Rows, pairs: Sequence[tuple[str, str]], size: int, seed: int) -> Rows:
    """Compare pairs of runs image by image: the mean gain of the first run over the second, positive if it is better.

    Args:
        rows: The rows of all runs.
        pairs: The names of the runs to compare.
        size: The number of images in a batch. The 95 % bootstrap interval resamples batches, and images in each batch.
        seed: Seed of the bootstrap.
    """
    images = pd.DataFrame([row for row in rows if row["what"] == "image"]).astype(dict.fromkeys(GAINS, float))
    images["psnr"] = images["psnr"].clip(*PSNRS)
    runs = {run: own.sort_values("image", kind="stable") for run, own in images.groupby("run")}
    found: Rows = []
    for (first, second), (measure, scale) in product(pairs, GAINS.items()):
        gain = scale * (runs[first][measure].to_numpy() - runs[second][measure].to_numpy())
        if np.isnan(gain).any():  # there is no pretrained network for LPIPS
            continue
        low, high = interval_of(gain, size, seed)
        row = {"what": "gain", "run": f"{first} against {second}", "measure": measure, "gain": float(gain.mean())}
        found.append(row | {"low": low, "high": high, "count": len(gain), "batches": len(gain) // size})
    return found


def interval_of(values: np.ndarray, size: int, seed: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean: batches of `size` values are resampled, then values in each."""
    many = values[: len(values) // size * size].reshape(-1, size)
    generator = np.random.default_rng(seed)
    batches = generator.integers(len(many), size=(DRAWS, len(many), 1))
    means = many[batches, generator.integers(size, size=(DRAWS, len(many), size))].mean(axis=(1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def restored_images(record: Record, rows: pd.DataFrame, *, network: Axis) -> list[Outcome]:
    """Return the outcomes of attacks on batches of images of trained networks.

    Args:
        record: The record.
        rows: Rows of several kinds, of which those of restored images are used.
        network: The network, or that of each row.
    """
    rows = rows.assign(own_network=network, own_batch=rows["batch_size"].fillna(rows["size"]).fillna(1).astype(int))
    baseline = rows["run"].isin((*FLOORS, GREY)) | rows["run"].str.endswith(OF_ANOTHER)
    rows = rows[(rows["what"] == "image") & ~baseline]
    found: list[Outcome] = []
    for measure in (share_of("identified", "images identified in a gallery", "images"), PSNR):
        found += collected(
            record, rows, "images", measure,
            attack=["GradInversion" if run not in PUBLISHED else run for run in rows["run"]],
            network=rows["own_network"], training="trained", data=rows["dataset"], batch=rows["own_batch"],
            detail=["" if run in PUBLISHED else run for run in rows["run"]],
        )  # fmt: skip
    return found
