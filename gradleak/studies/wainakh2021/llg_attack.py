"""The LLG attack: how many labels of a batch its gradient reveals

wainakh2021, section 6.2: Figures 2 and 6.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from torch import Tensor

from gradleak import claims, data, studies
from gradleak.images import LBFGS, match
from gradleak.leak import observe
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import among, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import tally
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.outcomes import FOUND, Outcome, collected
from gradleak.studies.wainakh2021.columns import COLUMNS

__all__ = ["COLUMNS"]

PLACE = "Section 6.2, Figures 2 and 6"
DLG = "DLG"
GRADIENTS = "gradients"
SHOWN = (*tally.ATTACKS, DLG)
# Stand-ins have as many classes as the dataset that they stand for: CIFAR-100, and CelebA as the paper takes it.
CLASSES = {"tinyimagenet32": 100, "flowers17": 5}
# About as many pixels as CelebA's 178 × 218. Of the 80 images of each flower, 64 are private and the rest auxiliary.
SIDE, PRIVATE = 197, 64


class Parameters(studies.Parameters):
    """Parameters of the page: data, batch sizes, networks, and the batches and steps of DLG."""

    repeats: int = setting(paper=100, smallest=2, ge=1, le=10_000)
    sizes: list[PositiveInt] = setting(smallest=[1, 8])
    balances: list[str] = setting(smallest=["unbalanced"])
    datasets: list[str] = setting(paper=["mnist", "cifar10", "tinyimagenet32", "flowers17"], smallest=["digits"])
    auxiliary: int = setting(ge=1, le=1000)
    dlg_repeats: int = setting(paper=5, ge=0, le=1000)
    dlg_sizes: list[PositiveInt] = setting(paper=[1, 2, 4, 8, 16], smallest=[1])
    dlg_steps: int = setting(paper=100, smallest=1, ge=1, le=10_000)

    def sees(self) -> list[Sees]:
        """Return the network with its images."""
        return [Sees("llg-cnn", dataset) for dataset in self.datasets]

    def experiments(self) -> Iterator[Experiment]:
        """Yield each dataset and way of drawing, then, on the first dataset, DLG for each batch size and the timing."""
        for dataset, balance in product(self.datasets, self.balances):
            fewer = {"classes": CLASSES[dataset]} if dataset in CLASSES else {}
            yield CountedLabels.of(self, dataset=dataset, balance=balance, **fewer)
        for dataset in self.datasets[:1]:
            common = {"dataset": dataset, "balance": "unbalanced"}
            for size in self.dlg_sizes if self.dlg_repeats else ():
                yield CountedByDLG.of(self, **common, size=size, repeats=self.dlg_repeats, steps=self.dlg_steps)
            yield TimedGradients.of(self, **common)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        shown = ", ".join(data.title(name) for name in self.datasets)
        return f"{self.repeats} networks a dataset; {shown}"


class OnNetworks(Experiment):
    """Batches of a dataset, on `repeats` networks."""

    dataset: str
    balance: str
    repeats: int

    def batch(self, private: data.Dataset, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the images and labels of a batch."""
        chosen = tally.drawn(private.labels, size, self.balance, generator)
        return private.images[chosen].to(self.device), private.labels[chosen].to(self.device)


class CountedLabels(OnNetworks):
    """Batches of every size whose labels are counted by every attack except DLG.

    If `classes` is stated, only this many first classes of the dataset are used.
    """

    part: ClassVar[str] = "count"
    sizes: list[int]
    auxiliary: int
    classes: int | None = None

    def run(self) -> list[Columns]:
        """Count the labels of a batch of every size on every network."""
        private, public = (images(self.dataset, split, self.classes) for split in ("train", "test"))
        generator = torch.Generator().manual_seed(self.seed)
        counted = tally.Tally()
        for number in range(self.repeats):
            model = built("llg-cnn", private, self.seed + number, self.device)
            given = tally.others(public, self.auxiliary, generator)
            tally.attack(counted, model, private, given, sizes=self.sizes, balance=self.balance, generator=generator)
        return counted.rows()


class CountedByDLG(OnNetworks):
    """Batches of one size whose labels and images DLG restores together."""

    part: ClassVar[str] = "dlg"
    size: int
    steps: int

    def run(self) -> list[Columns]:
        """Restore a batch on every network, and count its labels."""
        private = tally.load(self.dataset, "train")
        generator = torch.Generator().manual_seed(self.seed + self.size)
        counted = tally.Tally()
        for number in range(self.repeats):
            seed = self.seed + number
            model = built("llg-cnn", private, seed, self.device)
            inputs, labels = self.batch(private, self.size, generator)
            leak = observe(model, inputs, labels)
            started = time.perf_counter()
            found = match(leak, "dlg", optimizer=LBFGS(steps=self.steps, search=False), seed=seed)
            counts, truth = (
                torch.bincount(own, minlength=private.classes).unsqueeze(0).cpu()
                for own in (found.labels.argmax(dim=1), labels)
            )
            counted.add(DLG, self.size, counts, truth, time.perf_counter() - started)
        return counted.rows()


