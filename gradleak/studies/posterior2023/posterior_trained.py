"""Counting labels from the posteriors of a trained model

posterior2023, sections 4.3 and 4.4: Figures 3 and 4, after an epoch over a whole training set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor, nn

from gradleak import data, studies
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import head_inputs, observe_heads
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import among, joined, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.counted_batches import Accuracy, accuracies, accuracy, skewed
from gradleak.studies.shared.tally import LOOKS, load, others

PLACE = "Sections 4.3 and 4.4, Figures 3 and 4"
ATTACKS = {"posterior": "posterior", "iLRG": "ilrg", "guess": "guess"}
# Figure 4's batches.
SIZE = 32
NAMES = {"adam": "Adam", "sgd": "SGD"}


class Parameters(studies.Parameters):
    """Which model is trained on what, and in which batches and by how many auxiliary samples labels are counted."""

    dataset: str = setting(
        "photos", paper="cifar10", about="private images, training split; auxiliary ones: test split"
    )
    learns: str = setting("photos", paper="cifar10-jpeg", about="what the model is trained on, training split")
    network: str = setting("lenet5", paper="vgg16", about="the model")
    epochs: int = setting(1, ge=1, le=100, about="passes over the training set, at a rate of 0.001")
    optimizers: list[Literal["adam", "sgd"]] = setting(
        ["adam", "sgd"], smallest=["adam"], about="what trains the model"
    )
    sizes: list[PositiveInt] = setting(
        [64, 256], paper=[64, 128, 256, 512, 1024], smallest=[16], about="Figure 3: samples in a batch"
    )
    shares: list[float] = setting(
        [0.0, 0.5, 0.9],
        paper=[0.0, 0.1, 0.3, 0.5, 0.7, 0.9],
        smallest=[0.0],
        about="Figure 3: share of one class in a batch; 0: even",
    )
    scales: list[PositiveInt] = setting(
        [1, 5, 20], paper=[1, 5, 10, 50, 100], smallest=[1], about="Figure 4: auxiliary samples of a class"
    )
    auxiliary: int = setting(20, paper=100, ge=1, le=1000, about="Figure 3: auxiliary samples of a class")
    batches: int = setting(10, paper=20, smallest=2, ge=2, le=10_000, about="batches a setting")

    def sees(self) -> list[Sees]:
        """Return the model, the images that it is shown, and those that it is trained on."""
        return [Sees(self.network, self.dataset, activation="relu", learns=self.learns)]

    def experiments(self) -> Iterator[Experiment]:
        """Give the model as each optimizer trains it."""
        for optimizer in self.optimizers:
            yield TrainedModel.of(self, optimizer=optimizer)

    def about(self) -> str:
        """Return in a few words how many batches of what a run is about."""
        images = data.title(self.dataset)
        return f"{self.batches} batches a setting, {self.epochs} epoch of {self.network}, {images}"


class Counted(Accuracy):
    """How right one attack counts in one setting of Figure 3, or with one amount of auxiliary samples, of Figure 4.

    `part`: "settings" or "scale"; `given`: auxiliary samples of a class; `accuracy`: of the model, in percent.
    """

    part: str
    size: int
    share: float
    given: int
    accuracy: float


class TrainedModel(Experiment):
    """A trained model, and the labels of batches of every size, imbalance and amount of auxiliary data."""

    optimizer: Literal["adam", "sgd"]
    dataset: str
    learns: str
    network: str
    epochs: int
    sizes: list[int]
    shares: list[float]
    scales: list[int]
    auxiliary: int
    batches: int

    def reads(self) -> list[str]:
        """Return the names of the private images and of those that the model is trained on."""
        return [self.dataset, self.learns]

    def run(self) -> Iterator[Counted]:
        """Train the model, and count by every attack."""
        model, correct = self._model()
        # No sample knows of another: what the last layer takes in is worked out once.
        private, public = (_seen(model, load(self.dataset, split), self.device) for split in ("train", "test"))
        head = model.get_submodule("head")
        generator = torch.Generator().manual_seed(self.seed)
        settings = [("settings", size, share, self.auxiliary) for size in self.sizes for share in self.shares]
        for part, size, share, each in (*settings, *(("scale", SIZE, 0.0, amount) for amount in self.scales)):
            found: dict[str, list[Tensor]] = {name: [] for name in ATTACKS}
            for number in range(self.batches):
                chosen = skewed(private, size, share, generator)
                labels = private.labels[chosen]
                inputs = private.images[chosen].to(self.device)
                heads = observe_heads(head, inputs, labels.to(self.device), batch_size=size)
                truth = labels.bincount(minlength=private.classes).unsqueeze(0)
                given, classes = others(public, each, generator)
                known = Knowledge(head, (given.to(self.device), classes.to(self.device)), seed=self.seed + number)
                for name, method in ATTACKS.items():
                    counts = count_heads(heads, method, known, whatever_holds=True).cpu()
                    found[name].append(accuracies(counts, truth))
            for name, own in found.items():
                yield Counted.of(
                    accuracy(name, own), part=part, size=size, share=share, given=each, accuracy=100 * correct
                )

    def _model(self) -> tuple[nn.Module, float]:
        """Return the model, and its test accuracy."""
        recipe = training.Recipe(
            network=self.network,
            dataset=self.learns,
            epochs=self.epochs,
            learning_rate=1e-3,
            optimizer=self.optimizer,
            weight_decay=0,
            flips_and_crops=False,
            activation="relu",
            init="torch",
            seed=self.seed,
        )
        trained = training.train(recipe, device=self.device)
        return trained.model.to(self.device), trained.accuracy


def _seen(model: nn.Module, dataset: data.Dataset, device: str) -> data.Dataset:
    """Return a dataset with what the last layer takes in, in place of its images."""
    features, _ = head_inputs(model, data.normalise(dataset.images).to(device))
    return replace(dataset, images=features.cpu())


def _rows(record: Record, **where: str) -> pd.DataFrame:
    """Return the rows in which columns have these values, with the optimizers as tables name them."""
    rows = select(record.rows(TrainedModel), **where)
    return rows.assign(optimizer=rows["optimizer"].map(NAMES))


def models_table(record: Record) -> pd.DataFrame:
    """Return how well each model does after its training."""
    return summary(_rows(record), {"trained by": "optimizer"}, {"test accuracy, %": only("accuracy", ".1f")})


def settings_table(record: Record) -> pd.DataFrame:
    """Return Figure 3: the posterior attack's instance accuracy by batch size and imbalance, the guess's beside it."""
    rows = _rows(record, part="settings")
    own = among(only("instances", ".3f"), attack="posterior")
    guess = among(only("instances", "({:.3f})"), attack="guess")
    sizes = {f"B = {size}": among(joined(" ", own, guess), size=size) for size in sorted(set(rows["size"]))}
    rows = rows.assign(share=rows["share"].map(lambda share: f"{share:.0%}" if share else "even"))
    return summary(rows, {"trained by": "optimizer", "one class": "share"}, sizes)


def scale_table(record: Record) -> pd.DataFrame:
    """Return Figure 4: the posterior attack's instance accuracy by the auxiliary samples of a class."""
    rows = _rows(record, part="scale", attack="posterior")
    instances = joined(" ± ", only("instances", ".3f"), only("spread", ".3f"))
    amounts = {f"{given}": among(instances, given=given) for given in dict.fromkeys(rows["given"])}
    return summary(rows, {"trained by": "optimizer"}, amounts)


