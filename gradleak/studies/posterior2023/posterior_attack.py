"""Counting labels from posteriors: networks, losses, batches, auxiliary data

posterior2023, section 4: Tables 2 and 3, Figures 3 and 4.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal, get_args

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import augment, data, studies
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import observe_heads
from gradleak.losses import CrossEntropy, Focal, Loss
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.leaks import LABELS_STOPPED, Leaks, listed, span, stopped_on
from gradleak.show.summaries import among, joined, only, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.attacked_networks import OnPixels, built
from gradleak.studies.shared.counted_batches import Accuracy, accuracies, accuracy, skewed
from gradleak.studies.shared.tally import LOOKS, load, others

PLACE = "Section 4, Tables 2 and 3, Figures 3 and 4"
ATTACKS = {"LLG": "llg*", "iLRG": "ilrg", "posterior": "posterior", "guess": "guess"}
# As published these two are made for cross-entropy, and LLG's random inputs are pixels, where those of the client are
# normalised. Told, both follow the loss and the smoothing, and random inputs are normalised as well.
TOLD = {name: ATTACKS[name] for name in ("LLG", "iLRG", "guess")}
LossName = Literal["ce", "focal"]
LOSSES: tuple[LossName, ...] = get_args(LossName)
# Auxiliary samples in all, where there are many classes.
MOST = 2000
ROW = {"dataset": "dataset", "network": "network", "activation": "activation", "B": "size"}
VARIANT = {"loss": "loss", "τ": "temperature", "ε": "epsilon"}


class Attacked(Form):
    """A network that is attacked, on its private images, and the size of the batches."""

    dataset: str
    network: str
    activation: str
    size: Whole = Field(ge=1)


class Begun(Attacked):
    """The same, with the random weights that it begins with."""

    init: Literal["torch", "kaiming", "uniform"]


class Variant(Form):
    """A loss, its temperature, and the smoothing ε of its labels."""

    loss: LossName
    temperature: float = Field(gt=0)
    epsilon: float = Field(ge=0, lt=1)


class Parameters(studies.Parameters):
    """Which networks are attacked, under which losses, with how many batches and auxiliary samples."""

    rows: list[Attacked] = setting(
        ["photos/lenet5/sigmoid/32", "photos/lenet5/tanh/32", "photos/lenet5/elu/32"],
        paper=[
            "mnist/lenet5/sigmoid/32",
            "mnist/lenet5/tanh/32",
            "tinyimagenet32/resnet50-cifar/relu/256",
            "tinyimagenet32/resnet50-cifar/selu/256",
            "cifar10/vgg16/elu/32",
            "cifar10/vgg16/relu/32",
        ],
        smallest=["photos/lenet5/sigmoid/8"],
        validate_default=True,
        about="Table 2: dataset/network/activation/batch size; the last row stands for the figures and Table 3",
    )
    init: str = setting("torch", about="random weights: torch, kaiming or uniform")
    told: list[Attacked] = setting(
        ["photos/lenet5/sigmoid/32", "photos/lenet5/tanh/32"],
        paper=["mnist/lenet5/sigmoid/32", "mnist/lenet5/tanh/32", "cifar10/vgg16/elu/32", "cifar10/vgg16/relu/32"],
        smallest=["photos/lenet5/sigmoid/8"],
        validate_default=True,
        about="rows of Table 2 where LLG is told how inputs are normalised; Table 3 is told in any case",
    )
    begun: list[Begun] = setting(
        ["photos/lenet5/tanh/32/kaiming"],
        paper=[f"mnist/lenet5/{one}/32/{init}" for one in ("sigmoid", "tanh") for init in ("kaiming", "uniform")],
        smallest=["photos/lenet5/sigmoid/8/kaiming"],
        validate_default=True,
        about="rows of Table 2 with other random weights: dataset/network/activation/batch size/weights",
    )
    networks: int = setting(2, paper=4, smallest=1, ge=1, le=1000, about="networks a row, with random weights")
    batches: int = setting(5, smallest=2, ge=1, le=10_000, about="batches a network")
    auxiliary: int = setting(
        20,
        paper=100,
        smallest=2,
        ge=1,
        le=1000,
        about=f"auxiliary samples of a class, test split; {MOST:,} in all where that is fewer",
    )
    variants: list[Variant] = setting(
        [
            *(f"{loss}/{temperature}/0" for loss in LOSSES for temperature in (0.8, 1.2)),
            *(f"{loss}/1/{epsilon}" for loss in LOSSES for epsilon in (0.1, 0.25)),
        ],
        smallest=["ce/0.8/0"],
        validate_default=True,
        about="Table 3: loss/temperature/smoothing",
    )
    sizes: list[int] = setting(
        [64, 256],
        paper=[64, 128, 256, 512, 1024],
        smallest=[8],
        about="Figure 3: samples in a batch, the model trained",
    )
    shares: list[float] = setting(
        [0.1, 0.5, 0.9],
        paper=[0.1, 0.3, 0.5, 0.7, 0.9],
        smallest=[0.5],
        about="Figure 3: share of one class in a batch",
    )
    scales: list[int] = setting(
        [1, 5, 20], paper=[1, 5, 10, 50, 100], smallest=[1], about="Figure 4: auxiliary samples of a class"
    )
    epochs: int = setting(1, ge=1, le=100, about="how long the model of Figure 3 is trained")

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they are shown."""
        return [Sees(row.network, row.dataset, activation=row.activation) for row in self.every]

    @property
    def every(self) -> list[Attacked]:
        """The rows of all parts."""
        return [*self.rows, *self.told, *self.begun]

    def experiments(self) -> Iterator[Experiment]:
        """Give the rows and losses of the tables, the settings of the figures, and what is told or begun otherwise."""
        plain = {**dict(Variant.of("ce/1/0")), "share": 0.0, "epochs": 0}
        main = plain | dict(self.rows[-1])
        trained = main | {"epochs": self.epochs, "networks": 1, "batches": 20}
        for row in self.rows:
            yield OfRow.of(self, **plain | dict(row))
        for variant in self.variants:
            yield OfVariant.of(self, **main | dict(variant))
        for size in self.sizes:
            yield OfSize.of(self, **trained | {"size": size})
        for share in self.shares:
            yield OfShare.of(self, **trained | {"share": share})
        for scale in self.scales:
            yield OfScale.of(self, **main | {"auxiliary": scale})
        for row in self.told:
            yield Told.of(self, **plain | dict(row))
        for variant in self.variants:
            yield Told.of(self, **main | dict(variant))
        for row in self.begun:
            yield OfWeights.of(self, **plain | dict(row))

    def about(self) -> str:
        """Return in a few words how many networks and batches of what a run is about."""
        images = ", ".join(data.title(name) for name in dict.fromkeys(row.dataset for row in self.every))
        return f"{self.networks} networks a row with {self.batches} batches each; {images}"


