"""Revealing labels: which classes occur in a batch

dang2021, sections 2.5.1 and 3: Table 1, and the image half of Table 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import claims, data, studies
from gradleak.defenses import named
from gradleak.errors import InputError
from gradleak.labels import reveal_labels
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded_on_images
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show.drawn import arranged, bars, panel
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import Measure, count, mean, median, summary
from gradleak.show.tables import duration
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.defended import Defended
from gradleak.studies.shared.last_layers import TRAINED, OnLastLayer, Seen, SeenNetwork
from gradleak.studies.shared.outcomes import Outcome, collected, share_of, written
from gradleak.wording import counted

PLACE = "Sections 2.5.1 and 3, Tables 1 and 4"
NETWORK = ["network", "activation", "features"]
# RLG as in dang2021's code: with the batch size as the rank, and with numpy's rank if the two differ.
CODED, BY_NUMPY = "RLG as coded", "RLG as coded, rank by numpy"


class PaperDefense(Defended):
    """A defence of the paper."""

    words: ClassVar = {name: name for name in ("none", "sign", "grad-drop")}


class Shown(SeenNetwork):
    """A network and its features, plain or centred.

    For centred features their mean is moved into the bias, so that they have both signs.
    """

    features: Literal["plain", "centred"] = "plain"


class Parameters(studies.Parameters):
    """Parameters of the page: networks and images, batch sizes, batches and defences."""

    rows: list[Shown] = setting(
        paper=[f"imagenet-sample/{TRAINED}//1000", f"imagenet-sample/{TRAINED}//1000/centred"],
        smallest=["photos/lenet5/tanh/50"],
        validate_default=True,
    )
    sizes: list[int] = setting(paper=[10, 50, 100], smallest=[4])
    batches: int = setting(paper=100, smallest=2, ge=1, le=10_000)
    coded: int = setting(paper=10, ge=0, le=10_000)
    defenses: list[PaperDefense] = setting(smallest=["none/0"], validate_default=True)

    def sees(self) -> list[Sees]:
        """Return the networks of all rows with their images."""
        return [row.sees for row in self.rows]

    def experiments(self) -> Iterator[Experiment]:
        """Yield every network with every batch size, then every defence."""
        for row in self.rows:
            for size in self.sizes:
                yield Table1.of(self, **dict(row), size=size, defense="none", level=0.0)
        for defense in self.defenses:
            yield Table4.of(self, **dict(self.rows[-1]), **dict(defense), size=self.sizes[0])

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        images = ", ".join(map(data.title, dict.fromkeys(row.dataset for row in self.rows)))
        networks = len({row.network for row in self.rows})
        return (
            f"{counted(networks, 'network')}, {len(self.rows)} kinds of features, {self.batches} batches per size, "
            f"{images}"
        )


class Scores(Row):
    """Precision, recall and F1 of a set of classes, and whether the set is exactly right."""

    precision: float
    recall: float
    f1: float
    exact: bool


class Revealed(Scores):
    """The classes that one attack found in a batch.

    Attributes:
        batch: The number of the batch.
        attack: The attack.
        found: The number of classes found.
        labels: The number of distinct classes in the batch.
        seconds: The time (s).
    """

    batch: int
    attack: str
    found: int
    labels: int
    seconds: float


class RevealedBatches(OnLastLayer):
    """Batches whose set of classes is recovered; RLG as coded is run only on the first `coded` batches."""

    features: str
    size: int
    batches: int
    coded: int
    defense: str
    level: float

    def reveal(self) -> Iterator[Revealed]:
        """Recover the classes of every batch by every attack."""
        run = centred(self.seen()) if self.features == "centred" else self.seen()
        generator = torch.Generator().manual_seed(self.seed)
        defend = named(f"{PaperDefense.words[self.defense]}/{self.level}")
        for number in range(self.batches):
            chosen = torch.randperm(len(run.features), generator=generator)[: self.size].to(self.device)
            own = run.labels_of(chosen, generator)
            gradient = defend({"weight": run.gradient(chosen, own)})["weight"]
            truth = set(own.tolist())
            # A defended gradient has full rank, so the attacker gets the batch size, as in the paper's code.
            attacks = _attacks(gradient, self.size, clean=self.defense == "none", coded=number < self.coded)
            for attack, reveal in attacks.items():
                started = time.perf_counter()
                found = reveal()
                seconds = time.perf_counter() - started
                yield Revealed.of(
                    scores(found, truth),
                    batch=number,
                    attack=attack,
                    found=len(found),
                    labels=len(truth),
                    seconds=seconds,
                )


class Table1(RevealedBatches):
    """Batches of one size, without a defence."""

    part: ClassVar[str] = "table 1"

    def run(self) -> Iterator[Revealed]:
        """Recover the classes."""
        return self.reveal()


class Table4(RevealedBatches):
    """Batches behind one defence."""

    part: ClassVar[str] = "table 4"

    def run(self) -> Iterator[Revealed]:
        """Recover the classes."""
        return self.reveal()


def centred(run: Seen) -> Seen:
    """Return the same network with its features' mean moved into its bias: f − μ with b + Wμ predicts the same."""
    return replace(run, features=run.features - run.features.mean(dim=0))


