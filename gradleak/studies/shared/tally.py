"""Label attacks on many batches of many networks, and the share of labels that each attack finds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import augment, data, metrics
from gradleak.defenses import Each
from gradleak.errors import InputError, unknown
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import Defense, observe, observe_heads
from gradleak.runs.plain import Columns as Cells
from gradleak.show import drawn as show
from gradleak.show import figures

BALANCES = ("unbalanced", "balanced")
SIZES = [1, 2, 4, 8, 16, 32, 64, 128]


class LabelAttack(NamedTuple):
    """A label attack of the package: its method, and the kind of made-up inputs that it uses, if any."""

    method: str
    dummy: str = "random"


# The attacks by their names in figures.
ATTACKS = {
    "LLG": LabelAttack("llg"),
    "LLG*": LabelAttack("llg*"),
    "LLG*, zeros": LabelAttack("llg*", dummy="zeros"),
    "LLG*, ones": LabelAttack("llg*", dummy="ones"),
    "LLG+": LabelAttack("llg+"),
    "guess": LabelAttack("guess"),
}
GUESS = "guess"
# The guess of wainakh2021's code draws every label independently.
DRAWN = "guess, drawn"
# Each attack's colour and dashes are the same on every page; guesses are grey.
LOOKS: dict[str, dict[str, Any]] = {
    name: {"color": (*figures.COLOURS, "0.55", "0.7")[colour], "linestyle": figures.DASHES[dash], "marker": "o"}
    for name, colour, dash in (
        ("LLG", 0, 0),
        ("LLG*", 1, 0),
        ("LLG*, zeros", 1, 1),
        ("LLG*, ones", 1, 2),
        ("LLG+", 2, 0),
        ("posterior", 3, 1),
        ("iLRG", 4, 3),
        ("shadow", 5, 4),
        ("DLG", 5, 0),
        (GUESS, 6, 2),
        (DRAWN, 7, 1),
    )
}
# The side, in pixels, to which the images of some datasets are reduced.
SMALLER = {"flowers17": 64}


def load(name: str, split: Literal["train", "test"]) -> data.Dataset:
    """Return a dataset, with reduced images if its images are too large for many networks."""
    return data.load(name, split, size=SMALLER.get(name))


def drawn(labels: Tensor, size: int, balance: str, generator: torch.Generator) -> Tensor:
    """Return the indices (B,) of a batch as wainakh2021 draws it.

    A balanced batch is drawn from all samples alike. In an unbalanced one half of the samples are of one class and a
    quarter of another.
    """
    if balance == "unbalanced":
        return augment.unbalanced(labels, size, generator=generator)
    if balance == "balanced":
        return torch.randperm(len(labels), generator=generator)[:size]
    raise unknown("way to draw a batch", balance, BALANCES)


def others(dataset: data.Dataset, each: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the inputs and classes of auxiliary samples, `each` of every class."""
    chosen = augment.samples_of(dataset.labels, torch.arange(dataset.classes).repeat_interleave(each), generator)
    return dataset.images[chosen], dataset.labels[chosen]


@dataclass
class Tally:
    """The results of attacks, by (attack, batch size): label share, class Jaccard index and time (s) of every batch."""

    found: dict[tuple[str, int], list[tuple[float, float, float]]] = field(default_factory=dict)

    def add(self, attack: str, size: int, counts: Tensor, truth: Tensor, seconds: float) -> None:
        """Add an attack's counts (1, C) of one batch; zeros if the attack refused."""
        share = float(metrics.count_overlap(counts.cpu(), truth)[0])
        classes = float(metrics.class_jaccard(counts.cpu(), truth)[0])
        self.found.setdefault((attack, size), []).append((share, classes, seconds))

    def rows(self) -> list[Cells]:
        """Return a row for each attack and batch size: its mean success (%), and how far it exceeds any guess."""
        return [self._row(attack, size) for attack, size in self.found]

    def _row(self, attack: str, size: int) -> Cells:
        shares, classes, seconds = self._measured(attack, size)
        row: Cells = {
            "attack": attack,
            "size": size,
            "success": float(shares.mean()),
            "spread": float(shares.std()) if len(shares) > 1 else 0.0,
            "count": len(shares),
            "classes": 100 * float(classes.mean()),
            "seconds": float(seconds.sum()),
        }
        if (GUESS, size) in self.found:
            row["over_guess"] = float(shares.mean() - self._measured(GUESS, size)[0].mean())
        return row

    def _measured(self, attack: str, size: int) -> tuple[Tensor, Tensor, Tensor]:
        shares, classes, seconds = torch.tensor(self.found[attack, size], dtype=torch.float64).unbind(dim=1)
        return 100 * shares, classes, seconds


