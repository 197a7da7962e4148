"""The posterior attack on a trained model

posterior2023, sections 4.3 and 4.4: Figures 3 and 4, after an epoch over a whole training set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor, nn

from gradleak import claims, data, studies
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import head_inputs, observe_heads
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.drawn import Look, Mark, arranged, level, lines, panel, powers_of_two
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, joined, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.posterior2023.columns import COLUMNS
from gradleak.studies.shared.counted_batches import accuracy, skewed
from gradleak.studies.shared.outcomes import Outcome, average_of, collected, guessed
from gradleak.studies.shared.tally import LOOKS, load, others

PLACE = "Sections 4.3 and 4.4, Figures 3 and 4"
ATTACKS = {"posterior": "posterior", "iLRG": "ilrg", "guess": "guess"}
# The batch size of Figure 4.
SIZE = 32
NAMES = {"adam": "Adam", "sgd": "SGD"}
# Section 4.3 says that the accuracy is above this in every setting of Figure 3; its curves have no numbers.
PUBLISHED_BOUND = 0.9
PUBLISHED: Look = {"color": "0.1", "linestyle": (0, (1, 1)), "linewidth": 1.2}


class Parameters(studies.Parameters):
    """Parameters of the page: the model and its training, batches and auxiliary samples."""

    dataset: str = setting(paper="cifar10")
    learns: str = setting(paper="cifar10-jpeg")
    network: str = setting(paper="vgg16")
    epochs: int = setting(ge=1, le=100)
    optimizers: list[Literal["adam", "sgd"]] = setting(smallest=["adam"])
    sizes: list[PositiveInt] = setting(paper=[64, 128, 256, 512, 1024], smallest=[16])
    shares: list[float] = setting(paper=[0.0, 0.1, 0.3, 0.5, 0.7, 0.9], smallest=[0.0])
    scales: list[PositiveInt] = setting(paper=[1, 5, 10, 50, 100], smallest=[1])
    auxiliary: int = setting(paper=100, ge=1, le=1000)
    batches: int = setting(paper=20, smallest=2, ge=2, le=10_000)

    def sees(self) -> list[Sees]:
        """Return the model with its private images and its training set."""
        return [Sees(self.network, self.dataset, activation="relu", learns=self.learns)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each optimizer."""
        for optimizer in self.optimizers:
            yield TrainedModel.of(self, optimizer=optimizer)

    def about(self) -> str:
        """Return the number of batches of a run and its data in a few words."""
        images = data.title(self.dataset)
        return f"{self.batches} batches a setting, {self.epochs} epoch of {self.network}, {images}"


class TrainedModel(Experiment):
    """A trained model, and batches of every size, imbalance and number of auxiliary samples."""

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
        """Return the dataset of the private images and the model's training set."""
        return [self.dataset, self.learns]

    def run(self) -> Iterator[Columns]:
        """Train the model, and count the labels by every attack."""
        recipe = training.Recipe(
            network=self.network, dataset=self.learns, activation="relu", init="torch", epochs=self.epochs,
            optimizer=self.optimizer, learning_rate=1e-3, weight_decay=0, flips_and_crops=False, seed=self.seed,
        )  # fmt: skip
        trained = training.train(recipe, device=self.device)
        model = trained.model.to(self.device)
        # Samples do not influence each other, so the last layer's inputs are computed only once.
        private, public = (_seen(model, load(self.dataset, split), self.device) for split in ("train", "test"))
        head = model.get_submodule("head")
        generator = torch.Generator().manual_seed(self.seed)
        settings = [("settings", size, share, self.auxiliary) for size in self.sizes for share in self.shares]
        settings += [("scale", SIZE, 0.0, amount) for amount in self.scales]
        for part, size, share, each in settings:
            truth: list[Tensor] = []
            found: dict[str, list[Tensor]] = {name: [] for name in ATTACKS}
            for number in range(self.batches):
                chosen = skewed(private, size, share, generator)
                inputs, labels = private.images[chosen].to(self.device), private.labels[chosen]
                heads = observe_heads(head, inputs, labels.to(self.device), batch_size=size)
                truth.append(labels.bincount(minlength=private.classes).unsqueeze(0))
                given, classes = others(public, each, generator)
                known = Knowledge(head, (given.to(self.device), classes.to(self.device)), seed=self.seed + number)
                for name, method in ATTACKS.items():
                    found[name].append(count_heads(heads, method, known, whatever_holds=True).cpu())
            setting: Columns = {"part": part, "size": size, "share": share, "given": each}
            for name, counts in found.items():
                yield accuracy(name, counts, truth) | setting | {"accuracy": 100 * trained.accuracy}


