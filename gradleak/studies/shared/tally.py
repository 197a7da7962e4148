"""Label attacks on many batches of many networks, and the share of labels that each attack finds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

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


GUESS = "guess"
# The guess of wainakh2021's code draws every label independently.
DRAWN = "guess, drawn"
# The attacks of wainakh2021 by their names in figures.
ATTACKS = ("LLG", "LLG*", "LLG*, zeros", "LLG*, ones", "LLG+", GUESS)
# The method of an attack and the kind of made-up inputs that it uses. Those of other attacks have the attack's name in
# lower case, and random inputs.
VARIANTS = {"LLG*, zeros": ("llg*", "zeros"), "LLG*, ones": ("llg*", "ones"), DRAWN: ("draw", "random")}
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


def batch_of(labels: Tensor, size: int, balance: str, generator: torch.Generator) -> Tensor:
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


class Tally:
    """The results of attacks: the shares of labels and classes found (%), and the time (s), of every batch."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, float, float, float]] = []

    def add(self, attack: str, size: int, counts: Tensor, truth: Tensor, seconds: float) -> None:
        """Add an attack's counts (1, C) of one batch; zeros if the attack refused."""
        share, classes = (
            100 * float(measure(counts.cpu(), truth)[0]) for measure in (metrics.count_overlap, metrics.class_jaccard)
        )
        self.found.append((attack, size, share, classes, seconds))

    def rows(self) -> list[Cells]:
        """Return a row for each attack and batch size: its mean success (%), and how far it exceeds any guess."""
        found = pd.DataFrame(self.found, columns=["attack", "size", "success", "classes", "seconds"])
        guesses = found[found["attack"] == GUESS].groupby("size")["success"].mean()
        rows: list[Cells] = []
        groups: Any = found.groupby(["attack", "size"], sort=False)
        for (attack, size), own in groups:
            row: Cells = {
                "attack": attack,
                "size": int(size),
                "success": float(own["success"].mean()),
                "spread": float(own["success"].std()) if len(own) > 1 else 0.0,
                "count": len(own),
                "classes": float(own["classes"].mean()),
                "seconds": float(own["seconds"].sum()),
            }
            if size in guesses:
                row["over_guess"] = float(own["success"].mean() - guesses[size])
            rows.append(row)
        return rows


def attack(
    tally: Tally,
    model: nn.Module,
    private: data.Dataset,
    auxiliary: tuple[Tensor, Tensor],
    *,
    sizes: Sequence[int],
    generator: torch.Generator,
    balance: str = "unbalanced",
    attacks: Sequence[str] = ATTACKS,
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
        generator: The source of randomness.
        balance: How batches are drawn, "unbalanced" or "balanced".
        attacks: The names of the attacks.
        defense: The client's defence.
        chunk: The number of auxiliary samples in each forward pass.
    """
    device = next(model.parameters()).device
    shape = tuple(private.images.shape[1:])
    given = auxiliary[0].to(device), auxiliary[1].to(device)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    # A `Knowledge` caches its forward passes, so attacks with the same made-up inputs share them.
    methods = {name: VARIANTS.get(name, (name.lower(), "random")) for name in attacks}
    known = {
        dummy: Knowledge(model, given, shape, dummy=dummy, defense=defense, seed=seed, chunk=chunk)
        for dummy in {dummy for _, dummy in methods.values()}
    }
    for size in sizes:
        chosen = batch_of(private.labels, size, balance, generator)
        inputs, labels = private.images[chosen].to(device), private.labels[chosen].to(device)
        if defense is None or isinstance(defense, Each):
            heads = observe_heads(model, inputs, labels, batch_size=size)
            heads = heads if defense is None else heads.defended(defense)
        else:
            heads = observe(model, inputs, labels, defense=defense).heads
        truth = torch.bincount(private.labels[chosen], minlength=private.classes).unsqueeze(0)
        for name, (method, dummy) in methods.items():
            started = time.perf_counter()
            try:
                counts = count_heads(heads, method, known[dummy], whatever_holds=True)
            except InputError:
                counts = torch.zeros_like(truth)
            tally.add(name, size, counts, truth, time.perf_counter() - started)


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
