"""Label attacks on many batches of many networks, and the share of labels that each attack finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import augment, data, metrics
from gradleak.defenses import Each
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import Defense, observe, observe_heads
from gradleak.show import drawn as show
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.studies.shared.attempts import timed, unless_refused

# What an attack found in one batch, or on average: shares of labels and classes (%), and the time (s).
Found = dict[str, Any]
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
# The quantile of the normal distribution for one-sided 95 % bounds.
QUANTILE = 1.645
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


class Batches:
    """Batches of a dataset that are drawn for attacks.

    Attributes:
        private: The samples from which batches are drawn.
        public: The samples from which an attacker's auxiliary samples are drawn.
        generator: The source of randomness.
    """

    def __init__(self, private: data.Dataset, public: data.Dataset, seed: int) -> None:
        self.private, self.public = private, public
        self.generator = torch.Generator().manual_seed(seed)

    @classmethod
    def of(cls, name: str, seed: int) -> Self:
        """Return batches of a dataset's training split, with auxiliary samples of the test split."""
        return cls(load(name, "train"), load(name, "test"), seed)

    def others(self, each: int) -> tuple[Tensor, Tensor]:
        """Draw the inputs and classes of auxiliary samples, `each` of every class."""
        return others(self.public, each, self.generator)

    def batch(self, size: int, balance: Balance, device: str | torch.device) -> tuple[Tensor, Tensor]:
        """Draw the images and labels of a private batch."""
        chosen = batch_of(self.private.labels, size, balance, self.generator)
        return self.private.images[chosen].to(device), self.private.labels[chosen].to(device)

    def attacked(
        self,
        model: nn.Module,
        auxiliary: tuple[Tensor, Tensor],
        sizes: Sequence[int],
        attacks: Sequence[str] = ATTACKS,
        *,
        balance: Balance = "unbalanced",
        defense: Defense | None = None,
        chunk: int = 250,
    ) -> list[Found]:
        """Count the labels of one batch of every size by every attack.

        Args:
            model: The client's network.
            auxiliary: The attacker's inputs and their classes.
            sizes: The batch sizes.
            attacks: The names of the attacks.
            balance: How batches are drawn.
            defense: The client's defence.
            chunk: The number of auxiliary samples in each forward pass.
        """
        device = next(model.parameters()).device
        given = auxiliary[0].to(device), auxiliary[1].to(device)
        seed = int(torch.randint(2**31, (1,), generator=self.generator))
        # A `Knowledge` caches its forward passes, so attacks with the same made-up inputs share them.
        methods = {name: VARIANTS.get(name, (name.lower(), "random")) for name in attacks}
        options: dict[str, Any] = {"defense": defense, "seed": seed, "chunk": chunk}
        known = {
            dummy: Knowledge(model, given, tuple(self.private.images.shape[1:]), dummy=dummy, **options)
            for dummy in {dummy for _, dummy in methods.values()}
        }
        results: list[Found] = []
        for size in sizes:
            inputs, labels = self.batch(size, balance, device)
            if defense is None or isinstance(defense, Each):
                heads = observe_heads(model, inputs, labels, batch_size=size)
                heads = heads if defense is None else heads.defended(defense)
            else:
                heads = observe(model, inputs, labels, defense=defense).heads
            truth = torch.bincount(labels, minlength=self.private.classes).unsqueeze(0).cpu()
            for name, (method, dummy) in methods.items():
                attack = partial(count_heads, heads, method, known[dummy], whatever_holds=True)
                counts, seconds = timed(unless_refused, attack, torch.zeros_like(truth), clock=perf_counter)
                results.append(found(name, counts, truth, seconds))
        return results


def found(attack: str, counts: Tensor, truth: Tensor, seconds: float) -> Found:
    """Return the shares of labels and classes (%) that an attack's counts (1, C) find; they are 0 if it refused."""
    measures = {"success": metrics.count_overlap, "classes": metrics.class_jaccard}
    shares = {name: 100 * float(measure(counts.cpu(), truth)[0]) for name, measure in measures.items()}
    return {"attack": attack, "size": int(truth.sum()), **shares, "seconds": seconds}


def averaged(results: Iterable[Found]) -> list[Found]:
    """Return a row for each attack and batch size: its mean success (%), and how far it exceeds the guess.

    `over_guess_least` and `over_guess_most` are one-sided 95 % bounds of the mean difference to the guess on the same
    batches. The guess itself has none.
    """
    frame = pd.DataFrame(results)
    frame["batch"] = frame.groupby(["attack", "size"]).cumcount()
    guesses = select(frame, attack=GUESS).set_index(["size", "batch"])["success"]
    frame["over_guess"] = frame["success"] - guesses.reindex([*zip(frame["size"], frame["batch"], strict=True)]).values
    groups: Any = frame.groupby(["attack", "size"], sort=False)
    means: Any = groups.agg(
        success=("success", "mean"), spread=("success", "std"), count=("success", "size"),
        classes=("classes", "mean"), seconds=("seconds", "sum"), over_guess=("over_guess", "mean"),
        deviation=("over_guess", "std"),
    )  # fmt: skip
    rows = means.fillna({"spread": 0.0}).reset_index()
    reach = QUANTILE * rows.pop("deviation") / rows["count"] ** 0.5
    bounds = {"over_guess_least": rows["over_guess"] - reach, "over_guess_most": rows["over_guess"] + reach}
    rows = rows.assign(**{name: bound.mask(rows["attack"] == GUESS) for name, bound in bounds.items()})
    return [{str(name): one for name, one in row.items() if pd.notna(one)} for row in rows.to_dict("records")]


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