class Counted(Accuracy):
    """How right one attack counts, and the seconds that it takes a batch."""

    seconds: float


class Counting(Experiment):
    """Batches on networks of one kind, whose labels are counted by every attack."""

    dataset: str
    network: str
    activation: str
    init: str
    size: int
    networks: int
    batches: int
    auxiliary: int
    loss: str
    temperature: float
    epsilon: float
    share: float
    epochs: int

    def counted(self, attacks: dict[str, str] = ATTACKS, *, told: bool = False) -> list[Counted]:
        """Count the labels by each attack; all of them follow the loss and the smoothing where they are `told`."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)
        focal = self.loss == "focal"
        loss: Loss = Focal(temperature=self.temperature) if focal else CrossEntropy(self.temperature)
        found: dict[str, list[Tensor]] = {name: [] for name in attacks}
        seconds = dict.fromkeys(attacks, 0.0)
        for number in range(self.networks):
            model = self._model(private, self.seed + number)
            given, classes = others(public, max(1, min(self.auxiliary, MOST // public.classes)), generator)
            chosen = torch.cat([skewed(private, self.size, self.share, generator) for _ in range(self.batches)])
            labels = private.labels[chosen]
            targets = augment.smooth(labels, private.classes, self.epsilon, convention="posterior2023")
            inputs = private.images[chosen]
            if told:
                model = OnPixels(model)
            else:
                inputs, given = data.normalise(inputs), data.normalise(given)
            inputs = inputs.to(self.device)
            heads = observe_heads(model, inputs, targets.to(self.device), loss=loss, batch_size=self.size)
            truth = torch.stack([one.bincount(minlength=private.classes) for one in labels.split(self.size)])
            known = Knowledge(
                model,
                (given.to(self.device), classes.to(self.device)),
                tuple(inputs.shape[1:]),
                loss=loss,
                epsilon=self.epsilon,
                seed=self.seed + number,
            )
            untold = replace(known, loss=None, epsilon=0.0)
            for name, method in attacks.items():
                started = time.perf_counter()
                own = known if told or name == "posterior" else untold
                counts = count_heads(heads, method, own, whatever_holds=True).cpu()
                seconds[name] += time.perf_counter() - started
                found[name].append(accuracies(counts, truth))
        rows = [accuracy(name, own) for name, own in found.items()]
        return [Counted.of(row, seconds=seconds[row.attack] / row.count) for row in rows]

    def _model(self, private: data.Dataset, seed: int) -> nn.Module:
        if not self.epochs:
            return built(self.network, private, seed, self.device, init=self.init, activation=self.activation)
        recipe = training.Recipe(
            network=self.network,
            dataset=self.dataset,
            epochs=self.epochs,
            learning_rate=1e-3,
            activation=self.activation,
            init=self.init,
            seed=seed,
        )
        return training.train(recipe, device=self.device).model.to(self.device)


class OfRow(Counting):
    """A row of Table 2: an untrained network and a batch size."""

    part: ClassVar[str] = "table 2"

    def run(self) -> list[Counted]:
        """Count."""
        return self.counted()


class OfVariant(Counting):
    """A loss, its temperature and a smoothing of Table 3."""

    part: ClassVar[str] = "table 3"

    def run(self) -> list[Counted]:
        """Count."""
        return self.counted()


class OfSize(Counting):
    """A batch size of Figure 3, on a trained network."""

    part: ClassVar[str] = "batch size"

    def run(self) -> list[Counted]:
        """Count."""
        return self.counted()


class OfShare(Counting):
    """An imbalance of Figure 3, on a trained network."""

    part: ClassVar[str] = "imbalance"

    def run(self) -> list[Counted]:
        """Count."""
        return self.counted()


class OfScale(Counting):
    """An amount of auxiliary samples of Figure 4."""

    part: ClassVar[str] = "scale"

    def run(self) -> list[Counted]:
        """Count."""
        return self.counted()


class Told(Counting):
    """A row or a loss once more, where LLG and iLRG are told the loss, the smoothing and how inputs are normalised."""

    part: ClassVar[str] = "told"

    def run(self) -> list[Counted]:
        """Count by attacks that are told."""
        return self.counted(TOLD, told=True)


class OfWeights(Counting):
    """A row of Table 2 with other random weights."""

    part: ClassVar[str] = "begun"

    def run(self) -> list[Counted]:
        """Count."""
        return self.counted()


def table(record: Record) -> pd.DataFrame:
    """Return Table 2: class and instance accuracy of every attack."""
    return _both_accuracies(record.rows(OfRow), ROW)


def begun_table(record: Record) -> pd.DataFrame:
    """Return rows of Table 2 by their networks' random weights."""
    begun, keys = record.rows(OfWeights), list(ROW.values())
    usual = record.rows(OfRow).merge(begun[keys].drop_duplicates(), on=keys)
    rows = pd.concat([usual, begun]).sort_values("activation", kind="stable")
    return _both_accuracies(rows, ROW | {"weights": "init"})


