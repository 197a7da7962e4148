"""Peeling limits: how far peeling goes

Beyond wang2024, section 4.2: peeling of trained networks, larger batches, other networks and defended gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.errors import MissingData
from gradleak.images import Adam, Peeled, match, peel, restore_batches
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.images.peeling.attack import counts_of
from gradleak.images.peeling.network import Network
from gradleak.leak import Leak, head_inputs, observe
from gradleak.models import training
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, Measure, among, count, greatest, least, median, only, select, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, Outcome, collected, median_of
from gradleak.studies.shared.peeled import (
    OUTCOMES,
    PeeledBatch,
    PeeledLayer,
    batches,
    decibels,
    judged,
    layers_of,
    psnr_or_lost,
    reached,
    reached_count,
    short,
)
from gradleak.studies.shared.samples import DTYPES

PLACE = "Beyond section 4.2"
# In an exactly restored image, the PSNR (dB) measures only rounding errors, and the ratio compares them with the errors
# that the attack claims. `unsure` is 1 − p, which float32 rounds as it rounds p.
COLUMNS = {
    "least": kinds.rounding(decibels=True),
    "sure": kinds.rounding(decibels=True),
    "other": kinds.rounding(decibels=True),
    "images_ratio": kinds.rounding(near=10.0),
    "unsure": kinds.measured(relative=1e-5),
}
# A ratio of times differs from run to run.
TIMES = ("times",)
NETWORK = "resnet18-cifar"
SIDE, CLASSES = 32, 100
# Image side (pixels) for larger batches: at this side, no convolution has more positions than equations.
FEW = 16
# The dataset on which the network is trained.
LEARNS = "flowers17"
LOCAL = "local"
# The levels of each defence.
DEFENSES: dict[str, tuple[float, ...]] = {
    "gaussian": (1e-9, 1e-8, 1e-7),
    "clip-share": (0.5,),
    "prune": (0.01, 0.1),
    LOCAL: (1e-6, 1e-3),
}
NAMES = {
    "resnet18-cifar": "ResNet18, CIFAR form",
    "resnet18": "ResNet18, 7×7 stem",
    "resnet20": "ResNet20",
    "resnet50-cifar": "ResNet50, CIFAR form",
    "lenet": "LeNet, sigmoid",
    "efficientnet-lite0": "EfficientNet-Lite0",
}
COUNTED = range(1, 17)
PEELING = "peeling"
# The attackers on defended gradients, in words.
ATTACKERS = {
    "unaware": "expects no defence",
    "aware": "expects the defence",
    "as one step": "expects one step",
}


class Stage(Form):
    """A trained network and its batches.

    Attributes:
        side: The side of the images (pixels).
        epochs: The number of training epochs.
        size: The batch size.
        batches: The number of batches.
    """

    side: Whole = Field(ge=8)
    epochs: Whole = Field(ge=1)
    size: Whole = Field(ge=1)
    batches: Whole = Field(1, ge=1)


class Race(Form):
    """The size of a batch that other attacks are run on too, and their number of steps."""

    size: Whole = Field(ge=1)
    steps: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """Parameters of the page: networks, batch sizes, confident samples, defences, and other attacks to compare with."""

    trained: list[Stage] = setting(
        [],
        paper=[*(f"16/{epochs}/{form}" for epochs in (1, 5, 20) for form in ("1/3", "4/1")), "32/5/1/1"],
        validate_default=True,
        about="trained networks, written image side (pixels)/epochs/batch size/batches",
    )
    large: list[int] = setting(
        [], paper=[8], about="batch sizes of small images in an untrained network, one batch each"
    )
    confident: list[float] = setting(
        [1e-1],
        paper=[1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10],
        about="1 − p for the first of two samples, p being the probability of its label",
    )
    precisions: list[str] = setting(
        ["float32"], paper=list(DTYPES), about="precisions of the gradients of these two samples"
    )
    defenses: list[str] = setting(["clip-share"], paper=list(DEFENSES), about="defences, each at several levels")
    repeats: int = setting(1, ge=1, le=1000, about="batches per defence and level, of one sample each")
    networks: list[str] = setting(
        ["resnet20"], paper=list(NAMES), about="networks that are peeled without the search for images at the end"
    )
    sizes: list[int] = setting([1], paper=[1, 2, 4, 8], about="batch sizes of these networks")
    rivals: list[Race] = setting(
        [],
        paper=["4/100", "1/1000"],
        validate_default=True,
        about="batches on which other attacks are run too, written batch size/steps",
    )
    steps: int = setting(
        50,
        paper=1200,
        ge=1,
        le=100_000,
        about="steps of the search for the images from the inputs of the lowest layer reached",
    )
    dataset: str = setting(
        "photos",
        paper="cifar10",
        about="dataset of the private images, test split; trained networks use Flowers-17 instead",
    )

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees(NETWORK, self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield one experiment for each batch, and one for each level of a defence."""
        for stage in self.trained:
            for batch in range(stage.batches):
                yield TrainedNetwork.of(self, stage=str(stage), batch=batch)
        for size in self.large:
            yield LargeBatch.of(self, size=size)
        for dtype, level in product(self.precisions, self.confident):
            yield SureSample.of(self, level=level, dtype=dtype)
        for defense in self.defenses:
            for level in DEFENSES[defense]:
                yield Defended.of(self, defense=defense, level=level)
        for network, size in product(self.networks, self.sizes):
            yield Reach.of(self, network=network, size=size)
        for race in self.rivals:
            yield Rivals.of(self, size=race.size, steps=race.steps)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        largest = max([1, *self.sizes, *self.large])
        sizes = "one image each" if largest == 1 else f"1 to {largest} images"
        flowers = " and Flowers-17" if self.trained else ""
        return f"batches of {sizes}, {data.title(self.dataset)}{flowers}"


