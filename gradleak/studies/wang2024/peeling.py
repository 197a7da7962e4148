"""Peeling a residual network, and where it ends

Beyond wang2024, section 4.2: restore every image of a batch from one averaged ResNet18 gradient, layer by layer, and
find the limits of this: trained networks, larger batches, sure samples, other networks and defended gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, defenses, metrics, models, studies
from gradleak.images import Adam, match, peel, restore_batches
from gradleak.images.gradinversion.settings import SETTINGS
from gradleak.leak import Leak, head_inputs, observe
from gradleak.models import training
from gradleak.show import figures
from gradleak.show.aggregate import NOTHING, aggregate, cells, count, least, median, select, total
from gradleak.show.drawn import drawn, level, lines, powers_of_two, scattered
from gradleak.show.summary import Leaks, Summary, line
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.mosaics import packed, show
from gradleak.studies.shared.outcomes import KNOWLEDGE, Outcome, collected, median_of, network_in_words
from gradleak.studies.shared.peeled import FACTOR, batch_row, batches, image_psnr, in_order, layer_rows, similarity
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
NETWORKS = [NETWORK, "resnet18", "resnet20", "resnet50-cifar", "lenet", "efficientnet-lite0"]
# The parts of the page in which the errors of layers are estimated.
PARTS = {
    "peeled": "untrained",
    "large": "untrained, large batch",
    "trained": "trained",
    "confident": "one sure sample",
    "defended": "defended",
    "reach": "other networks",
}


class Stage(Group):
    """A trained network by the side of its images (pixels) and its training epochs, and its batches."""

    side: int = Field(ge=8)
    epochs: int = Field(ge=1)
    size: int = Field(ge=1)
    batches: int = Field(1, ge=1)


class Race(Group):
    """The size of a batch that other attacks are run on too, and their number of steps."""

    size: int = Field(ge=1)
    steps: int = Field(ge=1)


class Parameters(studies.Parameters):
    """Parameters of the page: batches and networks that are peeled, defences, and other attacks to compare with."""

    sizes: list[int] = setting(paper=[1, 4])
    repeats: int = setting(paper=10, ge=1, le=1000)
    noises: list[float] = setting(paper=[1e-8, 1e-6])
    matching: int = setting(paper=200, ge=1, le=100_000)
    classes: int = setting(ge=4, le=10_000)
    side: int = setting(paper=32, ge=8, le=64)
    trained: list[Stage] = setting(
        paper=[
            *(
                {"side": FEW, "epochs": epochs, "size": size, "batches": count}
                for epochs in (1, 5, 20)
                for size, count in ((1, 3), (4, 1))
            ),
            {"side": 32, "epochs": 5, "size": 1},
        ]
    )
    large: list[int] = setting(paper=[8])
    confident: list[float] = setting(paper=[1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10])
    precisions: list[str] = setting(paper=list(DTYPES))
    defenses: list[str] = setting(paper=list(DEFENSES))
    defended: int = setting(ge=1, le=1000)
    networks: list[str] = setting(paper=NETWORKS)
    network_sizes: list[int] = setting(paper=[1, 2, 4, 8])
    rivals: list[Race] = setting(paper=[{"size": 4, "steps": 100}, {"size": 1, "steps": 1000}])
    steps: int = setting(paper=1200, ge=1, le=100_000)
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees(NETWORK, self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield one experiment for each batch, and one for each level of a defence."""
        for size, batch in product(self.sizes, range(self.repeats)):
            yield Peeling.of(self, size=size, batch=batch)
        for noise in self.noises:
            yield FromNoise.of(self, level=noise)
        for size in self.sizes:
            yield Matching.of(self, size=size, steps=self.matching)
        for stage in self.trained:
            for batch in range(stage.batches):
                yield TrainedNetwork.of(self, stage="/".join(map(str, dict(stage).values())), batch=batch)
        for size in self.large:
            yield LargeBatch.of(self, size=size)
        for dtype, rest in product(self.precisions, self.confident):
            yield SureSample.of(self, level=rest, dtype=dtype)
        for defense in self.defenses:
            for strength in DEFENSES[defense]:
                yield Defended.of(self, defense=defense, level=strength)
        for network, size in product(self.networks, self.network_sizes):
            yield Reach.of(self, network=network, size=size)
        for race in self.rivals:
            yield Rivals.of(self, **dict(race))

    def about(self) -> str:
        """Return a short text on the size of a run."""
        sizes = ", ".join(map(str, self.sizes))
        flowers = " and Flowers-17" if self.trained else ""
        return f"batches per size: {self.repeats}, B = {sizes}, {data.title(self.dataset)}{flowers}"


