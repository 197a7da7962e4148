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
from gradleak.errors import InputError
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import Defense, observe, observe_heads
from gradleak.show import drawn as show
from gradleak.show import figures
from gradleak.show.aggregate import select

Balance = Literal["unbalanced", "balanced"]
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


def batch_of(labels: Tensor, size: int, balance: Balance, generator: torch.Generator) -> Tensor:
    """Return the indices (B,) of a batch as wainakh2021 draws it.

    A balanced batch is drawn from all samples alike. In an unbalanced one half of the samples are of one class and a
    quarter of another.
    """
    if balance == "balanced":
        return torch.randperm(len(labels), generator=generator)[:size]
    return augment.unbalanced(labels, size, generator=generator)


def others(dataset: data.Dataset, each: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the inputs and classes of auxiliary samples, `each` of every class."""
    chosen = augment.samples_of(dataset.labels, torch.arange(dataset.classes).repeat_interleave(each), generator)
    return dataset.images[chosen], dataset.labels[chosen]


class Tally:
    """The results of attacks: the shares of labels and classes found (%), and the time (s), of every batch."""

    def __init__(self, private: data.Dataset, generator: torch.Generator) -> None:
        """Take the private samples, from which batches are drawn, and the source of randomness."""
        self.private, self.generator = private, generator
        self.found: list[dict[str, Any]] = []

    def add(self, attack: str, counts: Tensor, truth: Tensor, seconds: float) -> None:
        """Add an attack's counts (1, C) of one batch; zeros if the attack refused."""
        measures = {"success": metrics.count_overlap, "classes": metrics.class_jaccard}
        shares = {name: 100 * float(measure(counts.cpu(), truth)[0]) for name, measure in measures.items()}
        self.found.append({"attack": attack, "size": int(truth.sum()), **shares, "seconds": seconds})

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each attack and batch size: its mean success (%), and how far it exceeds any guess."""
        groups: Any = pd.DataFrame(self.found).groupby(["attack", "size"], sort=False)
        means = groups.agg(
            success=("success", "mean"), spread=("success", "std"), count=("success", "size"),
            classes=("classes", "mean"), seconds=("seconds", "sum"),
        )  # fmt: skip
        rows = means.fillna({"spread": 0.0}).reset_index()
        if (guesses := select(rows, attack=GUESS).set_index("size")["success"]).size:
            rows["over_guess"] = rows["success"] - rows["size"].map(guesses)
        return rows.to_dict("records")

    def attack(
        self,
        model: nn.Module,
        auxiliary: tuple[Tensor, Tensor],
        sizes: Sequence[int],
        attacks: Sequence[str] = ATTACKS,
        *,
        balance: Balance = "unbalanced",
        defense: Defense | None = None,
        chunk: int = 250,
    ) -> None:
        """Count the labels of one batch of every size by every attack, and add the results.

        Args:
            model: The client's network.
            auxiliary: The attacker's inputs and their classes.
            sizes: The batch sizes.
            attacks: The names of the attacks.
            balance: How batches are drawn.
            defense: The client's defence.
            chunk: The number of auxiliary samples in each forward pass.
        """
        private, device = self.private, next(model.parameters()).device
        given = auxiliary[0].to(device), auxiliary[1].to(device)
        seed = int(torch.randint(2**31, (1,), generator=self.generator))
        # A `Knowledge` caches its forward passes, so attacks with the same made-up inputs share them.
        methods = {name: VARIANTS.get(name, (name.lower(), "random")) for name in attacks}
        options: dict[str, Any] = {"defense": defense, "seed": seed, "chunk": chunk}
        known = {
            dummy: Knowledge(model, given, tuple(private.images.shape[1:]), dummy=dummy, **options)
            for dummy in {dummy for _, dummy in methods.values()}
        }
        for size in sizes:
            chosen = batch_of(private.labels, size, balance, self.generator)
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
                self.add(name, counts, truth, time.perf_counter() - started)


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