class DeepBatch(PeeledBatch):
    """A peeled batch; `deepest` is the lowest layer whose inputs were recovered, "" if there is none."""

    deepest: str


class TimedBatch(DeepBatch):
    """A peeled batch with the CPU time (s) of peeling."""

    cpu_seconds: float


class TrainedBatch(TimedBatch):
    """A peeled batch of a trained network.

    Attributes:
        accuracy: The network's test accuracy.
        loss: The training loss at the end.
        side: The side of the images (pixels).
        epochs: The number of training epochs.
        size: The batch size.
        surest: 1 − p for the sample with the largest label probability p.
        least_sure: 1 − p for the sample with the smallest label probability p.
    """

    accuracy: float
    loss: float
    side: int
    epochs: int
    size: int
    surest: float
    least_sure: float


class SureBatch(DeepBatch):
    """A peeled pair of samples, the first with a label probability p near 1.

    Attributes:
        sure: The PSNR (dB) of the first sample.
        other: The PSNR (dB) of the second sample.
        unsure: 1 − p for the first sample.
    """

    sure: float
    other: float
    unsure: float


class DefendedBatch(DeepBatch):
    """A batch that an attacker peeled from a defended gradient."""

    attacker: str
    batch: int


class DefendedLayer(PeeledLayer):
    """A layer of a batch that an attacker peeled from a defended gradient."""

    attacker: str
    batch: int


class Picture(Row):
    """A picture of a batch: the private images, or those that an attack restored."""

    attack: str
    picture: str


class Restored(Picture):
    """A batch that an attack restored, with mean and lowest PSNR (dB); `times`: its CPU time divided by peeling's."""

    cpu_seconds: float
    psnr: float
    least: float
    times: float


class TrainedNetwork(Experiment):
    """Peel a batch of test images in a trained network; `stage` describes the training and the batch."""

    part: ClassVar[str] = "trained"
    stage: str
    batch: int
    steps: int

    def reads(self) -> list[str]:
        """Return the dataset of the training."""
        return [LEARNS]

    def run(self) -> list[Row]:
        """Train the network or load it from the cache, and peel the batch."""
        own = Stage.of(self.stage)
        recipe = training.Recipe(
            network=NETWORK, dataset=LEARNS, bias=False, image_size=own.side, epochs=own.epochs, batch_size=32,
            learning_rate=1e-3, seed=self.seed,
        )  # fmt: skip
        trained = training.train(recipe, device=self.device)
        private = data.load(LEARNS, "test", size=own.side)
        generator = torch.Generator().manual_seed(self.seed + self.batch)
        chosen = torch.randperm(len(private), generator=generator)[: own.size]
        images, labels = private.images[chosen].double(), private.labels[chosen]
        leak = _observed(trained.model, images, labels, self.device)
        with torch.no_grad():
            logits = trained.model(data.normalise(images).to(self.device).float()).double().cpu()
        unsure = _unsure(logits, labels)
        found, seconds = _timed(leak, self.steps)
        batch, layers = _rows(leak, found, images)
        row = TrainedBatch.of(
            batch,
            cpu_seconds=seconds,
            accuracy=trained.accuracy,
            loss=trained.losses[-1],
            side=own.side,
            epochs=own.epochs,
            size=own.size,
            surest=float(unsure.min()),
            least_sure=float(unsure.max()),
        )
        return [row, *layers]