def _seen(model: nn.Module, dataset: data.Dataset, device: str) -> data.Dataset:
    """Return a dataset with the last layer's inputs in place of its images."""
    features, _ = head_inputs(model, data.normalise(dataset.images).to(device))
    return replace(dataset, images=features.cpu())


def headline(record: Record) -> Headline:
    """Return the finding: on a trained model the attack finds fewer labels than the paper says, and than a guess."""
    known = claims.judgements(record)
    adam, sgd = known["trained-sizes"], known["trained-sizes-sgd"]
    even = select(record.rows(TrainedModel), part="settings", share=0.0)
    smallest = select(even, size=even["size"].min()).set_index(["optimizer", "attack"])["instances"]
    guess = smallest["adam", "guess"]
    return Headline(
        f"After one epoch of training the posterior attack reaches an accuracy of {adam.text} (Adam) or {sgd.text} "
        "(gradient descent) on small balanced batches: less than the paper says, and at best about as much as a "
        f"guess of equal counts, which reaches {guess:.3f}.",
        true=adam.agrees is False
        and sgd.agrees is False
        and bool(smallest["adam", "posterior"] < guess and abs(smallest["sgd", "posterior"] - guess) < 0.005),
        claim="trained-sizes",
        what="least instance accuracy over even batches (VGG16 after an epoch of Adam, CIFAR-10)",
        figure=figure_trained,
        of="batches",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Figure 3: the instance accuracy of the posterior attack, and of the guess in brackets.

    One row for each optimizer, with the model's test accuracy, and share of one class; one column for each batch size.
    """
    rows = select(record.rows(TrainedModel), part="settings")
    own = among(only("instances", ".3f"), attack="posterior")
    guess = among(only("instances", "({:.3f})"), attack="guess")
    return summary(
        rows.assign(
            optimizer=rows["optimizer"].map(NAMES),
            accuracy=rows["accuracy"].map("{:.1f}".format),
            share=rows["share"].map(lambda share: f"{100 * share:.0f} %" if share else "even"),
        ),
        {"trained by": "optimizer"} | {COLUMNS[name].head: name for name in ("accuracy", "share")},
        {f"batches of {size}": among(joined(" ", own, guess), size=size) for size in sorted(set(rows["size"]))},
    )


def figure_trained(record: Record) -> Figure:
    """Draw instance accuracy against batch size, imbalance and auxiliary samples per class, a row per optimizer.

    The paper's values are drawn beside ours: a lower bound for Figure 3, and the series of Figure 4.
    """
    bound = level(PUBLISHED_BOUND, "the paper’s lower bound", **PUBLISHED)
    panels = []
    for optimizer, rows in record.rows(TrainedModel).groupby("optimizer", sort=False):
        settings = select(rows, part="settings")
        for own, column, label, paper in (
            (select(settings, share=settings["share"].min()), "size", "batch size", bound),
            (select(settings, size=settings["size"].min()), "share", "share of one class", bound),
            (select(rows, part="scale"), "given", "auxiliary samples per class", _paper_series(str(optimizer))),
        ):
            accuracy = lines(column, "instances", by="attack", order=ATTACKS, looks=LOOKS)
            scale = [powers_of_two(column)] if column != "share" else []
            ylabel = f"accuracy, {NAMES[str(optimizer)]}"
            panels.append(panel(own, accuracy, paper, *scale, xlabel=label, ylabel=ylabel, ylim=(0, 1.05)))
    return arranged(panels, 3, height=2.6, legend=len(ATTACKS) + 2)


def _paper_series(optimizer: str) -> Mark:
    """Draw the paper's series of Figure 4: the accuracy by the number of auxiliary samples per class."""
    values = claims.published("posterior-trained", "instances", ["optimizer", "given"])
    series = sorted((given, float(value)) for (name, given), value in values.items() if name == optimizer)

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        axis.plot(*zip(*series, strict=True), marker="*", label="the paper’s Figure 4", **PUBLISHED)

    return draw


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows.assign(chance=100 * guessed(rows, "instances", ["part", "optimizer", "size", "share", "given"]))
    rows = rows[rows["attack"] != "guess"]
    found = average_of("instances", "instance accuracy", "batches", of=1.0, spread="spread")
    details = [
        row["optimizer"]
        + (f", {row['share']:.0%} of one class" if row["share"] else "")
        + (f", {row['given']} auxiliary samples per class" if row["part"] == "scale" else "")
        for _, row in rows.iterrows()
    ]
    return collected(
        record, rows, "labels", found, chance=rows["chance"], attack=rows["attack"], network=rows["network"] + ", relu",
        training="trained", data=rows["dataset"], batch=rows["size"], detail=details,
    )  # fmt: skip
