"""Batches, exactly: soft labels, features and images of all samples

Beyond wang2024, sections 3 and 4.2: find the samples of a batch one by one or all together, and restore all images from
a fully connected network.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal, Self, get_args

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator
from torch import Generator, Tensor, nn

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.errors import InputError
from gradleak.images import bias_attack, trace_fully_connected
from gradleak.labels import BatchLabels, recover_batch, recover_jointly
from gradleak.labels.priors import KNOWN
from gradleak.labels.soft.explanations import KNOWN_FEATURE
from gradleak.leak import Leak, observe, observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import Mark, Panel, arranged, bound, crossed, drawn, lines, look_of, panel, scattered
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import (
    NOTHING,
    Measure,
    among,
    cells,
    count,
    greatest,
    least,
    mean,
    median,
    select,
    summary,
    total,
)
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import AttackedNetwork, built
from gradleak.studies.shared.defended import BehindDefence, Defence, sent_behind, with_defence_cells
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, Outcome, collected, median_of, share_of, written
from gradleak.studies.shared.samples import DTYPES, inputs_of, soft_labels
from gradleak.studies.wang2024.columns import COLUMNS
from gradleak.wording import counted

PLACE = "Beyond sections 3 and 4.2"
Labels = Literal["smoothing", "mixup", "onehot"]
Drawn = Literal["distinct", "repeated"]
DRAWN: tuple[Drawn, ...] = get_args(Drawn)
# The name of random layers in place of a network's, and the number of their features.
LAYER, FEATURES = "layer", 256
# The largest label error (L1) and relative feature error of a batch that counts as recovered: where each sample is
# found by itself, and where all are found together.
NEAR_ALONE, NEAR_TOGETHER = (2e-4, 1e-3), (KNOWN, 1e-2)
# The time of a start grows with the fifth power of the batch size, so larger batches than LARGEST get fewer starts.
LARGEST, FEWEST = 8, 4
# To find more than MANY samples together takes minutes, so at most FEW such batches are attacked.
MANY, FEW = 40, 3
ALONE, TOGETHER = "one by one", "together"
CLOSED_FORM, BIAS_ATTACK = "closed form", "bias attack"
# The side of the images that are restored (pixels).
SIDE = 64
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-9, 1e-8, 1e-7, 1e-6, 1e-5),
    "clip": (0.5,),
    "quantize": (16,),
    "half": (16,),
}


class Cell(Form):
    """An untrained network, or `LAYER`, and its batches, whose samples get random classes."""

    network: str
    classes: Whole = Field(ge=2)
    size: Whole = Field(ge=1)
    drawn: Drawn
    labels: Labels


class JointCell(Cell):
    """A network and its batches, and whether the attacker knows how often each class occurs."""

    classes: Whole = Field(ge=4)
    known: Literal["known", "unknown"] = "known"

    def check(self) -> None:
        """Raise an error if labels are mixed and the attacker does not know the classes."""
        if self.labels == "mixup" and self.known == "unknown":
            raise InputError("mixed labels need the two classes of every sample: write known, not unknown")


class Network(AttackedNetwork):
    """A network, its private images with their own classes, and the size of its batches."""

    size: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """Parameters of the page: networks, batches, precisions, noise and defences."""

    precisions: list[str] = setting(paper=list(DTYPES))
    dataset: str = setting(paper="cifar10")
    repeats_alone: int = setting(paper=50, ge=1, le=10_000)
    cells: list[Cell] = setting(
        paper=[
            *(f"resnet18/100/{size}/distinct/smoothing" for size in (2, 4, 8, 16, 24, 32, 40, 44, 48)),
            *(f"lenet/100/{size}/distinct/smoothing" for size in (2, 4, 8, 16, 24, 32)),
            *(f"{network}/100/16/repeated/smoothing" for network in ("resnet18", "lenet")),
            "resnet18/1000/32/distinct/smoothing",
            "resnet18/1000/32/repeated/smoothing",
            *(f"resnet18/100/16/repeated/{labels}" for labels in ("onehot", "mixup")),
        ],
        min_length=1,
        validate_default=True,
    )
    networks: list[Network] = setting(
        paper=[f"cifar10/{network}/trained/{size}" for network in ("lenet", "resnet20") for size in (2, 3)]
    )
    noises: list[float] = setting(paper=[1e-8, 1e-7, 1e-6, 1e-5, 1e-4])
    repeats: int = setting(paper=10, ge=1, le=1000)
    starts: int = setting(paper=200, ge=1, le=100_000)
    joint_cells: list[JointCell] = setting(
        paper=[
            *(f"layer/10/{size}/distinct/smoothing/known" for size in (2, 4, 5, 6, 7, 8)),
            *(f"layer/{sizes}/repeated/smoothing/known" for sizes in ("10/4", "10/6", "10/7", "20/14")),
            *(f"layer/10/{size}/{drawn}/smoothing/unknown" for size, drawn in product((4, 5, 6, 7), DRAWN)),
            *(f"layer/20/{size}/distinct/smoothing/known" for size in (9, 14, 17)),
            *(f"layer/{sizes}/distinct/smoothing/known" for sizes in ("50/30", "50/36", "50/44", "100/50", "100/60")),
            *(f"layer/{sizes}/distinct/mixup/known" for sizes in ("10/4", "10/6", "10/7", "20/14")),
            *(f"layer/{sizes}/distinct/smoothing/known" for sizes in ("5/3", "6/4")),
        ],
        smallest=["layer/8/5/distinct/smoothing/known", "layer/8/6/distinct/smoothing/known"],
        min_length=1,
        validate_default=True,
    )
    joint_networks: list[Network] = setting(
        paper=[
            *(f"cifar10/{network}/untrained/{size}" for network in ("lenet", "resnet18") for size in (4, 6, 7)),
            "cifar10/lenet/trained/6",
        ],
        smallest=[],
        validate_default=True,
    )
    sizes: list[int] = setting(paper=[1, 2, 4, 8, 16, 24, 32, 40, 44, 48])
    classes: int = setting(paper=100, ge=4, le=10_000)
    shown: int = setting(paper=16, ge=1, le=256)
    defenses: list[Defence] = setting(paper=list(DEFENSES), min_length=1)
    image_dataset: str = setting(paper="flowers17")

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        random = [Sees(one.network, self.dataset) for one in (*self.cells, *self.joint_cells) if one.network != LAYER]
        own = [one.sees for one in (*self.networks, *self.joint_networks)]
        return [*random, *own, Sees("fcn4", self.image_dataset, size=SIDE, channels=3)]

    @model_validator(mode="after")
    def _shown_is_one_of_the_sizes(self) -> Self:
        if self.shown not in self.sizes:
            raise ValueError(f"'shown' must be one of the sizes; got {self.shown} and {self.sizes}")
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield the batches searched one by one, the first of these with noise, those searched together, and images."""
        alone: list[Cell | Network] = [*self.cells, *self.networks]
        clean = [
            OneByOne.on(self, one, dtype=dtype, noise=0.0, batches=self.repeats_alone)
            for one, dtype in product(alone, self.precisions)
        ]
        yield from clean
        for noise, first in product(self.noises, clean[:1]):
            yield first.model_copy(update={"noise": noise})
        for cell, dtype in product(self.joint_cells, self.precisions):
            yield Together.on(self, cell, dtype=dtype, known=cell.known == "known", **self._effort(cell.size))
        for network in self.joint_networks:
            yield Together.on(self, network, dtype="float32", known=True, **self._effort(network.size))
        for size, dtype in product(self.sizes, self.precisions):
            yield Inverted.of(self, size=size, dtype=dtype, shown=size == self.shown, dataset=self.image_dataset)
        for defense in self.defenses:
            for level in DEFENSES[defense]:
                behind = {"defense": defense, "level": level}
                yield DefendedBatch.of(self, size=self.shown, dataset=self.image_dataset, **behind)

    def _effort(self, size: int) -> dict[str, int]:
        """Return the numbers of batches and of random starts of a search for so many samples together."""
        return {
            "batches": self.repeats if size <= MANY else min(self.repeats, FEW),
            "starts": max(FEWEST, round(self.starts * min(1.0, (LARGEST / size) ** 3))),
        }

    def about(self) -> str:
        """Return a short text on the size of a run."""
        names = ", ".join(data.title(name) for name in (self.dataset, self.image_dataset))
        return f"{counted(self.repeats_alone, 'batch')} per setting one by one, {self.repeats} otherwise; {names}"