def figure_trained(record: Record) -> Figure:
    """Draw instance accuracy against the batch size, the imbalance and the auxiliary samples, a row an optimizer."""
    frame = record.rows(TrainedModel)
    optimizers = list(dict.fromkeys(frame["optimizer"]))
    figure, axes = figures.panels(len(optimizers), 3, height=2.6, sharey=True)
    for row, optimizer in zip(axes, optimizers, strict=True):
        part = frame[frame["optimizer"] == optimizer]
        settings, amounts = part[part["part"] == "settings"], part[part["part"] == "scale"]
        even = settings[settings["share"] == settings["share"].min()]
        middle = settings[settings["size"] == settings["size"].min()]
        for axis, own, column in zip(row, (even, middle, amounts), ("size", "share", "given"), strict=True):
            for name in ATTACKS:
                line, (colour, dash) = own[own["attack"] == name].sort_values(column), LOOKS[name]
                axis.plot(line[column], line["instances"], color=colour, linestyle=dash, marker="o", label=name)
            axis.set(ylim=(0, 1.05))
            if column != "share":
                axis.set_xscale("log", base=2)
                axis.xaxis.set_major_formatter("{x:g}")
                axis.minorticks_off()
        row[0].set_ylabel(f"instance accuracy, {NAMES[optimizer]}")
    for axis, label in zip(axes[-1], ("samples in a batch", "share of one class", "auxiliary of a class"), strict=True):
        axis.set_xlabel(label)
    figures.legend_below(figure, len(ATTACKS))
    return figure
