"""Peeling limits: how far peeling goes

Beyond wang2024, section 4.2: peeling of trained networks, larger batches, other networks and defended gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.axes import Axes
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
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import drawn, lines, points
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, cells, count, least, median, select, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, Outcome, collected, median_of
from gradleak.studies.shared.peeled import batch_row, batches, image_psnr, in_order, layer_rows, similarity
from gradleak.studies.shared.samples import DTYPES
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Beyond section 4.2"
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
        paper=[*(f"16/{epochs}/{form}" for epochs in (1, 5, 20) for form in ("1/3", "4/1")), "32/5/1/1"],
        validate_default=True,
    )
    large: list[int] = setting(paper=[8])
    confident: list[float] = setting(paper=[1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10])
    precisions: list[str] = setting(paper=list(DTYPES))
    defenses: list[str] = setting(paper=list(DEFENSES))
    repeats: int = setting(ge=1, le=1000)
    networks: list[str] = setting(paper=list(NAMES))
    sizes: list[int] = setting(paper=[1, 2, 4, 8])
    rivals: list[Race] = setting(paper=["4/100", "1/1000"], validate_default=True)
    steps: int = setting(paper=1200, ge=1, le=100_000)
    dataset: str = setting(paper="cifar10")

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


class TrainedNetwork(Experiment):
    """Peel a batch of test images in a trained network; `stage` describes the training and the batch."""

    part: ClassVar[str] = "trained"
    stage: str
    batch: int
    steps: int

    def reads(self) -> list[str]:
        """Return the dataset of the training."""
        return [LEARNS]

    def run(self) -> list[Columns]:
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
        about: Columns = {
            "test_accuracy": trained.accuracy,
            "training_loss": trained.losses[-1],
            "side": own.side,
            "epochs": own.epochs,
            "size": own.size,
            "surest": float(unsure.min()),
            "least_sure": float(unsure.max()),
        }
        return _timed(leak, images, self.steps, **about)


class OnImages(Experiment):
    """An experiment on private images and an untrained network."""

    dataset: str

    def images(self, size: int, seed: int, side: int = FEW) -> Tensor:
        """Return private images (B, C, H, W), downsampled to a side of `side` pixels."""
        private = data.load(self.dataset, "test")
        generator = torch.Generator().manual_seed(seed)
        images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
        return F.adaptive_avg_pool2d(images, side)

    def sent(self, size: int, seed: int, **client: Any) -> tuple[Tensor, Leak]:
        """Return a batch of small images with random labels, and the client's leak; `client` as in `observe`."""
        images = self.images(size, seed)
        model, labels = _network(images, seed), _classes(size, seed)
        return images, _observed(model, images, labels, self.device, **client)


class LargeBatch(OnImages):
    """Peel a batch of images at half their size, because at full size there are too few equations for the batch."""

    part: ClassVar[str] = "large"
    size: int
    steps: int

    def run(self) -> list[Columns]:
        """Peel the batch."""
        images, leak = self.sent(self.size, self.seed)
        return _timed(leak, images, self.steps)


class SureSample(OnImages):
    """Peel a pair of samples; the first has a label probability p with 1 − p = `level`."""

    part: ClassVar[str] = "confident"
    level: float
    dtype: str

    def run(self) -> list[Columns]:
        """Change the network so that p of the first sample is as wanted, and peel both samples."""
        images, labels = self.images(2, self.seed), _classes(2, self.seed)
        model = _network(images, self.seed).double()
        with torch.no_grad():
            _sure_of(model, images, int(labels[0]), self.level)
            model.to(DTYPES[self.dtype])
            unsure = _unsure(model(data.normalise(images).to(DTYPES[self.dtype])).double(), labels)
        leak = _observed(model, images, labels, self.device, self.dtype)
        found = peel(leak)
        restored, _ = in_order(found.images, images)
        sure, other = image_psnr(restored, images).tolist()
        return _rows(leak, found, images, sure=sure, other=other, unsure=float(unsure[0]))


class Defended(OnImages):
    """Peel single images behind a defence, as an attacker who does not expect the defence and as one who does.

    The defence "local" takes two local steps with one sample each; its `level` is the learning rate.
    """

    part: ClassVar[str] = "defended"
    defense: str
    level: float
    repeats: int

    def run(self) -> Iterator[Columns]:
        """Peel every batch as each attacker."""
        for batch in range(self.repeats):
            client = self._two_steps if self.defense == LOCAL else self._behind
            images, leak = client(self.seed + batch)
            for attacker, (noise, scale) in self._attackers().items():
                for row in _rows(leak, peel(leak, noise=noise, scale=scale), images):
                    yield row | {"attacker": attacker, "batch": batch}

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

    def run(self) -> list[Columns]:
        """Peel a batch with distinct classes."""
        images = self.images(self.size, self.seed, SIDE)
        model = _network(images, self.seed, self.network)
        with torch.no_grad():
            classes = model(data.normalise(images).float()).shape[1]
        labels = torch.randperm(classes, generator=torch.Generator().manual_seed(self.seed))[: self.size]
        return _timed(_observed(model, images, labels, self.device), images, steps=0)