class OnImages(Experiment):
    """An experiment on private images and an untrained network."""

    dataset: str

    def images(self, size: int, seed: int, side: int = FEW) -> Tensor:
        """Return private images (B, C, H, W), downsampled to a side of `side` pixels."""
        private = data.load(self.dataset, "test")
        generator = torch.Generator().manual_seed(seed)
        images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
        return F.adaptive_avg_pool2d(images, side)

    def sent(self, size: int, seed: int, local_steps: int = 1, rate: float = 0.1) -> tuple[Tensor, Leak]:
        """Return a batch of small images with random labels, and the client's leak."""
        images = self.images(size, seed)
        model, labels = _network(images, seed), _classes(size, seed)
        return images, _observed(model, images, labels, self.device, local_steps=local_steps, rate=rate)


class LargeBatch(OnImages):
    """Peel a batch of images at half their size, because at full size there are too few equations for the batch."""

    part: ClassVar[str] = "large"
    size: int
    steps: int

    def run(self) -> list[Row]:
        """Peel the batch."""
        images, leak = self.sent(self.size, self.seed)
        found, seconds = _timed(leak, self.steps)
        batch, layers = _rows(leak, found, images)
        return [TimedBatch.of(batch, cpu_seconds=seconds), *layers]


class SureSample(OnImages):
    """Peel a pair of samples; the first has a label probability p with 1 − p = `level`."""

    part: ClassVar[str] = "confident"
    level: float
    dtype: str

    def run(self) -> list[Row]:
        """Change the network so that p of the first sample is as wanted, and peel both samples."""
        images, labels = self.images(2, self.seed), _classes(2, self.seed)
        model = _network(images, self.seed).double()
        with torch.no_grad():
            _sure_of(model, images, int(labels[0]), self.level)
            model.to(DTYPES[self.dtype])
            unsure = _unsure(model(data.normalise(images).to(DTYPES[self.dtype])).double(), labels)
        leak = _observed(model, images, labels, self.device, self.dtype)
        found = peel(leak)
        restored = data.denormalise(found.images.cpu())
        own = psnr_or_lost(restored[metrics.match_batch(restored, images)], images)
        batch, layers = _rows(leak, found, images)
        return [SureBatch.of(batch, sure=float(own[0]), other=float(own[1]), unsure=float(unsure[0])), *layers]