class OnImages(Experiment):
    """An experiment on private images and an untrained network."""

    dataset: str

    def images(self, size: int, generator: torch.Generator, side: int = FEW) -> Tensor:
        """Return private images (B, C, H, W) in [0, 1], downsampled to a side of `side` pixels."""
        private = data.load(self.dataset, "test")
        images = private.images[torch.randperm(len(private), generator=generator)[:size]].double()
        return F.adaptive_avg_pool2d(images, side)

    def sent(self, size: int, seed: int, **client: Any) -> tuple[Tensor, Leak]:
        """Return a batch of small images with random labels, and the client's leak; `client` as in `observe`."""
        images = self.images(size, _random(seed))
        return images, _observed(_network(images, seed), images, _classes(size, seed), self.device, **client)


class OnBatch(OnImages):
    """An experiment on one batch; each batch has other weights."""

    classes: int
    side: int

    def private(self, size: int, batch: int) -> tuple[Tensor, Leak]:
        """Return the batch's images (B, C, H, W) in [0, 1] and the client's leak."""
        generator = _random(self.seed + batch)
        images = self.images(size, generator, self.side)
        labels = torch.randint(self.classes, (size,), generator=generator)
        model = models.build(
            NETWORK, classes=self.classes, in_channels=images.shape[1], image_size=self.side, seed=self.seed + batch
        )
        return images, _observed(model, images, labels, self.device)


class Peeling(OnBatch, part="peeled"):
    """Peel one batch."""

    size: int
    batch: int
    steps: int

    def run(self) -> list[Columns]:
        """Peel the batch. The first batch has a picture."""
        images, leak = self.private(self.size, self.batch)
        rows, restored = _peeled(leak, images, steps=self.steps)
        if self.batch == 0:
            rows[0]["picture"] = packed(torch.cat([images, restored]), self.size)
        return rows


class FromNoise(OnBatch, part="noise"):
    """Peel one image from a gradient with noise, as an attacker who expects no noise and as one who knows its level."""

    level: float
    steps: int

    def run(self) -> list[Columns]:
        """Add the noise, and peel the image as both attackers."""
        images, clean = self.private(1, 0)
        leak = _behind("gaussian", self.level, clean, self.seed)
        rows = _by_attackers(leak, images, "gaussian", self.level, steps=self.steps)
        return [row for row in rows if row["what"] == "batch"]


class Matching(OnBatch, part="matched"):
    """Restore the first batch of a size by gradient matching."""

    size: int
    steps: int

    def run(self) -> list[Columns]:
        """Match the batch's gradient."""
        images, leak = self.private(self.size, 0)
        return [_restored(images, lambda: _matched(leak, self.steps, self.seed)) | {"what": "batch"}]


class TrainedNetwork(Experiment, part="trained"):
    """Peel a batch of test images in a trained network; `stage` is "image side/training epochs/batch size/batches"."""

    stage: str
    batch: int
    steps: int

    def reads(self) -> list[str]:
        """Return the dataset of the training."""
        return [LEARNS]

    def run(self) -> list[Columns]:
        """Train the network or load it from the cache, and peel the batch."""
        side, epochs, size, _ = map(int, self.stage.split("/"))
        recipe = training.Recipe(
            network=NETWORK, dataset=LEARNS, bias=False, image_size=side, epochs=epochs, batch_size=32,
            learning_rate=1e-3, seed=self.seed,
        )  # fmt: skip
        trained = training.train(recipe, device=self.device)
        private = data.load(LEARNS, "test", size=side)
        chosen = torch.randperm(len(private), generator=_random(self.seed + self.batch))[:size]
        images, labels = private.images[chosen].double(), private.labels[chosen]
        rows, _ = _peeled(_observed(trained.model, images, labels, self.device), images, steps=self.steps)
        unsure = _unsure(trained.model, images, labels)
        rows[0] |= {"test_accuracy": trained.accuracy, "training_loss": trained.losses[-1], "side": side}
        rows[0] |= {"epochs": epochs, "size": size, "surest": float(unsure.min()), "least_sure": float(unsure.max())}
        return rows