def _both_accuracies(rows: pd.DataFrame, keys: dict[str, str]) -> pd.DataFrame:
    both = joined(" / ", only("classes", ".3f"), only("instances", ".3f"))
    attacks = {name: among(both, attack=name) for name in ATTACKS}
    lines = summary(rows, keys, {**attacks, "n": only("count", ".0f")})
    return lines.assign(dataset=lines["dataset"].map(data.title))


def told_table(record: Record) -> pd.DataFrame:
    """Return the instance accuracy of LLG and iLRG as published, and when they are told loss and normalisation."""
    told, keys = record.rows(Told), [*ROW.values(), *VARIANT.values()]
    plain = pd.concat([record.rows(OfRow), record.rows(OfVariant)]).merge(told[keys].drop_duplicates(), on=keys)
    rows = pd.concat([told.assign(told=True), plain.assign(told=False)])
    instances = only("instances", ".3f")
    measures = {}
    for name in ("LLG", "iLRG"):
        measures[name] = among(instances, attack=name, told=False)
        measures[f"{name}, told"] = among(instances, attack=name, told=True)
    measures["guess"] = among(instances, attack="guess", told=True)
    return summary(_variants(rows), ROW | VARIANT, measures).drop(columns=["dataset", "B"])


def variant_table(record: Record) -> pd.DataFrame:
    """Return Table 3: instance accuracy by loss, temperature and smoothing."""
    instances = joined(" ± ", only("instances", ".3f"), only("spread", ".3f"))
    attacks = {name: among(instances, attack=name) for name in ATTACKS}
    return summary(_variants(record.rows(OfVariant)), VARIANT, {**attacks, "n": only("count", ".0f")})