def _attacks(gradient: Tensor, size: int, *, clean: bool, coded: bool) -> dict[str, Callable[[], set[int]]]:
    """Return the attacks on a batch, by name."""
    attacks = {
        "minimum rule": lambda: set((gradient.amin(dim=1) < 0).nonzero()[:, 0].tolist()),
        "RLG": lambda: _by_planes(gradient, None if clean else size),
    }
    if coded:
        rank = int(np.linalg.matrix_rank(gradient.float().cpu().numpy()))
        attacks[CODED] = lambda: rlg_as_coded_on_images(gradient, size)
        if rank != size:
            attacks[BY_NUMPY] = lambda: rlg_as_coded_on_images(gradient, rank)
    return attacks


def _by_planes(gradient: Tensor, rank: int | None) -> set[int]:
    try:
        return reveal_labels(gradient, rank=rank)
    except InputError:
        # A gradient of full rank has no solution. The attack then returns nothing instead of a guess.
        return set()


def scores(found: set[int], truth: set[int]) -> Scores:
    """Compare a set of classes with the true one."""
    both = len(found & truth)
    precision, recall = both / len(found) if found else 0.0, both / len(truth)
    harmonic = 2 * precision * recall / (precision + recall) if both else 0.0
    return Scores(precision=precision, recall=recall, f1=harmonic, exact=found == truth)


# The columns of both tables.
REVEALED: dict[str, Measure] = {
    "precision": mean("precision", ".3f"),
    "recall": mean("recall", ".3f"),
    "F1": mean("f1", ".3f"),
    "sets exactly right": mean("exact", lambda share: f"{100 * share:.0f} %"),
    "classes found": mean("found", ".1f"),
    "batches": count(),
    "time per batch": median("seconds", duration),
}


def headline(record: Record) -> Headline:
    """Return the finding: planes recover the set of classes exactly, whatever the signs of the features."""
    known = claims.judgements(record)
    exact, rule = known["reveal-rlg-efficientnetb0-50-exact-matches"], known["reveal-minimum-50-precision"]
    return Headline(
        f"In {exact.text} of batches of {exact.claim.row} images of different classes, RLG, solved exactly, recovers "
        "which classes occur, from the last layer's gradient alone, even if features have both signs; the simpler "
        f"minimum rule has a precision of only {rule.text}.",
        true=(exact.value or 0) >= 95 and rule.value is not None and rule.value < 0.1,
        claim="reveal-rlg-efficientnetb0-50-exact-matches",
        what="batches of 50 images whose set of classes is exactly right (EfficientNet-Lite0, features of both signs)",
        figure=figure_exact,
        of="batches",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 1: precision, recall, F1, exact sets, classes found, batches and median wall time.

    One row for each network, batch size and attack.
    """
    rows = record.rows(Table1)
    titles = [_title(network) for network in rows[NETWORK].itertuples(index=False)]
    return summary(rows.assign(title=titles), {"network": "title", "batch size": "size", "attack": "attack"}, REVEALED)


def defense_table(record: Record) -> pd.DataFrame:
    """Return the image half of Table 4: RLG and RLG as coded behind defences; one row for each defence and attack."""
    rows = record.rows(Table4)
    rows = rows[rows["attack"] != "minimum rule"]
    shown = [
        f"{name} {level:.0%}" if name == "grad-drop" else name
        for name, level in zip(rows["defense"], rows["level"], strict=True)
    ]
    return summary(rows.assign(shown=shown), {"defence": "shown", "attack": "attack"}, REVEALED)


def _title(words: Iterable[object]) -> str:
    """Return a network's name, with its kind of features unless they are plain."""
    named = [f"{word} features" if word == "centred" else str(word) for word in words if word not in ("", "plain")]
    return ", ".join(named)


def figure_exact(record: Record) -> Figure:
    """Draw precision, recall and the share of exact sets against the batch size, a row of panels for each network."""
    columns = {"precision": "precision", "recall": "recall", "exact": "sets exactly right"}
    shown = {"xlabel": "samples in a batch", "ylim": (0, 1.03)}
    panels = [
        panel(rows, bars("size", column, by="attack"), title=title, ylabel=_title(network).replace(", ", "\n"), **shown)
        for network, rows in record.rows(Table1).groupby(NETWORK, sort=False)
        for column, title in columns.items()
    ]
    return arranged(panels, len(columns), height=2.2, legend=2, sharex=True)


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    plain, centred = (
        line(table(record), f"efficientnet-lite0{features}", "100", "RLG") for features in ("", ", centred features")
    )
    return Leaks(
        "the set of labels (RLG)",
        f"batches of {plain['batch size']}; EfficientNet-Lite0, ImageNet",
        f"{plain['sets exactly right']} of sets exact, {centred['sets exactly right']} if features have both signs "
        f"({plain['batches']} batches each)",
        f"{plain['time per batch']} elapsed",
        kind="labels",
        attack="RLG",
        batch=int(plain["batch size"]),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    found = share_of("f1", "F1 of the set of labels", "batches")
    return collected(
        record, rows, "labels", found, attack=rows["attack"], network=rows["network"], training="trained",
        data=rows["dataset"], batch=rows["size"], defense=written(rows["defense"], rows["level"], {}),
        detail=rows["features"] + " features",
    )  # fmt: skip