class Rivals(OnImages):
    """Restore a batch by peeling, and by GradInversion and gradient matching with `steps` steps."""

    part: ClassVar[str] = "rival"
    size: int
    steps: int

    def run(self) -> Iterator[Columns]:
        """Restore the batch by each of the three attacks."""
        images, leak = self.sent(self.size, self.seed)
        yield {"attack": "private", "picture": packed(images, self.size)}
        settings = replace(SETTINGS["gradinversion+pyramid"], steps=self.steps)
        optimizer = Adam(steps=self.steps, signed=True)
        attacks = {
            "peeling": lambda: peel(leak, steps=1200).images,
            "GradInversion": lambda: restore_batches(leak, "recovered", settings=settings, seed=self.seed).images,
            "matching": lambda: match(leak, distance="cosine", optimizer=optimizer, seed=self.seed).images,
        }
        own = 0.0
        for attack, restore in attacks.items():
            cpu = time.process_time()
            inputs = restore()
            seconds = time.process_time() - cpu
            own = own or seconds
            restored, _ = in_order(inputs.flatten(0, -4), images)
            row: Columns = {"attack": attack, "cpu_seconds": seconds, "times": seconds / own}
            yield row | similarity(restored, images) | {"picture": packed(restored, self.size)}


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
    model: nn.Module, images: Tensor, labels: Tensor, device: str, dtype: str = "float32", **client: Any
) -> Leak:
    inputs = data.normalise(images).to(device, DTYPES[dtype])
    return observe(model.to(device, DTYPES[dtype]), inputs, labels.to(device), **client)


def _timed(leak: Leak, images: Tensor, steps: int, **columns: Any) -> list[Columns]:
    """Peel a batch, and return its row with the CPU time (s) and the rows of its layers."""
    cpu = time.process_time()
    found = peel(leak, steps=steps)
    return _rows(leak, found, images, cpu_seconds=time.process_time() - cpu, **columns)


def _rows(leak: Leak, found: Peeled, images: Tensor, **columns: Any) -> list[Columns]:
    """Return the row of a peeled batch, with further columns, and the rows of its layers."""
    layers = layer_rows(leak.model, found, images)
    deepest = next((layer["layer"] for layer in reversed(layers) if not layer["reason"]), "")
    return [batch_row(found, images) | {"deepest": deepest} | columns, *layers]


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


def headline(record: Record) -> Headline:
    """Return the finding: training does not stop peeling, but too few equations in a layer do."""
    restored = claims.judgements(record)["limits-trained"]
    networks = batches(record.rows(Reach))
    narrow = networks[networks["network"].isin(["resnet20", "resnet50-cifar"])]
    accuracy = batches(record.rows(TrainedNetwork))["test_accuracy"].max()
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


MEASURES = {
    "batches": count(),
    "certified": total("certified"),
    **cells(COLUMNS, "layers", by=least, head="fewest {}"),
    **cells(COLUMNS, "lowest_psnr", by=least),
}


def batch_table(record: Record) -> pd.DataFrame:
    """Return the results on batches of trained networks and on large batches of the untrained network.

    One row for each number of training epochs, image side and batch size B.
    """
    order = ["epochs", "side", "size"]
    rows = batches(record.frame())
    rows = rows[rows["part"].isin([TrainedNetwork.part, LargeBatch.part])].fillna({"epochs": 0, "side": FEW})
    rows = rows.astype(dict.fromkeys(order, int)).sort_values(order, kind="stable")
    return summary(
        rows.assign(right=rows["test_accuracy"].map("{:.0%}".format).replace("nan%", NOTHING)),
        {"epochs": "epochs", "accuracy": "right", "image side (pixels)": "side", "B": "size"},
        MEASURES | cells(COLUMNS, "surest", by=least) | cells(COLUMNS, "cpu_seconds", by=median, head="median {}"),
    ).replace("nan", NOTHING)


def defended_table(record: Record) -> pd.DataFrame:
    """Return the results behind defences, one row for each defence with its level and each attacker."""
    rows = batches(record.rows(Defended))
    defence = [
        f"local steps, rate {level:g}" if defense == LOCAL else defenses.shown(f"{defense}/{level}")
        for defense, level in zip(rows["defense"], rows["level"], strict=True)
    ]
    rows = rows.assign(defence=defence, attacker=rows["attacker"].map(KNOWLEDGE))
    return summary(rows, {"defence": "defence", "attacker": "attacker"}, MEASURES)


def reach_table(record: Record) -> pd.DataFrame:
    """Return what stopped peeling, one row for each network and batch size B."""
    rows = record.rows(Reach).astype({"size": int})
    rows = rows.assign(network=rows["network"].map(NAMES))
    return summary(rows, {"network": "network", "B": "size"}, {"why peeling ended": _ended})