def _variants(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the numbers of their losses as a table shows them."""
    return rows.assign(**{name: rows[name].map("{:g}".format) for name in ("temperature", "epsilon")})


def figure_settings(record: Record) -> Figure:
    """Draw instance accuracy against batch size, imbalance (Figure 3) and auxiliary samples (Figure 4)."""
    figure, axes = figures.panels(1, 3, height=3.0, sharey=True)
    panels = (
        (OfSize, "size", "samples in a batch", "trained"),
        (OfShare, "share", "share of one class", "trained"),
        (OfScale, "auxiliary", "auxiliary samples of a class", "untrained"),
    )
    for axis, (kind, column, label, title) in zip(axes[0], panels, strict=True):
        rows = record.rows(kind)
        _draw(axis, rows, column)
        if column != "share":
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        axis.set(title=title, xlabel=label, ylim=(0, 1.05), xticks=sorted(rows[column].unique()))
    axes[0][0].set_ylabel("instance accuracy")
    figures.legend_below(figure, len(ATTACKS))
    return figure


def _draw(axis: Axes, frame: pd.DataFrame, column: str) -> None:
    for name in ATTACKS:
        own = frame[frame["attack"] == name].sort_values(column)
        colour, dash = LOOKS[name]
        middle, spread = own["instances"].astype(float), own["spread"].astype(float)
        axis.plot(own[column], middle, color=colour, linestyle=dash, marker="o", markersize=4, label=name)
        axis.fill_between(own[column], middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    rows = record.part("table 2")
    table = rows[rows["attack"] == "posterior"]
    return Leaks(
        "label counts, by confidence",
        f"batch of {span(table['size'])}, auxiliary data; {listed(table['network'])}",
        f"{span(100 * table.groupby('network')['instances'].mean(), '.1f')} % of labels",
        table["seconds"].median(),
        stopped_on("llg-defenses", "over_guess", LABELS_STOPPED, attack="posterior"),
    )
