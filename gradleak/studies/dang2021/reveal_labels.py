"""Revealing labels: which classes occur in a batch

dang2021, sections 2.5.1 and 3: Table 1, and the image half of Table 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from gradleak import claims, data, studies
from gradleak.defenses import named
from gradleak.labels import reveal_labels
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded_on_images
from gradleak.show.aggregate import select
from gradleak.show.drawn import arranged, bars, panel
from gradleak.show.summary import Leaks, Summary
from gradleak.show.tables import duration
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.dang2021.experiments import PaperDefense, percent, set_scores
from gradleak.studies.shared.attempts import timed, unless_refused
from gradleak.studies.shared.last_layers import TRAINED, OnLastLayer, Seen, ShownImages
from gradleak.studies.shared.outcomes import collected, share_of, written
from gradleak.wording import counted

PLACE = "Sections 2.5.1 and 3, Tables 1 and 4"


class Shown(ShownImages):
    """A network, the images that it is shown, and the kind of its features.

    Plain features are not negative, signed ones have both signs. For centred features their mean is moved into the
    bias, so that they have both signs.
    """

    features: Literal["plain", "signed", "centred"]


class Parameters(studies.Parameters):
    """Parameters of the page: networks and images, batch sizes, batches and defences."""

    rows: list[Shown] = setting(
        paper=Shown.listed(*(("imagenet-sample", TRAINED, "", 1000, kind) for kind in ("plain", "centred"))),
        smallest=Shown.listed(("photos", "lenet5", "tanh", 50, "plain")),
    )
    sizes: list[int] = setting(paper=[10, 50, 100], smallest=[4])
    batches: int = setting(paper=100, smallest=2, ge=1, le=10_000)
    coded: int = setting(paper=10, ge=0, le=10_000)
    defenses: list[PaperDefense] = setting(smallest=["none/0"])

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
        return f"{counted(networks, 'network')}, {self.batches} batches per size, {images}"


class RevealedBatches(OnLastLayer):
    """Batches whose set of classes is recovered; RLG as coded is run only on the first `coded` batches."""

    features: str
    size: int
    batches: int
    coded: int
    defense: str
    level: float

    def run(self) -> Iterator[Columns]:
        """Recover the classes of every batch by every attack."""
        run = centred(self.seen()) if self.features == "centred" else self.seen()
        generator = torch.Generator().manual_seed(self.seed)
        defend = named(f"{self.defense}/{self.level}")
        for number in range(self.batches):
            chosen = torch.randperm(len(run.features), generator=generator)[: self.size].to(self.device)
            own = run.labels_of(chosen, generator)
            gradient = defend({"weight": run.gradient(chosen, own)})["weight"]
            truth = set(own.tolist())
            for attack, reveal in self._attacks(gradient, coded=number < self.coded).items():
                # A gradient of full rank has no solution, and RLG then refuses.
                found, seconds = timed(unless_refused, reveal, set[int](), clock=time.perf_counter)
                sizes: Columns = {"batch": number, "attack": attack, "found": len(found), "labels": len(truth)}
                yield set_scores(found, truth) | sizes | {"seconds": seconds}

    def _attacks(self, gradient: Tensor, *, coded: bool) -> dict[str, Callable[[], set[int]]]:
        """Return the attacks on a batch, by name."""
        # A defended gradient has full rank, so the attacker gets the batch size, as in the paper's code.
        given = None if self.defense == "none" else self.size
        attacks = {
            "minimum rule": lambda: set((gradient.amin(dim=1) < 0).nonzero()[:, 0].tolist()),
            "RLG": lambda: reveal_labels(gradient, rank=given),
        }
        if coded:
            rank = int(np.linalg.matrix_rank(gradient.float().cpu().numpy()))
            # dang2021's code takes the batch size as the rank.
            attacks["RLG as coded"] = lambda: rlg_as_coded_on_images(gradient, self.size)
            if rank != self.size:
                attacks["RLG as coded, rank by numpy"] = lambda: rlg_as_coded_on_images(gradient, rank)
        return attacks


class Table1(RevealedBatches, part="table 1"):
    """Batches of one size, without a defence."""


class Table4(RevealedBatches, part="table 4"):
    """Batches behind one defence."""


def centred(run: Seen) -> Seen:
    """Return the same network with its features' mean moved into its bias: f − μ with b + Wμ predicts the same."""
    return replace(run, features=run.features - run.features.mean(dim=0))


