"""Batches, exactly: soft labels, features and images of all samples

Beyond wang2024, sections 3 and 4.2: find the samples of a batch one by one or all together, and restore all images from
a fully connected network.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from time import perf_counter as clock
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Generator, Tensor, nn

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.errors import InputError
from gradleak.images import bias_attack, trace_fully_connected
from gradleak.labels import BatchLabels, recover_batch, recover_jointly
from gradleak.labels.priors import KNOWN
from gradleak.labels.soft.explanations import KNOWN_FEATURE
from gradleak.leak import Leak, observe, observe_heads
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, level, lines
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import AttackedNetwork, Stage, built, network
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.defended import BehindDefence, Defence, outcomes_behind
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import Outcome, collected, median_of, share_of
from gradleak.studies.shared.samples import DTYPES, inputs_of, soft_labels
from gradleak.studies.wang2024.columns import COLUMNS
from gradleak.wording import counted

PLACE = "Beyond sections 3 and 4.2"
Labels = Literal["smoothing", "mixup", "onehot"]
# The name of random layers in place of a network's, and the number of their features.
LAYER, FEATURES = "layer", 256
# The largest label error (L1) and relative feature error of a batch that counts as recovered: where each sample is
# found by itself, and where all are found together.
NEAR_ALONE, NEAR_TOGETHER = (2e-4, 1e-3), (KNOWN, 1e-2)
ALONE, TOGETHER = "one by one", "together"
CLOSED_FORM, BIAS_ATTACK = "closed form", "bias attack"
# The side of the images that are restored (pixels), and the batch size of the pictures and of defended batches: the
# nearest to this.
SIDE, SHOWN = 64, 16
# The batches whose numbers the book's first table states.
STATED: dict[str, Any] = {"network": "resnet18", "classes": 1000, "size": 32, "repeated": False}
SETTING = f"batches of {STATED['size']}; untrained ResNet18, {STATED['classes']} classes"
DEFENSES = [*(f"gaussian/1e-{power}" for power in range(9, 4, -1)), "clip/0.5", "quantize/16", "half/16"]


class Cell(Group):
    """A network, or `LAYER` for random layers, and its batches.

    Attributes:
        classes: The number of classes, which samples get at random; 0 if they have those of the dataset.
        repeated: Whether samples share classes.
    """

    network: str
    size: int = Field(ge=1)
    classes: int = Field(0, ge=0)
    repeated: bool = False
    labels: Labels = "smoothing"
    stage: Stage = "untrained"

    def check(self) -> None:
        """Raise an error if there are fewer classes than samples."""
        if (self.classes or self.network == LAYER) and self.classes < self.size:
            raise InputError(f"{self.size} samples need as many classes; got {self.classes}")


class JointCell(Cell):
    """A network and its batches, and whether the attacker knows how often each class occurs."""

    known: bool = True


def _cells(network: str, classes: int, sizes: Iterable[int], **others: Any) -> list[Columns]:
    """Return the settings of one network for several batch sizes."""
    return [{"network": network, "size": size, "classes": classes, **others} for size in sizes]


class Parameters(studies.Parameters):
    """Parameters of the page: networks, batches, precisions, noise and defences."""

    precisions: list[str] = setting(paper=list(DTYPES))
    dataset: str = setting(paper="cifar10")
    repeats_alone: int = setting(paper=50, ge=1, le=10_000)
    cells: list[Cell] = setting(
        paper=[
            *_cells("resnet18", 100, (2, 4, 8, 16, 24, 32, 40, 44, 48)),
            *_cells("lenet", 100, (2, 4, 8, 16, 24, 32)),
            *_cells("resnet18", 100, (16,), repeated=True),
            *_cells("lenet", 100, (16,), repeated=True),
            *_cells("resnet18", 1000, (32,)),
            *_cells("resnet18", 1000, (32,), repeated=True),
            *_cells("resnet18", 100, (16,), repeated=True, labels="onehot"),
            *_cells("resnet18", 100, (16,), repeated=True, labels="mixup"),
            *_cells("lenet", 0, (2, 3), stage="trained"),
            *_cells("resnet20", 0, (2, 3), stage="trained"),
        ],
        min_length=1,
    )
    noises: list[float] = setting(paper=[1e-8, 1e-7, 1e-6, 1e-5, 1e-4])
    repeats: int = setting(paper=10, ge=1, le=1000)
    starts: int = setting(paper=200, ge=1, le=100_000)
    joint_cells: list[JointCell] = setting(
        paper=[
            *_cells(LAYER, 10, (2, 4, 5, 6, 7, 8)),
            *_cells(LAYER, 10, (4, 6, 7), repeated=True),
            *_cells(LAYER, 20, (14,), repeated=True),
            *_cells(LAYER, 10, (4, 5, 6, 7), known=False),
            *_cells(LAYER, 10, (4, 5, 6, 7), known=False, repeated=True),
            *_cells(LAYER, 20, (9, 14, 17)),
            *_cells(LAYER, 50, (30, 36, 44)),
            *_cells(LAYER, 100, (50, 60)),
            *_cells(LAYER, 10, (4, 6, 7), labels="mixup"),
            *_cells(LAYER, 20, (14,), labels="mixup"),
            *_cells(LAYER, 5, (3,)),
            *_cells(LAYER, 6, (4,)),
            *_cells("lenet", 0, (4, 6, 7)),
            *_cells("resnet18", 0, (4, 6, 7)),
            *_cells("lenet", 0, (6,), stage="trained"),
        ],
        smallest=_cells(LAYER, 8, (5, 6)),
        min_length=1,
    )
    sizes: list[int] = setting(paper=[1, 2, 4, 8, 16, 24, 32, 40, 44, 48])
    classes: int = setting(paper=100, ge=4, le=10_000)
    defenses: list[Defence] = setting(paper=DEFENSES, min_length=1)
    image_dataset: str = setting(paper="flowers17")

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        networks = [one for one in (*self.cells, *self.joint_cells) if one.network != LAYER]
        seen = [AttackedNetwork(dataset=self.dataset, network=one.network, stage=one.stage).sees for one in networks]
        return [*seen, Sees("fcn4", self.image_dataset, size=SIDE, channels=3)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the batches searched one by one, the first of these with noise, those searched together, and images."""
        alone = [
            OneByOne.of(self, **self._batches_of(cell), dtype=dtype, noise=0.0, batches=self.repeats_alone)
            for cell, dtype in product(self.cells, self.precisions)
        ]
        yield from alone
        for noise, first in product(self.noises, alone[:1]):
            yield first.model_copy(update={"noise": noise})
        for cell, dtype in product(self.joint_cells, self.precisions):
            # The gradients of networks are attacked in float32 only.
            if cell.network == LAYER or dtype == "float32":
                # To find more than 40 samples together takes minutes, so at most three such batches are attacked.
                batches = self.repeats if cell.size <= 40 else min(self.repeats, 3)
                # The time of a start grows with the fifth power of the batch size, so large batches get fewer starts.
                starts = max(4, round(self.starts * min(1.0, (8 / cell.size) ** 3)))
                yield Together.of(self, **self._batches_of(cell), dtype=dtype, batches=batches, starts=starts)
        shown = min(self.sizes, key=lambda size: abs(size - SHOWN))
        for size, dtype in product(self.sizes, self.precisions):
            yield Inverted.of(self, size=size, dtype=dtype, shown=size == shown, dataset=self.image_dataset)
        for defense in self.defenses:
            yield DefendedBatch.of(self, size=shown, dataset=self.image_dataset, **dict(defense))

    def _batches_of(self, cell: Cell) -> Columns:
        """Return the inputs of an experiment on the batches of a network or of random layers."""
        return dict(cell) | {"dataset": "" if cell.network == LAYER else self.dataset}

    def about(self) -> str:
        """Return a short text on the size of a run."""
        names = ", ".join(map(data.title, (self.dataset, self.image_dataset)))
        return f"{counted(self.repeats_alone, 'batch')} per setting one by one, {self.repeats} otherwise; {names}"