class LargeBatch(OnImages, part="large"):
    """Peel a batch of images at half their size, because at full size there are too few equations for the batch."""

    size: int
    steps: int

    def run(self) -> list[Columns]:
        """Peel the batch."""
        images, leak = self.sent(self.size, self.seed)
        return _peeled(leak, images, steps=self.steps)[0]


class SureSample(OnImages, part="confident"):
    """Peel a pair of samples; the first has a label probability p with 1 − p = `level`."""

    level: float
    dtype: str

    def run(self) -> list[Columns]:
        """Change the network so that p of the first sample is as wanted, and peel both samples."""
        images, labels = self.images(2, _random(self.seed)), _classes(2, self.seed)
        model = _network(images, self.seed).double()
        _sure_of(model, images, int(labels[0]), self.level)
        rows, restored = _peeled(_observed(model, images, labels, self.device, self.dtype), images)
        sure, other = image_psnr(restored, images).tolist()
        rows[0] |= {"sure": sure, "other": other, "unsure": float(_unsure(model, images, labels)[0])}
        return rows


class Defended(OnImages, part="defended"):
    """Peel single images behind a defence, as an attacker who does not expect the defence and as one who does.

    The defence "local" takes two local steps with one sample each; its `level` is the learning rate.
    """

    defense: str
    level: float
    defended: int

    def run(self) -> Iterator[Columns]:
        """Peel every batch as each attacker."""
        for batch in range(self.defended):
            images, leak = self._defended(self.seed + batch)
            for row in _by_attackers(leak, images, self.defense, self.level):
                yield row | {"batch": batch}

    def _defended(self, seed: int) -> tuple[Tensor, Leak]:
        if self.defense != LOCAL:
            images, clean = self.sent(1, seed)
            return images, _behind(self.defense, self.level, clean, seed)
        images, sent = self.sent(2, seed, local_steps=2, rate=self.level)
        # The mean update of two local steps with one sample each, as if it were one step with two.
        halved = {name: value / 2 for name, value in sent.gradients.items()}
        return images, replace(sent, gradients=halved, batch_size=2, local_steps=1)


class Reach(OnImages, part="reach"):
    """Peel a network as far as its equations suffice, without the search for images at the end."""

    network: str
    size: int

    def run(self) -> list[Columns]:
        """Peel a batch with distinct classes."""
        images = self.images(self.size, _random(self.seed), SIDE)
        model = _network(images, self.seed, self.network)
        with torch.no_grad():
            classes = model(data.normalise(images).float()).shape[1]
        labels = torch.randperm(classes, generator=_random(self.seed))[: self.size]
        return _peeled(_observed(model, images, labels, self.device), images, steps=0)[0]


class Rivals(OnImages, part="rival"):
    """Restore a batch by peeling, and by GradInversion and gradient matching with `steps` steps."""

    size: int
    steps: int

    def run(self) -> Iterator[Columns]:
        """Restore the batch by each of the three attacks."""
        images, leak = self.sent(self.size, self.seed)
        yield {"attack": "private", "picture": packed(images, self.size)}
        settings = replace(SETTINGS["gradinversion+pyramid"], steps=self.steps)
        attacks: dict[str, Callable[[], Tensor]] = {
            "peeling": lambda: peel(leak, steps=1200).images,
            "GradInversion": lambda: restore_batches(leak, "recovered", settings=settings, seed=self.seed).images,
            "matching": lambda: _matched(leak, self.steps, self.seed),
        }
        rows = {name: _restored(images, attack) for name, attack in attacks.items()}
        for attack, row in rows.items():
            yield row | {"attack": attack, "times": row["cpu_seconds"] / rows["peeling"]["cpu_seconds"]}


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _network(images: Tensor, seed: int, name: str = NETWORK) -> nn.Module:
    if name == "efficientnet-lite0":
        return models.plain_lite0()
    channels, side = images.shape[1], images.shape[-1]
    return models.build(
        name, classes=CLASSES, bias=False, init="torch", in_channels=channels, image_size=side, seed=seed
    )


def _classes(size: int, seed: int) -> Tensor:
    return torch.randint(CLASSES, (size,), generator=_random(seed))


def _observed(
    model: nn.Module, images: Tensor, labels: Tensor, device: str, dtype: str = "float32", **client: Any
) -> Leak:
    inputs = data.normalise(images).to(device, DTYPES[dtype])
    return observe(model.to(device, DTYPES[dtype]), inputs, labels.to(device), **client)