def attack(
    tally: Tally,
    model: nn.Module,
    private: data.Dataset,
    auxiliary: tuple[Tensor, Tensor],
    *,
    sizes: Sequence[int],
    balance: str,
    generator: torch.Generator,
    attacks: Mapping[str, LabelAttack] = ATTACKS,
    defense: Defense | None = None,
    chunk: int = 250,
) -> None:
    """Count the labels of one batch of every size by every attack, and add the results to the tally.

    Args:
        tally: Where the results are added.
        model: The client's network.
        private: The private samples.
        auxiliary: The attacker's inputs and their classes.
        sizes: The batch sizes.
        balance: How batches are drawn, "unbalanced" or "balanced".
        generator: The source of randomness.
        attacks: The attacks, by name.
        defense: The client's defence.
        chunk: The number of auxiliary samples in each forward pass.
    """
    device = next(model.parameters()).device
    shape = tuple(private.images.shape[1:])
    given = auxiliary[0].to(device), auxiliary[1].to(device)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    # A `Knowledge` caches its forward passes, so attacks with the same made-up inputs share them.
    known = {
        dummy: Knowledge(model, given, shape, dummy=dummy, defense=defense, seed=seed, chunk=chunk)
        for dummy in {one.dummy for one in attacks.values()}
    }
    for size in sizes:
        chosen = drawn(private.labels, size, balance, generator)
        inputs, labels = private.images[chosen].to(device), private.labels[chosen].to(device)
        if defense is None or isinstance(defense, Each):
            heads = observe_heads(model, inputs, labels, batch_size=size)
            heads = heads if defense is None else heads.defended(defense)
        else:
            heads = observe(model, inputs, labels, defense=defense).heads
        truth = torch.bincount(private.labels[chosen], minlength=private.classes).unsqueeze(0)
        for name, (method, dummy) in attacks.items():
            started = time.perf_counter()
            try:
                counts = count_heads(heads, method, known[dummy], whatever_holds=True)
            except InputError:
                counts = torch.zeros_like(truth)
            tally.add(name, size, counts, truth, time.perf_counter() - started)


def milliseconds(rows: pd.DataFrame) -> str:
    """Measure the mean time (ms) per batch."""
    each = 1000 * rows["seconds"].sum() / rows["count"].sum()
    return f"{float(f'{each:.2g}'):g}"


def with_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the standard error of their success."""
    return rows.assign(error=rows["spread"].astype(float) / rows["count"].astype(float) ** 0.5)


def draw_success(rows: pd.DataFrame, attacks: Sequence[str], panels: str, **settings: Any) -> Figure:
    """Draw the share of labels found (%) against the batch size, a line for each attack, with bands of ± one error.

    Args:
        rows: The rows of all attacks.
        attacks: The attacks that are drawn.
        panels: The column whose values make the panels.
        settings: What else `drawn` takes.
    """
    success = show.lines("size", "success", by="attack", band="error", order=attacks, looks=LOOKS)
    usual = {"xlabel": "batch size", "ylabel": "labels found (%)", "ylim": (0, 105)}
    return show.drawn(with_errors(rows), success, show.powers_of_two("size"), panels=panels, **usual | settings)