class TimedGradients(OnNetworks):
    """The time of the gradients of batches of every size, without an attack."""

    part: ClassVar[str] = "gradients"
    sizes: list[int]

    def run(self) -> list[Columns]:
        """Time the gradient of a batch of every size on every network."""
        private = tally.load(self.dataset, "train")
        generator = torch.Generator().manual_seed(self.seed)
        seconds = dict.fromkeys(self.sizes, 0.0)
        for number in range(self.repeats):
            model = built("llg-cnn", private, self.seed + number, self.device)
            for size in self.sizes:
                inputs, labels = self.batch(private, size, generator)
                started = time.perf_counter()
                observe(model, inputs, labels)
                seconds[size] += time.perf_counter() - started
        return [
            {"attack": GRADIENTS, "size": size, "seconds": seconds[size], "count": self.repeats} for size in self.sizes
        ]


def images(name: str, split: Literal["train", "test"], classes: int | None = None) -> data.Dataset:
    """Return a split of a dataset, with only its first `classes` classes if given; the splits share no image."""
    if classes is None:
        return tally.load(name, split)
    whole = data.load(name, split, size=SIDE if name == "flowers17" else None)
    own = [(whole.labels == label).nonzero()[:, 0] for label in range(classes)]
    if name == "flowers17":
        # The dataset's two splits hold the same images, so each class is divided here.
        own = [one[:PRIVATE] if split == "train" else one[PRIVATE:] for one in own]
    kept = torch.cat(own)
    named = whole.class_names[:classes]
    return replace(whole, images=whole.images[kept], labels=whole.labels[kept], class_names=named)


def headline(record: Record) -> Headline:
    """Return the finding: the gradient alone reveals most labels, and a few labelled samples reveal nearly all."""
    known = claims.judgements(record)
    alone, knowing = known["llg-mnist-llg"], known["llg-mnist-llg+"]
    largest, auxiliary = record.rows(CountedLabels)["size"].max(), record.parameters["auxiliary"]
    return Headline(
        f"From the gradient of an unbalanced batch of up to {largest} MNIST images, a server finds on average at least "
        f"{alone.text} of the labels without further knowledge, and at least {knowing.text} with {auxiliary} labelled "
        "samples of its own per class (untrained CNN).",
        true=bool(alone.agrees and knowing.agrees),
        claim="llg-mnist-llg+",
        what="labels that LLG+ finds at its worst batch size (untrained CNN, unbalanced batches of MNIST)",
        figure=figure_success,
        of="batches",
    )


def time_table(record: Record) -> pd.DataFrame:
    """Return the time (ms) per batch of each attack, and of computing the gradients.

    One row for each attack; one column for each dataset.
    """
    frame = record.frame()
    datasets = dict.fromkeys(frame["dataset"])
    measures = {f"{data.title(name)} (ms)": among(tally.milliseconds, dataset=name) for name in datasets}
    return summary(frame, {"attack": "attack"}, measures)


def figure_success(record: Record, balance: str = "unbalanced") -> Figure:
    """Draw the share of labels found (%) against the batch size: Figure 2, or Figure 6 for balanced batches."""
    frame = select(record.frame(), balance=balance)
    if frame.empty:
        return figures.nothing(f"This run has no {balance} batches.")
    # All attacks are near 100 %, so the axis starts just below the worst of them. The guess may lie below the axis.
    bottom = 10 * math.floor(frame[frame["attack"] != tally.GUESS]["success"].min() / 10)
    figure = tally.draw_success(
        frame, SHOWN, "dataset", title=data.title, across=2, height=2.6, legend=4, ylim=(bottom - 5, 101)
    )
    guesses = select(frame, attack=tally.GUESS).groupby("dataset", sort=False)["success"].max()
    for axis, best in zip(figure.axes, guesses, strict=True):
        axis.text(0.02, 0.05, f"guess: at most {best:.0f} %", transform=axis.transAxes, color="0.35", fontsize=9)
    return figure


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    known = claims.judgements(record)
    alone, knowing = known["llg-mnist-llg"], known["llg-mnist-llg+"]
    largest = record.rows(CountedLabels)["size"].max()
    return Leaks(
        "label counts (LLG+)",
        f"batches of up to {largest} MNIST images; untrained CNN, {record.parameters['auxiliary']} samples per class",
        f"{knowing.text} of labels at the worst batch size, {alone.text} without the samples (LLG); "
        f"{knowing.count:,} batches",
        f"{line(time_table(record), 'LLG+')['MNIST (ms)']} ms elapsed",
        kind="labels",
        attack="LLG+",
        batch=int(largest),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[~rows["attack"].isin([tally.GUESS, GRADIENTS])]
    return collected(
        record, rows, "labels", FOUND, chance=(rows["success"] - rows["over_guess"]).fillna(0), attack=rows["attack"],
        network="llg-cnn", data=rows["dataset"], batch=rows["size"], detail=rows["balance"] + " classes",
    )  # fmt: skip
