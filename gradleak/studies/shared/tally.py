"""Label attacks on many batches of many networks, and how often each is right."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from gradleak import augment, data, metrics
from gradleak.defenses import Each
from gradleak.errors import InputError, unknown
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import Defense, observe, observe_heads
from gradleak.show import figures

BALANCES = ("unbalanced", "balanced")
SIZES = [1, 2, 4, 8, 16, 32, 64, 128]
# Every attack by the name that figures give it: its method, and what it is told.
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "LLG": ("llg", {}),
    "LLG*": ("llg*", {"dummy": "random"}),
    "LLG*, zeros": ("llg*", {"dummy": "zeros"}),
    "LLG*, ones": ("llg*", {"dummy": "ones"}),
    "LLG+": ("llg+", {}),
    "guess": ("guess", {}),
}
GUESS = "guess"
# As wainakh2021's code guesses: each label by itself.
DRAWN = "guess, drawn"
# An attack's colour and dashes, the same on every page; who knows nothing is grey.
LOOKS: dict[str, tuple[str, Any]] = {
    name: (figures.COLOURS[colour], figures.DASHES[dash])
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
    )
} | {GUESS: ("0.55", figures.DASHES[2]), DRAWN: ("0.7", figures.DASHES[1])}
# Datasets whose images are made smaller, so that a hundred networks of them are run in minutes.
SMALLER = {"flowers17": 64}


def load(name: str, split: Literal["train", "test"]) -> data.Dataset:
    """Return a dataset, in a size that label attacks on a hundred networks can bear."""
    return data.load(name, split, size=SMALLER.get(name))


def drawn(labels: Tensor, size: int, balance: str, generator: torch.Generator) -> Tensor:
    """Return the indices (B,) of a batch as wainakh2021 draws it: of all samples alike, or half of one class."""
    if balance == "unbalanced":
        return augment.unbalanced(labels, size, generator=generator)
    if balance == "balanced":
        return torch.randperm(len(labels), generator=generator)[:size]
    raise unknown("way to draw a batch", balance, BALANCES)


def others(dataset: data.Dataset, each: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return auxiliary inputs and classes, so many of each class."""
    chosen = augment.samples_of(dataset.labels, torch.arange(dataset.classes).repeat_interleave(each), generator)
    return dataset.images[chosen], dataset.labels[chosen]


@dataclass
class Tally:
    """What attacks found, by their name and the batch size: shares of labels that are right, and seconds."""

    found: dict[tuple[str, int], list[tuple[float, float, float]]] = field(default_factory=dict)

    def add(self, attack: str, size: int, counts: Tensor, truth: Tensor, seconds: float) -> None:
        """Add one attack's counts (1, C); none at all where it refuses."""
        share = float(metrics.count_overlap(counts.cpu(), truth)[0])
        classes = float(metrics.class_jaccard(counts.cpu(), truth)[0])
        self.found.setdefault((attack, size), []).append((share, classes, seconds))

    def rows(self, **about: Any) -> list[dict[str, Any]]:
        """Return a row an attack and size, in percent, with what it has over the guess on the same batches."""
        rows = []
        for (attack, size), results in self.found.items():
            shares, classes, seconds = torch.tensor(results, dtype=torch.float64).unbind(dim=1)
            shares = 100 * shares
            row = {"attack": attack, "size": size, "success": float(shares.mean()), "count": len(shares)}
            row["spread"] = float(shares.std()) if len(shares) > 1 else 0.0
            row |= {"classes": 100 * float(classes.mean()), "seconds": float(seconds.sum())}
            if (GUESS, size) in self.found:
                guessed = 100 * torch.tensor([result[0] for result in self.found[GUESS, size]], dtype=torch.float64)
                row["over_guess"] = float(shares.mean() - guessed.mean())
            rows.append(about | row)
        return rows


def attack(
    tally: Tally,
    model: nn.Module,
    private: data.Dataset,
    auxiliary: tuple[Tensor, Tensor],
    *,
    sizes: Sequence[int],
    balance: str,
    generator: torch.Generator,
    attacks: Mapping[str, tuple[str, dict[str, Any]]] = ATTACKS,
    defense: Defense | None = None,
    chunk: int = 250,
) -> None:
    """Draw a batch of every size, let its client send its gradient, and count its labels by every attack.

    Attackers run `chunk` of their samples at a time.
    """
    device = next(model.parameters()).device
    shape = tuple(private.images.shape[1:])
    given = auxiliary[0].to(device), auxiliary[1].to(device)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    known = Knowledge(model, given, shape, defense=defense, seed=seed, chunk=chunk)
    told = {name: replace(known, **options) if options else known for name, (_, options) in attacks.items()}
    for size in sizes:
        chosen = drawn(private.labels, size, balance, generator)
        inputs, labels = private.images[chosen].to(device), private.labels[chosen].to(device)
        if defense is None or isinstance(defense, Each):
            heads = observe_heads(model, inputs, labels, batch_size=size)
            heads = heads if defense is None else heads.defended(defense)
        else:
            heads = observe(model, inputs, labels, defense=defense).heads
        truth = torch.bincount(private.labels[chosen], minlength=private.classes).unsqueeze(0)
        for name, (method, _) in attacks.items():
            started = time.perf_counter()
            try:
                counts = count_heads(heads, method, told[name], whatever_holds=True)
            except InputError:
                counts = torch.zeros_like(truth)
            tally.add(name, size, counts, truth, time.perf_counter() - started)


def success_cells(group: pd.DataFrame) -> dict[str, str]:
    """Return what a table says of an attack over all batch sizes."""
    worst = group.sort_values("success").iloc[0]
    return {
        "n a size": f"{group['count'].iloc[0]:.0f}",
        "mean, %": f"{group['success'].mean():.1f}",
        "least, %": f"{worst['success']:.1f} ± {worst['spread']:.1f}",
        "at B": f"{worst['size']:.0f}",
    }


def draw_line(axis: Axes, own: pd.DataFrame, label: str, colour: str, dash: Any) -> None:
    """Draw the share of right labels against the batch size, a line with the standard error of its means."""
    own = own.sort_values("size")
    middle, spread = own["success"].astype(float), own["spread"].astype(float)
    error = spread / own["count"].astype(float) ** 0.5
    axis.plot(own["size"], middle, color=colour, linestyle=dash, marker="o", markersize=3.5, label=label)
    axis.fill_between(own["size"], middle - error, middle + error, color=colour, alpha=0.15, linewidth=0)


def scale_sizes(axis: Axes, sizes: Iterable[int]) -> None:
    """Lay batch sizes out along the horizontal axis, each doubling as far as the last."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(set(sizes)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_xlabel("batch size")


def draw_success(axis: Axes, frame: pd.DataFrame, attacks: Sequence[str]) -> None:
    """Draw the share of right labels against the batch size, a line an attack."""
    for name in attacks:
        own = frame[frame["attack"] == name]
        if len(own):
            draw_line(axis, own, name, *LOOKS[name])
    scale_sizes(axis, frame["size"])
    axis.set_ylim(0, 105)