def _peeled(leak: Leak, images: Tensor, **options: Any) -> tuple[list[Columns], Tensor]:
    """Peel a batch; return its row, followed by the rows of its layers, and the restored images in order.

    `options` as in `peel`.
    """
    found, seconds = timed(peel, leak, **options)
    rows = [{"cpu_seconds": seconds, **batch_row(found, images)}, *layer_rows(leak.model, found, images)]
    return rows, in_order(found.images, images)[0]


def _behind(defense: str, level: float, clean: Leak, seed: int) -> Leak:
    change = defenses.named(f"{defense}/{level}", generator=_random(seed))
    return replace(clean, gradients=change(clean.gradients))


def _by_attackers(leak: Leak, images: Tensor, defense: str, level: float, **options: Any) -> Iterator[Columns]:
    """Peel a batch as every attacker, by the noise level and gradient scale that each assumes; None: to estimate."""
    aware: Any = {"gaussian": (level, 1.0), "clip-share": (0.0, None), "prune": (None, 1.0)}
    attackers = {"unaware": (0.0, 1.0), "aware": aware[defense]} if defense in aware else {"as one step": (0.0, 1.0)}
    for attacker, (noise, scale) in attackers.items():
        for row in _peeled(leak, images, noise=noise, scale=scale, **options)[0]:
            yield row | {"attacker": attacker}


def _matched(leak: Leak, steps: int, seed: int) -> Tensor:
    """Return images that gradient matching restores with recovered labels."""
    return match(leak, distance="cosine", optimizer=Adam(steps=steps, signed=True), seed=seed).images


def _restored(images: Tensor, attack: Callable[[], Tensor]) -> dict[str, Any]:
    """Run an attack that returns images; return its row, with its CPU time (s) and a picture of the images."""
    found, seconds = timed(attack)
    restored, _ = in_order(found.flatten(0, -4), images)
    return {"cpu_seconds": seconds, **similarity(restored, images), "picture": packed(restored, len(images))}