def _ended(rows: pd.DataFrame) -> str:
    """Return what stopped peeling: too few equations, the omitted search for images, or the attack's reason."""
    reasons = select(rows, what="layer")["reason"]
    if reasons.any():
        return str(reasons[reasons != ""].iloc[0])
    batch = select(rows, what="batch").iloc[0]
    # The residual is finite if the search for images found all of them, because their gradient is then compared.
    unfound = batch["matched"] != "" and math.isinf(batch["residual"])
    return f"the equations end at {batch['matched']}" if unfound else str(batch["reason"])


def counted(network: str) -> pd.DataFrame:
    """Count a network's layers for each batch size: all, and those before the first that equations do not determine."""
    shape = (3, SIDE, SIDE)
    traced = Network(_network(torch.zeros(1, *shape), 0, network).to("meta"), shape)
    rows = []
    for size in COUNTED:
        counts = counts_of(traced, size)
        possible = next((n for n, one in enumerate(counts) if one.reason), len(counts))
        rows.append({"size": size, "possible": possible, "layers": sum(one.unknowns > 0 for one in counts)})
    return pd.DataFrame(rows)


def figure_counts(record: Record) -> Figure:
    """Plot the number of layers against the batch size, one panel for each network: by counting, and as recovered."""
    return drawn(
        batches(record.rows(Reach)),
        points("size", "layers", "layers recovered", figures.COLOURS[1], s=36),
        _count,
        panels="network",
        title=NAMES.__getitem__,
        across=3,
        height=2.6,
        legend=3,
        sharey=False,
        xlabel="batch size B",
        ylabel="layers",
        xlim=(0.5, COUNTED[-1] + 0.5),
        ylim=(-0.6, None),
    )


def _count(axis: Axes, rows: pd.DataFrame) -> None:
    """Draw the number of layers that the count allows, and the number of all layers of the panel's network."""
    axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    # Counting needs the network, and the package of a pretrained network may not be installed.
    try:
        own, dashes = counted(rows["network"].iloc[0]), figures.DASHES[1]
    except MissingData:
        words = "not counted: the package\nof its weights is missing"
        axis.text(0.5, 0.5, words, ha="center", va="center", fontsize=8, transform=axis.transAxes)
        axis.margins(y=0.2)
        return
    axis.step(own["size"], own["possible"], where="mid", color=figures.COLOURS[0], label="possible by the count")
    axis.axhline(
        own["layers"].max(), color=figures.TRUTH, linewidth=1.0, linestyle=dashes, label="layers of the network"
    )


def figure_confident(record: Record) -> Figure:
    """Plot the PSNR of a sample that the network is sure of against 1 − p, one line for each precision.

    Samples that were not restored have no point.
    """
    rows = batches(record.rows(SureSample))
    return drawn(
        rows[rows["sure"] > 0].sort_values("level"),
        lines("level", "sure", by="dtype"),
        legend=2,
        xscale="log",
        xlabel=COLUMNS["unsure"].head,
        ylabel=COLUMNS["psnr"].head,
    )


def figure_rival(record: Record) -> Figure:
    """Show the largest batch: private, and as restored by each attack, with its mean PSNR and CPU time."""
    rows = record.rows(Rivals)
    rows = rows[rows["size"] == rows["size"].max()]
    results = [
        f"{attack}\n{psnr:.1f} dB, {seconds:.0f} s" if seconds > 0 else attack
        for attack, psnr, seconds in zip(rows["attack"], rows["psnr"], rows["cpu_seconds"], strict=True)
    ]
    figure, axes = figures.panels(1, 1, height=4.4)
    show(axes[0][0], list(rows["picture"]), results)
    return figure


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    worst = median_of("lowest_psnr", "PSNR of a batch's worst image", "batches")
    rows = batches(record.rows(TrainedNetwork))
    found = collected(
        record, rows, "images", worst, attack="peeling", network=NETWORK, training="trained", data="cifar10",
        batch=rows["size"].astype(int),
        detail=rows["side"].map("{:g} pixels".format) + rows["epochs"].map(", after {:g} epochs".format),
    )  # fmt: skip
    rows = batches(record.rows(Defended))
    local, level = rows["defense"] == LOCAL, rows["level"].map("{:g}".format)
    found += collected(
        record, rows, "images", worst, attack="peeling, " + rows["attacker"].map(KNOWLEDGE),
        network=NETWORK, data=rows["dataset"], batch=1 + local.astype(int),
        defense=(rows["defense"] + "/" + level).mask(local, "none"),
        client=("2 local steps, rate " + level).where(local, "float32"),
    )  # fmt: skip
    rows = record.rows(Rivals)
    rows = rows[rows["psnr"].notna()]
    return found + collected(
        record, rows, "images", worst, attack=rows["attack"].replace("matching", "gradient matching"),
        network=NETWORK, data=rows["dataset"], batch=rows["size"].astype(int), detail=f"{FEW} pixels",
    )  # fmt: skip