class Defended(OnImages):
    """Peel single images behind a defence, as an attacker who does not expect the defence and as one who does.

    The defence "local" takes two local steps with one sample each; its `level` is the learning rate.
    """

    part: ClassVar[str] = "defended"
    defense: str
    level: float
    repeats: int

    def run(self) -> Iterator[Row]:
        """Peel every batch as each attacker."""
        for batch in range(self.repeats):
            client = self._two_steps if self.defense == LOCAL else self._behind
            images, leak = client(self.seed + batch)
            for attacker, (noise, scale) in self._attackers().items():
                row, layers = _rows(leak, peel(leak, noise=noise, scale=scale), images)
                yield DefendedBatch.of(row, attacker=attacker, batch=batch)
                for layer in layers:
                    yield DefendedLayer.of(layer, attacker=attacker, batch=batch)

    def _behind(self, seed: int) -> tuple[Tensor, Leak]:
        images, clean = self.sent(1, seed)
        change = defenses.named(f"{self.defense}/{self.level}", generator=torch.Generator().manual_seed(seed))
        return images, replace(clean, gradients=change(clean.gradients))

    def _two_steps(self, seed: int) -> tuple[Tensor, Leak]:
        """Return the mean update of two local steps with one sample each, as if it were one step with two."""
        images, sent = self.sent(2, seed, local_steps=2, rate=self.level)
        halved = {name: value / 2 for name, value in sent.gradients.items()}
        return images, replace(sent, gradients=halved, batch_size=2, local_steps=1)

    def _attackers(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the noise level and the gradient scale that each attacker assumes, None for those to estimate."""
        if self.defense == LOCAL:
            return {"as one step": (0.0, 1.0)}
        aware: dict[str, tuple[float | None, float | None]] = {
            "gaussian": (self.level, 1.0),
            "clip-share": (0.0, None),
            "prune": (None, 1.0),
        }
        return {"unaware": (0.0, 1.0), "aware": aware[self.defense]}


class Reach(OnImages):
    """Peel a network as far as its equations suffice, without the search for images at the end."""

    part: ClassVar[str] = "reach"
    network: str
    size: int

    def run(self) -> list[Row]:
        """Peel a batch with distinct classes."""
        images = self.images(self.size, self.seed, SIDE)
        model = _network(images, self.seed, self.network)
        with torch.no_grad():
            classes = model(data.normalise(images).float()).shape[1]
        labels = torch.randperm(classes, generator=torch.Generator().manual_seed(self.seed))[: self.size]
        leak = _observed(model, images, labels, self.device)
        found, seconds = _timed(leak, steps=0)
        batch, layers = _rows(leak, found, images)
        return [TimedBatch.of(batch, cpu_seconds=seconds), *layers]


class Rivals(OnImages):
    """Restore a batch by peeling, and by GradInversion and gradient matching with `steps` steps."""

    part: ClassVar[str] = "rival"
    size: int
    steps: int

    def run(self) -> Iterator[Picture]:
        """Restore the batch by each of the three attacks."""
        images, leak = self.sent(self.size, self.seed)
        yield Picture(attack="private", picture=packed(images, self.size))
        settings = replace(SETTINGS["gradinversion+pyramid"], steps=self.steps)
        own = 0.0
        for attack in (PEELING, "GradInversion", "matching"):
            cpu = time.process_time()
            if attack == PEELING:
                inputs = peel(leak, steps=1200).images
            elif attack == "GradInversion":
                inputs = restore_batches(leak, "recovered", settings=settings, seed=self.seed).images
            else:
                optimizer = Adam(steps=self.steps, signed=True)
                inputs = match(leak, distance="cosine", optimizer=optimizer, seed=self.seed).images
            seconds = time.process_time() - cpu
            restored = data.denormalise(inputs.flatten(0, -4).cpu().double())
            restored = restored[metrics.match_batch(restored, images)]
            psnr = psnr_or_lost(restored, images)
            own = own or seconds
            yield Restored(
                attack=attack,
                cpu_seconds=seconds,
                psnr=float(psnr.mean()),
                least=float(psnr.min()),
                times=seconds / own,
                picture=packed(restored, self.size),
            )


def _network(images: Tensor, seed: int, name: str = NETWORK) -> nn.Module:
    if name == "efficientnet-lite0":
        return models.plain_lite0()
    channels, side = images.shape[1], images.shape[-1]
    return models.build(
        name, classes=CLASSES, bias=False, init="torch", in_channels=channels, image_size=side, seed=seed
    )


def _classes(size: int, seed: int) -> Tensor:
    return torch.randint(CLASSES, (size,), generator=torch.Generator().manual_seed(seed))


def _observed(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    device: str,
    dtype: str = "float32",
    local_steps: int = 1,
    rate: float = 0.1,
) -> Leak:
    inputs = data.normalise(images).to(device, DTYPES[dtype])
    model = model.to(device, DTYPES[dtype])
    return observe(model, inputs, labels.to(device), local_steps=local_steps, rate=rate)


def _timed(leak: Leak, steps: int) -> tuple[Peeled, float]:
    cpu = time.process_time()
    found = peel(leak, steps=steps)
    return found, time.process_time() - cpu


def _rows(leak: Leak, found: Peeled, images: Tensor) -> tuple[DeepBatch, list[PeeledLayer]]:
    """Return the row of a batch and the rows of its layers."""
    inputs = data.normalise(images).to(found.images.device)
    layers = layers_of(leak.model, found, inputs)
    deepest = next((layer.layer for layer in reversed(layers) if not layer.reason), "")
    return DeepBatch.of(judged(found, images, inputs), deepest=deepest), layers


def _unsure(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 − p of the labels (B,), computed without the subtraction, which would cancel digits."""
    rest = (logits - logits.gather(1, labels[:, None])).scatter(1, labels[:, None], -torch.inf)
    return rest.logsumexp(dim=1).sigmoid()


def _sure_of(model: nn.Module, images: Tensor, label: int, level: float) -> None:
    """Change the last layer so that 1 − p of the first image is `level`, with the same logits for the second image."""
    features, logits = head_inputs(model, data.normalise(images))
    own, other = features
    apart = own - (own @ other) / (other @ other) * other
    weight = next(layer for layer in reversed([*model.modules()]) if isinstance(layer, nn.Linear)).weight
    others = logits[0][torch.arange(len(logits[0])) != label].logsumexp(dim=0)
    wanted = others + math.log((1 - level) / level)
    weight[label] += (wanted - logits[0, label]) * apart / (apart @ own)


def batch_rows(record: Record, kind: type[Experiment]) -> pd.DataFrame:
    """Return the rows of batches from experiments of one kind."""
    return batches(record.rows(kind))


def headline(record: Record) -> Headline:
    """Return the finding: training does not stop peeling, but too few equations in a layer do."""
    restored = claims.judgements(record)["limits-trained"]
    networks = batch_rows(record, Reach)
    narrow = networks[networks["network"].isin(["resnet20", "resnet50-cifar"])]
    accuracy = batch_rows(record, TrainedNetwork)["accuracy"].max()
    return Headline(
        f"From ResNet18s trained to an accuracy of up to {100 * accuracy:.0f} % on the peeled images themselves, "
        f"peeling restores {restored.cases} small batches with every image exact (above {metrics.EXACT:.0f} dB). From "
        "an untrained ResNet20 or ResNet50 it recovers not a single layer.",
        true=restored.value == 100 and len(narrow) > 0 and bool((narrow["layers"] == 0).all()),
        claim="limits-trained",
        what=f"batches of trained ResNet18s with every image exact, above {metrics.EXACT:.0f} dB (flowers, float32)",
        of="batches",
        figure=figure_counts,
    )


def trained_table(record: Record) -> pd.DataFrame:
    """Return the results on trained networks.

    Rows: image side, epochs and accuracy, and batch size B. Columns: n batches; the smallest 1 − p of a sample;
    certified batches, batches with every image exact, and wrong certificates; the lowest PSNR (dB); the smallest
    number of layers recovered; the median CPU time (s).
    """
    order = ["side", "epochs", "size"]
    rows = batch_rows(record, TrainedNetwork).sort_values(order, kind="stable").astype(dict.fromkeys(order, int))
    rows = rows.assign(right=[f"{100 * accuracy:.0f} %" for accuracy in rows["accuracy"]])
    measures: dict[str, Measure] = {
        "batches": count(),
        "smallest 1 − p": least("surest", ".2g"),
        **OUTCOMES,
        "fewest layers recovered": least("layers", ".0f"),
        "CPU time (s)": median("cpu_seconds", ".0f"),
    }
    keys = {"image side (pixels)": "side", "epochs": "epochs", "accuracy": "right", "B": "size"}
    return summary(rows, keys, measures)


def confident_table(record: Record) -> pd.DataFrame:
    """Return the results on pairs of samples, of which the first has a label probability p near 1.

    Rows: 1 − p. Columns for each precision: the status, and the PSNR (dB) of the first and of the second sample.
    """
    rows = batch_rows(record, SureSample)
    measures: dict[str, Measure] = {}
    for dtype in dict.fromkeys(rows["dtype"]):
        measures |= {
            f"{dtype}: status": among(only("status"), dtype=dtype),
            f"{dtype}: PSNR of the sure sample (dB)": among(only("sure", decibels), dtype=dtype),
            f"{dtype}: PSNR of the other sample (dB)": among(only("other", decibels), dtype=dtype),
        }
    lines = summary(rows, {"1 − p": "level"}, measures)
    return lines.assign(**{"1 − p": [f"{float(level):.0e}" for level in lines["1 − p"]]})


def defended_table(record: Record) -> pd.DataFrame:
    """Return the results behind defences.

    Rows: defences with their levels, and attackers. Columns: n batches; the smallest number of layers recovered;
    certified batches, batches with every image exact, and wrong certificates; the lowest PSNR (dB).
    """
    rows = batch_rows(record, Defended)
    rows = rows.assign(
        defence=[
            f"local steps, rate {level:g}" if defense == LOCAL else defenses.shown(f"{defense}/{level}")
            for defense, level in zip(rows["defense"], rows["level"], strict=True)
        ],
        attacker=rows["attacker"].map(ATTACKERS),
    )
    measures = {"batches": count(), "fewest layers recovered": least("layers", ".0f")} | OUTCOMES
    return summary(rows, {"defence": "defence", "attacker": "attacker"}, measures)


def rival_table(record: Record) -> pd.DataFrame:
    """Compare three attacks on the same batches.

    Rows: batch sizes B and attacks. Columns: steps, CPU time (s), this time divided by peeling's, mean and lowest PSNR
    (dB).
    """
    rows = record.rows(Rivals)
    rows = rows[rows["psnr"].notna()].astype({"size": int})
    return summary(
        rows.assign(steps=rows["steps"].map("{:.0f}".format).where(rows["attack"] != PEELING, NOTHING)),
        {"B": "size", "attack": "attack", "steps": "steps"},
        {
            "CPU time (s)": only("cpu_seconds", ".0f"),
            "CPU time relative to peeling": only("times", ".1f"),
            "mean PSNR (dB)": only("psnr", decibels),
            "lowest PSNR (dB)": only("least", decibels),
        },
    )


def reach_table(record: Record) -> pd.DataFrame:
    """Return how many layers of each network were peeled.

    Rows: networks and batch sizes B. Columns: layers recovered, their largest claimed and true errors, and what stopped
    peeling.
    """
    rows = record.rows(Reach).astype({"size": int})
    rows = rows.assign(network=[NAMES[name] for name in rows["network"]])
    return summary(
        rows,
        {"network": "network", "B": "size"},
        {
            "layers recovered": reached_count,
            "largest claimed error": reached(greatest("claimed", ".0e")),
            "largest true error": reached(greatest("off", ".0e")),
            "why peeling ended": _ended,
        },
    )


def _ended(rows: pd.DataFrame) -> str:
    """Return what stopped peeling: too few equations, the omitted search for images, or the attack's reason."""
    reasons = select(rows, what="layer")["reason"]
    reasons = reasons[reasons != ""]
    if len(reasons):
        return str(reasons.iloc[0])
    batch = select(rows, what="batch").iloc[0]
    # The residual is finite if the search for images found all of them, because their gradient is then compared.
    unfound = batch["matched"] != "" and math.isinf(batch["residual"])
    return f"the equations end at {batch['matched']}" if unfound else str(batch["reason"])


def large_table(record: Record) -> pd.DataFrame:
    """Return the results on large batches of small images.

    Rows: batch sizes B. Columns: the status, the number of layers recovered, the lowest of these layers, the lowest
    PSNR (dB), whether a wrong batch is called unique, and the CPU time (s).
    """
    return summary(
        batch_rows(record, LargeBatch).astype({"size": int}),
        {"B": "size"},
        {
            "status": only("status"),
            "layers recovered": only("layers", ".0f"),
            "recovered layer nearest to the image": only("deepest", lambda layer: short(layer) or NOTHING),
            "lowest PSNR (dB)": only("least", decibels),
            "wrong certificates": only("silently", ".0f"),
            "CPU time (s)": only("cpu_seconds", ".0f"),
        },
    )


def counted(network: str) -> pd.DataFrame:
    """Count equations to find the first layer that stops peeling a network, for each batch size.

    Rows: batch sizes. Columns: the number of layers before this layer, the total number of layers, this layer's name,
    and the reason why it stops peeling.
    """
    images = torch.zeros(1, 3, SIDE, SIDE)
    traced, lines = Network(_network(images, 0, network).to("meta"), (3, SIDE, SIDE)), []
    for size in COUNTED:
        counts = counts_of(traced, size)
        stops = next((n for n, count in enumerate(counts) if count.reason), len(counts))
        last = counts[stops] if stops < len(counts) else None
        row = {"size": size, "passes": stops, "layers": sum(count.unknowns > 0 for count in counts)}
        lines.append(row | {"stops": last.name if last else "", "reason": last.reason if last else ""})
    return pd.DataFrame(lines)


def figure_counts(record: Record) -> Figure:
    """Plot the number of layers against the batch size, one panel for each network: by counting, and as recovered."""
    own, names = batch_rows(record, Reach), [name for name in NAMES if name in record.stated(Parameters).networks]
    figure, axes = figures.grid(len(names), 3, height=2.6)
    for axis, name in zip(axes, names, strict=True):
        found = own[own["network"] == name]
        axis.plot(found["size"], found["layers"], "o", color=figures.COLOURS[1], label="layers recovered")
        # Counting needs the network, and the package of a pretrained network may not be installed.
        try:
            said, dashes = counted(name), figures.DASHES[1]
            axis.step(
                said["size"], said["passes"], where="mid", color=figures.COLOURS[0], label="possible by the count"
            )
            most = said["layers"].max()
            axis.axhline(most, color=figures.TRUTH, linewidth=1.0, linestyle=dashes, label="layers of the network")
        except MissingData:
            axis.text(0.5, 0.5, "not counted: the package\nof its weights is missing", ha="center", va="center",
                      fontsize=8, transform=axis.transAxes)  # fmt: skip
            axis.margins(y=0.2)
        axis.set(title=NAMES[name], ylim=(-0.6, None), xlim=(0.5, COUNTED[-1] + 0.5), xlabel="batch size B")
        axis.set_ylabel("layers")
        axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    figures.legend_below(figure, 3)
    return figure


def figure_rival(record: Record) -> Figure:
    """Show the largest batch: private, and as restored by each attack."""
    frame = record.rows(Rivals)
    frame = frame[frame["size"] == frame["size"].max()]
    figure, axes = figures.panels(1, 1, height=4.4)
    show(axes[0][0], list(frame["picture"]), list(frame["attack"]))
    return figure


def figure_layers(record: Record) -> Figure:
    """Plot the true relative error of each layer's inputs against the layer, counted from the last.

    One line (median) and range for each noise level, which the attacker knows.
    """
    rows = select(record.rows(Defended), defense="gaussian", attacker="aware", what="layer", reason="")
    return drawn(
        rows.assign(place=rows["number"] + 1).sort_values("level"),
        lines("place", "off", by="level", middle="median", band="range", label="standard deviation {:.0e}".format),
        height=3.4,
        legend=4,
        yscale="log",
        xlabel="layer, counted from the last",
        ylabel="true relative error of a layer's inputs",
    )


def sinks(record: Record, dtype: str) -> float:
    """Return the least 1 − p down to which every first sample of a pair is restored, NaN if there is none."""
    frame = batch_rows(record, SureSample)
    frame = frame[frame["dtype"] == dtype].sort_values("level", ascending=False)
    exact = frame[(frame["sure"] >= metrics.EXACT).cummin()]
    return float(exact["level"].min()) if len(exact) else float("nan")


RIVALS_SHOWN = {"peeling": "peeling", "matching": "gradient matching", "GradInversion": "GradInversion"}


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    worst = median_of("least", "PSNR of a batch's worst image", "batches")
    rows = record.part("trained")
    rows = rows[rows["what"] == "batch"]
    found = collected(
        record, rows, "images", worst, attack="peeling", network=NETWORK, training="trained", data="cifar10",
        batch=rows["size"].astype(int),
        detail=[
            f"{side:g} pixels, after {epochs:g} epochs"
            for side, epochs in zip(rows["side"], rows["epochs"], strict=True)
        ],
    )  # fmt: skip
    rows = record.rows(Defended)
    rows = rows[rows["what"] == "batch"]
    levels = zip(rows["defense"], rows["level"], strict=True)
    behind = [
        ("none", f"2 local steps, rate {x:g}") if name == LOCAL else (f"{name}/{x:g}", "float32") for name, x in levels
    ]
    found += collected(
        record, rows, "images", worst, attack="peeling, " + rows["attacker"].map(KNOWLEDGE),
        network=NETWORK, data=rows["dataset"],
        batch=[2 if defense == LOCAL else 1 for defense in rows["defense"]], defense=[defense for defense, _ in behind],
        client=[client for _, client in behind],
    )  # fmt: skip
    rows = record.part("rival")
    rows = rows[rows["psnr"].notna()]
    return found + collected(
        record, rows, "images", worst, attack=rows["attack"].map(RIVALS_SHOWN), network=NETWORK,
        data=rows["dataset"],
        batch=rows["size"].astype(int), detail=f"{FEW} pixels",
    )  # fmt: skip