@torch.no_grad()
def _unsure(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return 1 − p of the labels (B,), computed without the subtraction, which would cancel digits."""
    logits: Tensor = model(data.normalise(images).to(next(model.parameters()))).double().cpu()
    rest = (logits - logits.gather(1, labels[:, None])).scatter(1, labels[:, None], -torch.inf)
    return rest.logsumexp(dim=1).sigmoid()


@torch.no_grad()
def _sure_of(model: nn.Module, images: Tensor, label: int, level: float) -> None:
    """Change the last layer so that 1 − p of the first image is `level`, with the same logits for the second image."""
    features, logits = head_inputs(model, data.normalise(images))
    own, other = features
    apart = own - (own @ other) / (other @ other) * other
    weight = next(layer for layer in reversed([*model.modules()]) if isinstance(layer, nn.Linear)).weight
    others = logits[0][torch.arange(len(logits[0])) != label].logsumexp(dim=0)
    wanted = others + math.log((1 - level) / level)
    weight[label] += (wanted - logits[0, label]) * apart / (apart @ own)


def summary(record: Record) -> Summary:
    """Return the finding: small batches of a ResNet18 are restored, and training does not stop this."""
    known = claims.judgements(record)
    restored, trained, wrong = known["peel-four"], known["limits-trained"], known["peel-silent"]
    size = restored.claim.measure.where["size"]
    own, networks = select(record.rows(Peeling), what="batch", size=size), batches(record.rows(Reach))
    sizes = select(batches(record.frame()), part="trained")["size"]
    narrow = networks["layers"][networks["network"].isin(["resnet20", "resnet50-cifar"])]
    row = line(table(record), "0", str(SIDE), str(size))
    return Summary(
        f"From one averaged gradient of an untrained ResNet18, peeling restores all {size} images at "
        f"{math.floor(own['lowest_psnr'].min())} dB or more in {restored.cases} batches; after training, all "
        f"of {(sizes == 1).sum()} single images and {(sizes > 1).sum()} batches of {sizes.max():.0f}. "
        "From a ResNet20 or ResNet50 it recovers no layer.",
        true=restored.value == trained.value == 100 and wrong.value == 0 and set(narrow) == {0},
        claim="peel-four",
        what=f"batches of {size} with every image above {metrics.EXACT:.0f} dB (untrained ResNet18, CIFAR-10, float32)",
        of="batches",
        figure=figure_batch,
        leaks=Leaks(
            "all images, layer by layer",
            f"batches of {size}; ResNet18, untrained",
            f"{row['certified']} of {row['batches']} batches certified, lowest PSNR {row['lowest PSNR (dB)']} dB",
            f"{row['median CPU time (s)']} s",
            kind="images",
            attack="peeling",
            network=network_in_words(NETWORK),
            batch=size,
        ),
        outcomes=outcomes(record),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack reached, without the parts that have no attack's usual images."""
    rows = record.frame()
    rows = rows[rows["lowest_psnr"].notna() & ~rows["part"].isin([LargeBatch.part, SureSample.part, Reach.part])]
    local, trained = rows["defense"] == LOCAL, rows["part"] == TrainedNetwork.part
    level = rows["level"].map("{:g}".format)
    attack = rows["attack"].mask(rows["part"] == Matching.part, "matching").replace("matching", "gradient matching")
    stage = rows["side"].map("{:g} pixels".format) + rows["epochs"].map(", after {:g} epochs".format)
    return collected(
        record, rows, "images", median_of("lowest_psnr", "PSNR of a batch's worst image", "batches"),
        attack=attack.fillna("peeling") + (", " + rows["attacker"].map(KNOWLEDGE)).fillna(""),
        network=NETWORK, training=trained.map({True: "trained", False: "untrained"}),
        data=rows["dataset"].fillna(LEARNS), batch=rows["size"].fillna(1).astype(int) + local,
        defense=(rows["defense"].fillna("gaussian") + "/" + level).mask(local | rows["level"].isna(), "none"),
        client=("2 local steps, rate " + level).where(local, "float32"),
        detail=stage.where(trained, "").mask(rows["part"].isin([Defended.part, Rivals.part]), f"{FEW} pixels"),
    )  # fmt: skip


def table(record: Record) -> pd.DataFrame:
    """Return the results of peeling ResNet18, one row for each number of training epochs, image side and batch size."""
    rows = batches(record.frame())
    rows = rows[rows["part"].isin([Peeling.part, TrainedNetwork.part, LargeBatch.part])]
    rows = rows.reindex(columns=rows.columns.union(["epochs", "test_accuracy", "surest"], sort=False))
    rows = rows.fillna({"epochs": 0, "side": FEW}).astype({"epochs": int, "side": int, "size": int})
    return aggregate(
        rows.sort_values(["epochs", "side", "size"], kind="stable"),
        {"epochs": "epochs", "image side (pixels)": "side", "B": "size"},
        {"batches": count(), "certified": total("certified")}
        | cells(COLUMNS, "layers", by=least, head="fewest {}")
        | cells(COLUMNS, "lowest_psnr", by=least)
        | cells(COLUMNS, "test_accuracy", by=least, head="training accuracy")
        | cells(COLUMNS, "surest", by=least)
        | cells(COLUMNS, "cpu_seconds", by=median, head="median {}"),
    ).replace(["nan", "nan%"], NOTHING)


def figure_batch(record: Record) -> Figure:
    """Show the first batch of the largest size: private, peeled, and restored by gradient matching."""
    size = record.rows(Matching)["size"].max()
    pictures = [select(record.rows(kind), size=size)["picture"].dropna().iloc[0] for kind in (Peeling, Matching)]
    figure, axes = figures.panels(1, 1, height=3.3)
    show(axes[0][0], pictures, ["private", "peeled", "gradient matching"])
    return figure


def figure_errors(record: Record) -> Figure:
    """Plot the estimated error of layers' inputs / their true error against the true error.

    The thin lines are a factor of 10 away from equality.
    """
    rows = select(record.frame(), what="layer", reason="").astype({"claimed": float, "off": float})
    return drawn(
        rows.assign(ratio=rows["claimed"] / rows["off"]),
        scattered("off", "ratio", "part", label=PARTS.__getitem__, order=[*PARTS.values()], markersize=4),
        level(1.0),
        level(FACTOR, linewidth=0.8),
        level(1 / FACTOR, linewidth=0.8),
        legend=3,
        xscale="log",
        yscale="log",
        xlabel="true relative error",
        ylabel="estimated / true error",
    )


def figure_counts(record: Record) -> Figure:
    """Plot the number of layers that are recovered against the batch size, one line for each network."""
    return drawn(
        batches(record.rows(Reach)),
        lines("size", "layers", by="network", label=network_in_words),
        powers_of_two("size"),
        legend=3,
        xlabel="batch size B",
        ylabel=COLUMNS["layers"].head,
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