def summary(record: Record) -> Summary:
    """Return the finding: planes recover the set of classes exactly, whatever the signs of the features."""
    known = claims.judgements(record)
    exact, rule = known["reveal-rlg-efficientnetb0-50-exact-matches"], known["reveal-minimum-50-precision"]
    rows, largest = record.frame(), _largest(record)
    (_, plain), (_, both) = largest.groupby("features", sort=False)
    size = int(largest["size"].max())
    outcomes = collected(
        record, rows, "labels", share_of("f1", "F1 of the set of labels", "batches"), attack=rows["attack"],
        network=rows["network"], training="trained", data=rows["dataset"], batch=rows["size"],
        defense=written(rows["defense"], rows["level"], {}), detail=rows["features"] + " features",
    )  # fmt: skip
    return Summary(
        f"In {exact.text} of batches of {exact.claim.row} images of different classes, RLG, solved exactly, recovers "
        "which classes occur, from the last layer's gradient alone, even if features have both signs; the simpler "
        f"minimum rule has a precision of only {rule.text}.",
        true=(exact.value or 0) >= 95 and rule.value is not None and rule.value < 0.1,
        claim="reveal-rlg-efficientnetb0-50-exact-matches",
        what="batches of 50 images whose set of classes is exactly right (EfficientNet-Lite0, features of both signs)",
        figure=figure_exact,
        of="batches",
        leaks=Leaks(
            "the set of labels (RLG)",
            f"batches of {size}; EfficientNet-Lite0, ImageNet",
            f"{percent(plain['exact'].mean())} of sets exact, {percent(both['exact'].mean())} if features have both "
            f"signs ({len(plain)} batches each)",
            f"{duration(plain['seconds'].median())} elapsed",
            kind="labels",
            attack="RLG",
            batch=size,
        ),
        outcomes=outcomes,
    )


def _largest(record: Record) -> pd.DataFrame:
    """Return the rows of RLG on the largest batches."""
    rows = select(record.rows(Table1), attack="RLG")
    return _titled(select(rows, size=rows["size"].max()))


def found(record: Record) -> str:
    """Return in words how many sets RLG recovers exactly from the largest batches, and in which time."""
    words = "{}: {} of {} sets are exact in batches of {}, and an attack takes {}"
    return "; ".join(
        words.format(title, percent(own["exact"].mean()), len(own), size, duration(own["seconds"].median()))
        for (title, size), own in _largest(record).groupby(["title", "size"], sort=False)
    )


def _titled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the name of their network, and with its kind of features unless they are plain."""
    kinds = rows["features"].map({"plain": "", "signed": "", "centred": "centred features"})
    words = zip(rows["network"], rows["activation"], kinds, strict=True)
    return rows.assign(title=[", ".join(filter(None, own)) for own in words])


def figure_exact(record: Record) -> Figure:
    """Draw precision, recall and the share of exact sets against the batch size, a row of panels for each network."""
    shown = {"xlabel": "samples in a batch", "ylim": (0, 1.03)}
    panels = [
        panel(rows, bars("size", column, by="attack"), title=name, ylabel=str(network).replace(", ", "\n"), **shown)
        for network, rows in _titled(record.rows(Table1)).groupby("title", sort=False)
        for column, name in {"precision": "precision", "recall": "recall", "exact": "sets exactly right"}.items()
    ]
    return arranged(panels, across=3, height=2.2, legend=2, sharex=True)