@dataclass(frozen=True)
class Sent:
    """A batch: the client's gradient, the true labels and features, and the generator for later draws."""

    gradient: Tensor
    weight: Tensor
    features: Tensor
    labels: Tensor
    generator: Generator


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
    stage: attacked_networks.Stage
    dataset: str
    dtype: str
    batches: int

    @classmethod
    def on(cls, parameters: Parameters, one: Cell | Network, **inputs: Any) -> Self:
        """Return the experiment on the batches of a cell or a network."""
        about: dict[str, Any] = {"network": one.network, "size": one.size}
        if isinstance(one, Network):
            about |= {"classes": 0, "labels": "smoothing", "repeated": False}
            about |= {"stage": one.stage, "dataset": one.dataset}
        else:
            about |= {"classes": one.classes, "labels": one.labels, "repeated": one.drawn == "repeated"}
            about |= {"stage": "untrained", "dataset": "" if one.network == LAYER else parameters.dataset}
        return cls.of(parameters, **about | inputs)

    @property
    def _attacked(self) -> AttackedNetwork:
        return AttackedNetwork.of(f"{self.dataset}/{self.network}/{self.stage}")

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        training = self._attacked.training if self.stage == "trained" else ""
        return [name for name in (self.dataset, training) if name]

    def sent(self) -> Iterator[Sent]:
        """Yield the batches."""
        for generator, model, inputs, first in self._layers() if self.network == LAYER else self._networks():
            if self.repeated:
                few = first[: max(1, self.size // 2)]
                first = few[torch.randint(len(few), (self.size,), generator=generator)]
            model.to(self.device, DTYPES[self.dtype])
            inputs = inputs.to(self.device, DTYPES[self.dtype])
            labels = soft_labels(self.labels, first, len(model.get_parameter("head.weight")), generator).to(inputs)
            leaks = observe_heads(model, inputs, labels, batch_size=self.size)
            (features,) = inputs_of([model.get_submodule("head")], model, inputs)
            yield Sent(leaks.weight_gradients[0], leaks.weight, features, labels, generator)

    def _generators(self) -> Iterator[Generator]:
        return (Generator().manual_seed(self.seed + number) for number in range(self.batches))

    def _layers(self) -> Iterator[tuple[Generator, nn.Module, Tensor, Tensor]]:
        """Yield generator, random layer, features and first classes of each batch."""
        for generator in self._generators():
            weight, features = (
                torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
                for count in (self.classes, self.size)
            )
            weight, features = weight / math.sqrt(FEATURES), features.relu()
            head = nn.Linear(FEATURES, self.classes, bias=False)
            head.weight = nn.Parameter(weight)
            first = torch.randperm(self.classes, generator=generator)[: self.size]
            model = nn.Sequential(OrderedDict(head=head))
            yield generator, model, features / (features @ weight.T).std(), first

    def _networks(self) -> Iterator[tuple[Generator, nn.Module, Tensor, Tensor]]:
        """Yield generator, network, images and first classes of each batch."""
        private = data.load(self.dataset, "test")
        if self.classes:
            model = built(self.network, private, self.seed, self.device, classes=self.classes, bias=False)
        else:
            model, _ = attacked_networks.network(self._attacked, self.labels, private, self.seed, self.device)
        for generator in self._generators():
            chosen = torch.randperm(len(private), generator=generator)[: self.size]
            first = private.labels[chosen]
            if self.classes:
                # An untrained network does not relate images to classes.
                first = torch.randperm(self.classes, generator=generator)[: self.size]
            yield generator, model, data.normalise(private.images[chosen]), first


class OneByOne(Batches):
    """Find the samples of every batch one by one; `noise` is the standard deviation of noise on the gradient."""

    part: ClassVar[str] = "labels"
    noise: float

    def run(self) -> Iterator[Columns]:
        """Recover the labels and features of every batch."""
        for number, sent in enumerate(self.sent()):
            gradient, utility, attackers = sent.gradient, 1.0, {"unaware": 0.0}
            if self.noise:
                attackers |= {"aware": self.noise}
                gradient = defenses.gaussian(self.noise, sent.generator)({"head": gradient})["head"]
                utility = defenses.utility({"head": sent.gradient}, {"head": gradient})
            for attacker, noise in attackers.items():
                started = time.perf_counter()
                found = recover_batch(
                    gradient, sent.weight, batch_size=self.size, prior=self.labels, noise=noise, seed=self.seed + number
                )
                seconds = time.perf_counter() - started
                about: Columns = {"batch": number, "attacker": attacker, "seconds": seconds, "utility": utility}
                yield about | judge(found, sent.features, sent.labels)


class Together(Batches):
    """Find all samples of every batch at once; `known` tells whether the attacker knows how often each class occurs."""

    part: ClassVar[str] = "joint"
    known: bool
    starts: int

    def run(self) -> Iterator[Columns]:
        """Recover the labels and features of every batch."""
        for sent in self.sent():
            mixed = self.labels == "mixup"
            classes = sent.labels.topk(2, dim=1).indices if mixed else sent.labels.argmax(dim=1)
            started = time.perf_counter()
            known: dict[str, Any] = {"classes": classes} if self.known else {"batch_size": self.size}
            found = recover_jointly(
                sent.gradient, sent.weight, prior=self.labels, starts=self.starts, seed=self.seed, **known
            )
            seconds = time.perf_counter() - started
            errors = largest_errors(found, sent.features, sent.labels)
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


class Inverted(OnImages):
    """Restore batches of one size and precision by the closed form and by the bias attack."""

    part: ClassVar[str] = "closed"
    dtype: str
    repeats: int
    shown: bool

    def run(self) -> Iterator[Columns]:
        """Restore every batch by both attacks, and yield a picture of the first."""
        model, biased = self.client(self.dtype), self.client(self.dtype, bias=True)
        for number in range(self.repeats):
            images, labels = self.batch(number)
            leak = _leak(model, images, labels)
            started = time.perf_counter()
            found = trace_fully_connected(leak)
            seconds = time.perf_counter() - started
            restored = _pixels(found.inputs, images)
            about: Columns = {"batch": number, "attack": CLOSED_FORM, "seconds": seconds, "status": found.status}
            about |= {"reason": found.reason, "certified": found.status == "exact"}
            yield nearness(restored, images) | about
            started = time.perf_counter()
            best = nearest(bias_attack(_leak(biased, images, labels)), data.normalise(images).flatten(1))
            seconds = time.perf_counter() - started
            units = _pixels(best, images)
            about = {"batch": number, "attack": BIAS_ATTACK, "seconds": seconds, "status": "best unit"}
            yield nearness(units, images) | about
            if self.shown and number == 0 and self.dtype == "float32":
                order = metrics.match_batch(restored, images)
                yield {"picture": packed(torch.cat([images, units, restored[order]]), self.size)}


class DefendedBatch(OnImages, BehindDefence):
    """Restore one batch behind a defence, by an attacker who expects no noise and by one who estimates it."""

    def run(self) -> Iterator[Columns]:
        """Defend the batch, and invert it as both attackers."""
        images, labels = self.batch()
        clean = _leak(self.client(), images, labels)
        sent = replace(clean, gradients=sent_behind(self.defense, self.level, clean.gradients, self.seed))
        utility = defenses.utility(clean.gradients, sent.gradients)
        for attacker, noise in (("unaware", 0.0), ("aware", None)):
            found = trace_fully_connected(sent, noise=noise)
            about: Columns = {"attacker": attacker, "status": found.status, "utility": utility}
            yield nearness(_pixels(found.inputs, images), images) | about


def _leak(model: nn.Module, images: Tensor, labels: Tensor) -> Leak:
    weight = next(model.parameters())
    return observe(model, data.normalise(images).to(weight), labels.to(weight))


def _pixels(inputs: Tensor, images: Tensor) -> Tensor:
    """Return recovered inputs (B, D) of a network as pixels in the shape of images (B, C, H, W)."""
    return data.denormalise(inputs.cpu().reshape(images.shape))


def nearest(units: Tensor, truth: Tensor) -> Tensor:
    """Return, for each true input (B, D), the nearest of the units' answers (O, D); no attacker has this choice."""
    units = units[units.isfinite().all(dim=1)]
    return units[torch.cdist(truth.to(units), units).argmin(dim=1)]


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


def headline(record: Record) -> Headline:
    """Return the finding: batches are recovered exactly, labels and images, and no certified answer is wrong."""
    known = claims.judgements(record)
    exact, wrong, psnr = known["batch-thousand"], known["batch-silent"], known["exact-float32"]
    size, classes = (exact.claim.measure.where[name] for name in ("size", "classes"))
    return Headline(
        f"From one averaged gradient of an untrained ResNet18 with {classes:,} classes, an attacker recovers soft "
        f"labels and features of all {size} samples in {exact.text} of batches, with no wrong certificate, and from a "
        f"fully connected network all {psnr.claim.measure.where['size']} images at {psnr.text}.",
        true=exact.value is not None and exact.value >= 98 and wrong.value == 0 and bool(psnr.agrees),
        claim="batch-thousand",
        what=f"batches of {size} samples recovered exactly (untrained ResNet18, {classes:,} classes, float32)",
        of="batches",
        figure=figure_limits,
    )


def labels_table(record: Record) -> pd.DataFrame:
    """Return how many batches are recovered, without noise and by an attacker who knows the noise."""
    rows = searched(record)
    rows = rows[rows["noise"].eq(0) | rows["attacker"].eq("aware")]
    kinds = rows["repeated"].map({True: "repeated", False: "distinct"}).where(rows["classes"] > 0, "of the images")
    rows = rows.assign(
        network=rows["stage"].map({"trained": "trained ", "untrained": ""})
        + rows["network"].replace(LAYER, "random layer"),
        classes=rows["classes"].map(lambda classes: classes or "–"),
        kind=rows["labels"] + ", " + kinds + rows["known"].map({False: ", unknown"}).fillna(""),
        noise=rows["noise"].map("{:g}".format),
    )
    precisions = list(rows["dtype"].unique())
    measures: dict[str, Measure] = {"batches": among(count(), dtype=precisions[0])}
    for dtype in precisions:
        exact = cells(COLUMNS, "whole", by=mean) | cells(COLUMNS, "largest_error", by=greatest)
        measures |= {f"{head}, {dtype}": among(measure, dtype=dtype) for head, measure in exact.items()}
    return summary(
        rows,
        {"search": "search", "network": "network", "C": "classes", "B": "size", "labels, classes": "kind"}
        | {"noise": "noise"},
        measures | {"median time (s)": median("seconds")},
    )


def figure_limits(record: Record) -> Figure:
    """Plot the share of batches recovered against the batch size, for smoothed labels and distinct classes.

    Left: networks, whose samples are found one by one. Right: random layers, whose samples are found together. Vertical
    lines mark the batch sizes (C − 2) / 2 and C − 2, beyond which the equations of these searches no longer suffice.
    """
    rows = select(searched(record), stage="untrained", labels="smoothing", repeated=False, noise=0.0)
    rows = rows[rows["classes"] > 0].assign(percent=100.0 * rows["whole"].astype(float))
    alone, together = select(rows, search=ALONE), select(rows, search=TOGETHER, network=LAYER)
    alone = alone.assign(network=alone["network"] + alone["classes"].map(", C = {}".format))
    # The number of classes with the most batch sizes.
    many = max(together["classes"], key=list(together["classes"]).count, default=0)
    knowledge = {True: "classes known", False: "classes unknown"}
    in_colours = crossed(alone["network"].unique(), alone["dtype"].unique())
    others = {name: look_of(number) for number, name in enumerate(knowledge.values(), start=3)}

    def share_by_size(rows: pd.DataFrame, curves: Mark, limits: Mapping[float, str], title: str) -> Panel:
        bounds = [bound(at, words, 106, ha="right") for at, words in limits.items() if at <= 1.6 * rows["size"].max()]
        style = {"xlabel": "batch size B (samples)", "ylabel": "batches recovered (%)", "xlim": (0, None)}
        return panel(rows, curves, *bounds, title=title, ylim=(-4, 114), **style)

    return arranged(
        [
            share_by_size(
                alone,
                lines("size", "percent", by=["network", "dtype"], looks=in_colours),
                {(classes - 2) / 2: f"(C − 2) / 2, C = {classes} " for classes in sorted(set(alone["classes"]))},
                "one by one, untrained networks",
            ),
            share_by_size(
                select(together, classes=many),
                lines("size", "percent", by="known", label=knowledge.__getitem__, looks=others),
                {(many - 2) / 2: "(C − 2) / 2 ", many - 2: "C − 2 "},
                f"together, random layers, C = {many}",
            ),
        ],
        across=2,
        height=3.4,
        legend=3,
    )


def figure_certificate(record: Record) -> Figure:
    """Plot the largest label error of each batch against the error that the attack claims."""
    rows = record.rows(OneByOne)
    return drawn(
        rows[rows["noise"].eq(0) & rows["labels"].ne("onehot") & rows["largest_error"].notna()],
        scattered("claimed", "largest_error", by=["dtype", "status"], markersize=4),
        lines("claimed", "claimed", label=lambda: "claimed = actual", color=figures.TRUTH, marker=""),
        height=3.4,
        legend=4,
        xscale="log",
        yscale="log",
        xlabel="claimed label error (L1)",
        ylabel="largest label error (L1)",
    )


def images_table(record: Record) -> pd.DataFrame:
    """Return the results of the closed form, on clean gradients and behind defences, and of the bias attack."""
    behind = with_defence_cells(select(record.rows(DefendedBatch), attacker="aware"))
    behind = behind.assign(attack=CLOSED_FORM, dtype="float32", certified=behind["status"] == "exact")
    measures = {
        "batches": count(),
        **cells(COLUMNS, "certified", by=total),
        **cells(COLUMNS, "psnr", by=mean, head="mean {}"),
        **cells(COLUMNS, "lowest_psnr", by=least),
        **cells(COLUMNS, "seconds", by=median, head="median {}"),
    }
    return summary(
        pd.concat([inverted(record).assign(defence="none", strength=NOTHING), behind]),
        {"B": "size", "precision": "dtype", "defence": "defence", "strength": "strength"},
        {head: among(measure, attack=CLOSED_FORM) for head, measure in measures.items()}
        | {"bias attack: images above 40 dB": among(_indistinguishable, attack=BIAS_ATTACK)},
    ).replace("nan", NOTHING)


def _indistinguishable(rows: pd.DataFrame) -> str:
    """Measure how many images are indistinguishable from the private ones, and of how many."""
    return f"{round((rows['over_40'] * rows['images']).sum() / 100):,} of {rows['images'].sum():,.0f}"


def figure_batch(record: Record) -> Figure:
    """Show one batch: the private images, the bias attack's best units, and the closed form's images."""
    rows = record.rows(Inverted)
    row = rows[rows["picture"].notna()].iloc[0]
    figure, axes = figures.panels(1, 1, height=min(3.6, max(1.2, 8.4 * 3 / row["size"])))
    show(axes[0][0], row["picture"], ["private", BIAS_ATTACK, CLOSED_FORM])
    return figure


def figure_images(record: Record) -> Figure:
    """Plot the mean PSNR (dB) of both attacks against the batch size; shading spans the means of single batches.

    A vertical line marks the batch size B = (C − 2) / 2 beyond which the equations no longer suffice.
    """
    rows = inverted(record)
    rows = rows[(rows["psnr"] > -math.inf) & ((rows["attack"] == CLOSED_FORM) | (rows["dtype"] == "float32"))]
    return drawn(
        rows,
        lines("size", "psnr", by=["attack", "dtype"], band="range"),
        bound((record.stated(Parameters).classes - 2) / 2, label="B = (C − 2) / 2"),
        height=3.4,
        legend=4,
        xlabel="batch size B (images)",
        ylabel="mean PSNR (dB)",
        ylim=(0, None),
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    own = line(labels_table(record), ALONE, "resnet18", "1000", "32", "smoothing, distinct")
    images = line(images_table(record), own["B"], "float32", "none")
    return Leaks(
        "all soft labels and features; images in closed form",
        f"batches of {own['B']}; untrained ResNet18, {own['C']} classes; images: fully connected, no biases",
        f"{own['recovered exactly, float32']} of {own['batches']} batches exact, label error (L1) at most "
        f"{own['largest L_r, float32']}; images: {images['batches certified']} of {images['batches']} batches "
        f"certified, mean PSNR {images['mean PSNR (dB)']} dB",
        f"{own['median time (s)']} s elapsed, images {images['median time (s)']} s",
        kind="soft labels",
        attack="batch solver",
        batch=int(own["B"]),
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
    )  # fmt: skip
    return found + collected(
        record, behind, "images", mean, cosine=behind["utility"],
        attack="closed form, " + behind["attacker"].map(KNOWLEDGE), network="fcn4", data=behind["dataset"],
        batch=behind["size"], defense=written(behind["defense"], behind["level"], {"clip": "clip-share"}),
    )  # fmt: skip