class Batches(Experiment):
    """Batches of one network, or of random layers behind a ReLU.

    Attributes:
        classes: The number of classes; 0 if the samples have the classes of the dataset.
        dataset: The dataset; "" for random layers.
    """

    network: str
    classes: int
    size: int
    repeated: bool
    labels: Labels
    stage: Stage
    dataset: str
    dtype: str
    batches: int

    @property
    def _attacked(self) -> AttackedNetwork:
        return AttackedNetwork(dataset=self.dataset, network=self.network, stage=self.stage)

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        return [name for name in (self.dataset, self._attacked.sees.learns) if name]

    def sent(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Generator]]:
        """Yield a batch's gradient (C, I), weight (C, I), features (B, I) and labels (B, C), and its generator."""
        private = data.load(self.dataset, "test") if self.dataset else None
        attacked = self._network(private) if private else None
        for number in range(self.batches):
            generator = Generator().manual_seed(self.seed + number)
            if private is None or attacked is None:
                model, inputs, first = *self._layer(generator), None
            else:
                chosen = torch.randperm(len(private), generator=generator)[: self.size]
                model, inputs, first = attacked, data.normalise(private.images[chosen]), private.labels[chosen]
            if first is None or self.classes:
                # An untrained network does not relate images to classes.
                first = torch.randperm(self.classes, generator=generator)[: self.size]
            if self.repeated:
                few = first[: max(1, self.size // 2)]
                first = few[torch.randint(len(few), (self.size,), generator=generator)]
            model.to(self.device, DTYPES[self.dtype])
            inputs = inputs.to(self.device, DTYPES[self.dtype])
            labels = soft_labels(self.labels, first, len(model.get_parameter("head.weight")), generator).to(inputs)
            leaks = observe_heads(model, inputs, labels, batch_size=self.size)
            features = inputs_of(nn.Linear, model, inputs)["head"]
            yield leaks.weight_gradients[0], leaks.weight, features, labels, generator

    def _layer(self, generator: Generator) -> tuple[nn.Module, Tensor]:
        """Return a random layer and the features of a batch."""
        weight, features = (
            torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
            for count in (self.classes, self.size)
        )
        weight, features = weight / math.sqrt(FEATURES), features.relu()
        head = nn.Linear(FEATURES, self.classes, bias=False)
        head.weight = nn.Parameter(weight)
        return nn.Sequential(OrderedDict(head=head)), features / (features @ weight.T).std()

    def _network(self, private: data.Dataset) -> nn.Module:
        if self.classes:
            return built(self.network, private, self.seed, self.device, classes=self.classes, bias=False)
        return network(self._attacked, self.labels, private, self.seed, self.device)[0]


class OneByOne(Batches, part="labels"):
    """Find the samples of every batch one by one; `noise` is the standard deviation of noise on the gradient."""

    noise: float

    def run(self) -> Iterator[Columns]:
        """Recover the labels and features of every batch."""
        for number, (clean, weight, features, labels, generator) in enumerate(self.sent()):
            gradient, utility, attackers = clean, 1.0, {"unaware": 0.0}
            if self.noise:
                attackers |= {"aware": self.noise}
                gradient = defenses.gaussian(self.noise, generator)({"head": clean})["head"]
                utility = defenses.utility({"head": clean}, {"head": gradient})
            settings: dict[str, Any] = {"batch_size": self.size, "prior": self.labels, "seed": self.seed + number}
            for attacker, noise in attackers.items():
                found, seconds = timed(recover_batch, gradient, weight, clock=clock, noise=noise, **settings)
                about: Columns = {"batch": number, "attacker": attacker, "seconds": seconds, "utility": utility}
                yield about | judge(found, features, labels)


class Together(Batches, part="joint"):
    """Find all samples of every batch at once; `known` tells whether the attacker knows how often each class occurs."""

    known: bool
    starts: int

    def run(self) -> Iterator[Columns]:
        """Recover the labels and features of every batch."""
        for gradient, weight, features, labels, _ in self.sent():
            classes = labels.topk(2, dim=1).indices if self.labels == "mixup" else labels.argmax(dim=1)
            settings: dict[str, Any] = {"classes": classes} if self.known else {"batch_size": self.size}
            settings |= {"prior": self.labels, "starts": self.starts, "seed": self.seed}
            found, seconds = timed(recover_jointly, gradient, weight, clock=clock, **settings)
            errors = largest_errors(found, features, labels)
            right = _within(errors, *NEAR_TOGETHER)
            wrong = found.status == "found" and not right
            yield {"seconds": seconds, "status": found.status, "right": right, "wrong": wrong, **errors}


def judge(found: BatchLabels, features: Tensor, labels: Tensor) -> Columns:
    """Compare a batch whose samples were found one by one with the true features (B, I) and labels (B, C)."""
    unique, errors = found.status == "unique", largest_errors(found, features, labels)
    certificate = {"claimed": float(found.open.max()), "residual": found.residual} if errors else {}
    return {
        **errors,
        **certificate,
        "status": found.status,
        "found": int(found.found.sum()),
        "flagged": not unique,
        "whole": unique and _within(errors, *NEAR_ALONE),
        "silent": unique and not _within(errors, KNOWN, KNOWN_FEATURE),
    }


def largest_errors(found: BatchLabels, features: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the largest errors of labels and features, in the best order; nothing if a sample was not found."""
    if not bool(found.found.all()):
        return {}
    recovered, features = found.features.cpu(), features.cpu().double()
    order = metrics.match_batch(recovered, features)
    label = metrics.label_error(found.labels.cpu()[order], labels.cpu().double())
    feature = (recovered[order] - features).norm(dim=1) / features.norm(dim=1)
    return {"largest_error": float(label.max()), "feature_error": float(feature.max())}


def _within(errors: Mapping[str, float], label: float, feature: float) -> bool:
    """Return whether all samples were found, and no error exceeds these limits."""
    return bool(errors) and errors["largest_error"] < label and errors["feature_error"] < feature


class OnImages(Experiment):
    """Batches of images in an untrained fully connected network."""

    size: int
    classes: int
    dataset: str

    def batch(self, number: int = 0) -> tuple[Tensor, Tensor]:
        """Draw the images and labels of a batch."""
        private = data.load(self.dataset, "test", size=SIDE)
        generator = Generator().manual_seed(self.seed + number)
        images = private.images[torch.randperm(len(private), generator=generator)[: self.size]].double()
        chosen = torch.randint(self.classes, (self.size,), generator=generator)
        return images, soft_labels("smoothing", chosen, self.classes, generator)

    def client(self, dtype: str = "float32", *, bias: bool = False) -> nn.Module:
        """Return the network."""
        model = models.build("fcn4", classes=self.classes, bias=bias, image_size=SIDE, seed=self.seed)
        return model.to(self.device, DTYPES[dtype])


class Inverted(OnImages, part="closed"):
    """Restore batches of one size and precision by the closed form and by the bias attack."""

    dtype: str
    repeats: int
    shown: bool

    def run(self) -> Iterator[Columns]:
        """Restore every batch by both attacks, and yield a picture of the first."""
        model, biased = self.client(self.dtype), self.client(self.dtype, bias=True)
        for number in range(self.repeats):
            images, labels = self.batch(number)
            found, seconds = timed(trace_fully_connected, _leak(model, images, labels), clock=clock)
            restored = _pixels(found.inputs, images)
            about: Columns = {"batch": number, "attack": CLOSED_FORM, "seconds": seconds, "status": found.status}
            yield nearness(restored, images) | about | {"reason": found.reason, "certified": found.status == "exact"}
            units, seconds = timed(bias_attack, _leak(biased, images, labels), clock=clock)
            units, truth = units[units.isfinite().all(dim=1)], data.normalise(images).flatten(1)
            # For each true input take the nearest of the units' answers; no attacker has this choice.
            nearest = _pixels(units[torch.cdist(truth.to(units), units).argmin(dim=1)], images)
            about = {"batch": number, "attack": BIAS_ATTACK, "seconds": seconds, "status": "best unit"}
            yield nearness(nearest, images) | about
            if self.shown and number == 0 and self.dtype == "float32":
                order = metrics.match_batch(restored, images)
                yield {"picture": packed(torch.cat([images, nearest, restored[order]]), self.size)}


class DefendedBatch(OnImages, BehindDefence):
    """Restore one batch behind a defence, by an attacker who expects no noise and by one who estimates it."""

    def run(self) -> Iterator[Columns]:
        """Defend the batch, and invert it as both attackers."""
        images, labels = self.batch()
        clean = _leak(self.client(), images, labels)
        for about, found in self.inversions(clean, self.seed, trace_fully_connected, noise=None):
            yield nearness(_pixels(found.inputs, images), images) | about


def _leak(model: nn.Module, images: Tensor, labels: Tensor) -> Leak:
    weight = next(model.parameters())
    return observe(model, data.normalise(images).to(weight), labels.to(weight))


def _pixels(inputs: Tensor, images: Tensor) -> Tensor:
    """Return recovered inputs (B, D) of a network as pixels in the shape of images (B, C, H, W)."""
    return data.denormalise(inputs.cpu().reshape(images.shape))


def nearness(restored: Tensor, images: Tensor) -> Columns:
    """Compare restored images (B, C, H, W) with the private images, in the best order."""
    order = metrics.match_batch(restored, images)
    psnr, lost = metrics.psnr(restored[order], images), ~restored.isfinite().flatten(1).all(dim=1)
    return {
        "images": len(images),
        "psnr": float(psnr.mean()),
        "lowest_psnr": float(psnr.min()),
        "ssim": float(metrics.ssim(restored[order], images).mean()),
        "over_40": 100 * float((psnr > 40).double().mean()),
        "not_restored": int(lost.sum()),
    }


def searched(record: Record) -> pd.DataFrame:
    """Return the rows of batches whose samples were found one by one, or together, with common columns.

    A batch counts as a whole if it is recovered, and the attack states that there is only one answer.
    """
    alone, together = record.rows(OneByOne), record.rows(Together)
    whole = together["right"].eq(True) & together["status"].eq("found")
    alone = alone.assign(search=ALONE, right=alone["whole"])
    together = together.assign(search=TOGETHER, attacker="unaware", noise=0.0, utility=math.nan, whole=whole)
    return pd.concat([alone, together])


def inverted(record: Record) -> pd.DataFrame:
    """Return the rows of restored images without defences, without the pictures."""
    rows = record.rows(Inverted)
    return rows[rows["attack"].notna()]


def summary(record: Record) -> Summary:
    """Return the finding: batches are recovered exactly, labels and images, and no certified answer is wrong."""
    known = claims.judgements(record)
    exact, wrong, psnr = known["batch-thousand"], known["batch-silent"], known["exact-float32"]
    size, classes = (exact.claim.measure.where[name] for name in ("size", "classes"))
    return Summary(
        f"From one gradient of an untrained ResNet18 with {classes:,} classes, an attacker recovers soft "
        f"labels and features of all {size} samples in {exact.text} of batches, with no wrong certificate, and from a "
        f"fully connected network all {psnr.claim.measure.where['size']} images at a median of {psnr.text}.",
        true=exact.value is not None and exact.value >= 98 and wrong.value == 0 and bool(psnr.agrees),
        claim="batch-thousand",
        what=f"batches of {size} samples recovered exactly (untrained ResNet18, {classes:,} classes, float32)",
        of="batches",
        figure=figure_limits,
        leaks=leaks(record),
        outcomes=outcomes(record),
    )


def figure_limits(record: Record) -> Figure:
    """Plot the share of batches recovered against B / (C − 2), for smoothed labels and distinct classes.

    Left: networks, whose samples are found one by one. Right: random layers in both precisions, whose samples are found
    together. Vertical lines mark 1/2 and 1, beyond which the equations of these two searches no longer suffice.
    """
    rows = select(searched(record), stage="untrained", labels="smoothing", repeated=False, noise=0.0)
    rows = rows[rows["classes"] > 0]
    groups = rows["known"].map({True: "classes known", False: "classes unknown"})
    groups = groups.fillna(rows["network"] + ", " + rows["dtype"])
    share = rows["size"] / (rows["classes"] - 2)
    titles = {ALONE: "one by one, untrained networks", TOGETHER: "together, random layers"}
    return drawn(
        rows.assign(line=groups, share=share, percent=100.0 * rows["whole"].astype(float)),
        lines("share", "percent", by="line", order=list(groups.unique())),
        level(0.5, upright=True, linewidth=1.2),
        level(1.0, upright=True, linewidth=1.2),
        panels="search",
        title=titles.__getitem__,
        legend=3,
        xlabel="batch size B / (C − 2)",
        ylabel="batches recovered (%)",
        xlim=(0, None),
        ylim=(-4, 104),
    )


def figure_batch(record: Record) -> Figure:
    """Show one batch: the private images, the bias attack's best units, and the closed form's images."""
    rows = record.rows(Inverted)
    row = rows[rows["picture"].notna()].iloc[0]
    figure, axes = figures.panels(1, 1, height=min(3.6, max(1.2, 8.4 * 3 / row["size"])))
    show(axes[0][0], row["picture"], ["private", BIAS_ATTACK, CLOSED_FORM])
    return figure


def figure_images(record: Record) -> Figure:
    """Plot the mean PSNR (dB) of a batch against the batch size; shading spans the batches.

    The bias attack reads the units of a first layer with biases; its nearest answers are chosen with the truth. A line
    marks the batch size B = (C − 2) / 2 beyond which the equations no longer suffice.
    """
    rows = inverted(record)
    rows = rows[(rows["psnr"] > -math.inf) & ((rows["attack"] == CLOSED_FORM) | (rows["dtype"] == "float32"))]
    return drawn(
        rows,
        lines("size", "psnr", by=["attack", "dtype"], band="range"),
        level((record.stated(Parameters).classes - 2) / 2, "B = (C − 2) / 2", upright=True, linewidth=1.2),
        legend=4,
        xlabel="batch size B (images)",
        ylabel=f"mean {COLUMNS['psnr'].head}",
        ylim=(0, None),
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    labels, images, times = _stated(record)
    return Leaks(
        "all soft labels and features; images in closed form",
        f"{SETTING}; images: fully connected, no biases",
        f"{labels}; images: {images}",
        f"{times[0]}, images {times[1]}",
        kind="soft labels",
        attack="batch solver",
        batch=STATED["size"],
    )


def in_words(record: Record) -> str:
    """Return the numbers of this row in sentences."""
    if select(record.rows(OneByOne), **STATED).empty:
        return "Batches of the size that the first page of this book states were not run with these parameters."
    labels, images, times = _stated(record)
    return (
        f"Labels and features, {SETTING}, float32: {labels}, in {times[0]} (median). "
        f"Images, fully connected network: {images}, in {times[1]}."
    )


def _stated(record: Record) -> tuple[str, str, tuple[str, str]]:
    """Return in words how exact labels and images of the stated batches are, and the median times of both."""
    labels = select(record.rows(OneByOne), noise=0, dtype="float32", **STATED)
    images = select(inverted(record), attack=CLOSED_FORM, dtype="float32", size=STATED["size"])
    return (
        f"{labels['whole'].mean():.0%} of {len(labels)} batches exact, label error (L1) at most "
        f"{labels['largest_error'].max():.1e}",
        f"{images['certified'].sum():.0f} of {len(images)} batches certified, mean PSNR {images['psnr'].mean():.1f} dB",
        (f"{labels['seconds'].median():.3g} s elapsed", f"{images['seconds'].median():.3g} s"),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = searched(record)
    alone = select(rows, search=ALONE)
    alone = alone.assign(complete=alone["largest_error"].notna())
    whole = share_of("right", "batches recovered completely", "batches")
    complete = share_of("complete", "batches with all samples found", "batches")
    found: list[Outcome] = []
    for own, measure in ((rows, whole), (alone, complete)):
        found += collected(
            record, own, "soft labels", measure, cosine=own["utility"],
            attack=own["search"].map({ALONE: "batch solver", TOGETHER: "joint solver"})
            + own["attacker"].map({"aware": ", noise known"}).fillna(""),
            network=own["network"].replace(LAYER, "random layer"), training=own["stage"],
            data=own["dataset"].replace("", "random features"), batch=own["size"],
            defense=[f"gaussian/{noise:g}" if noise else "none" for noise in own["noise"]], client=own["dtype"],
            detail=own["labels"] + " labels, "
            + own["repeated"].map({True: "classes repeat", False: "distinct classes"})
            + own["classes"].map(lambda classes: f", {classes} classes" if classes else "")
            + own["known"].map({False: ", classes not known"}).fillna(""),
        )  # fmt: skip
    mean = median_of("psnr", "mean PSNR of a batch", "batches")
    rows, behind = inverted(record), record.rows(DefendedBatch)
    found += collected(
        record, rows, "images", mean, attack=rows["attack"], network="fcn4", data=rows["dataset"], batch=rows["size"],
        client=rows["dtype"],
        detail=rows["attack"].map({BIAS_ATTACK: "nearest answers, chosen with the truth"}).fillna(""),
    )  # fmt: skip
    return found + outcomes_behind(record, behind, "fcn4", mean, batch=behind["size"])
