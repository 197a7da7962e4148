"""LLG: how many labels of a batch its gradient gives away

wainakh2021, section 6.2: Figures 2 and 6.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt

from gradleak import data, studies
from gradleak.images import LBFGS, match
from gradleak.leak import observe
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import (
    ATTACKS,
    BALANCES,
    GUESS,
    SIZES,
    Tally,
    attack,
    draw_success,
    drawn,
    load,
    others,
)

PLACE = "Section 6.2, Figures 2 and 6"
SMALLEST: dict[str, Any] = {
    "repeats": 2,
    "sizes": [1, 8],
    "balances": ["unbalanced"],
    "datasets": ["digits"],
    "dlg_repeats": 1,
    "dlg_sizes": [1],
    "dlg_steps": 1,
}
DLG = "DLG"
GRADIENTS = "gradients"
SHOWN = (*ATTACKS, DLG)
# Stand-ins have as many classes as the dataset that they stand for: CIFAR-100, and CelebA as the paper takes it.
CLASSES = {"tinyimagenet32": 100, "flowers17": 5}
# As many pixels as CelebA's 178 × 218. Of the 80 images of a flower so many are private, the others auxiliary.
SIDE, PRIVATE = 197, 64


class Parameters(studies.Parameters):
    """What a rerun may change."""

    repeats: int = Field(6, ge=1, le=10_000, description="networks a dataset, each with a batch of every size")
    sizes: list[PositiveInt] = Field(SIZES, description="samples in a batch")
    balances: list[str] = Field(list(BALANCES), description="how batches are drawn: unbalanced, balanced")
    datasets: list[str] = Field(["digits", "photos"], description="private images, training split")
    auxiliary: int = Field(10, ge=1, le=1000, description="samples of a class that LLG+ has, test split")
    dlg_repeats: int = Field(1, ge=0, le=1000, description="batches a size on which DLG is run")
    dlg_sizes: list[PositiveInt] = Field([1, 2], description="samples in a batch that DLG is run on")
    dlg_steps: int = Field(3, ge=1, le=10_000, description="DLG's L-BFGS steps, 20 gradients each")

    paper: ClassVar[dict[str, Any]] = {
        "repeats": 100,
        "datasets": ["mnist", "cifar10", "tinyimagenet32", "flowers17"],
        "dlg_repeats": 5,
        "dlg_sizes": [1, 2, 4, 8, 16],
        "dlg_steps": 100,
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("llg-cnn", dataset) for dataset in self.datasets]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return parameters.datasets


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a dataset and way to draw, one a batch size for DLG, one for the times."""
    common = {"seed": parameters.seed, "device": studies.resolve_device(parameters.device)}
    counted = [
        {"part": "count", "dataset": dataset, "balance": balance, "repeats": parameters.repeats}
        | {"sizes": parameters.sizes, "auxiliary": parameters.auxiliary}
        | ({"classes": CLASSES[dataset]} if dataset in CLASSES else {})
        | common
        for dataset in parameters.datasets
        for balance in parameters.balances
    ]
    dlg = [
        {"part": "dlg", "dataset": dataset, "balance": "unbalanced", "size": size}
        | {"repeats": parameters.dlg_repeats, "steps": parameters.dlg_steps}
        | common
        for dataset in parameters.datasets[:1]
        for size in parameters.dlg_sizes
        if parameters.dlg_repeats
    ]
    timed = [
        {"part": "gradients", "dataset": dataset, "balance": "unbalanced", "repeats": parameters.repeats}
        | {"sizes": parameters.sizes}
        | common
        for dataset in parameters.datasets[:1]
    ]
    return counted + dlg + timed


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Count the labels of many batches by every attack, or of a few by DLG, or time the gradients themselves."""
    parts: dict[str, Callable[..., list[dict[str, Any]]]] = {"count": _count, "dlg": _dlg, "gradients": _gradients}
    return parts[part](**inputs)


def images(name: str, split: Literal["train", "test"], classes: int | None = None) -> data.Dataset:
    """Return a dataset, or the first so many `classes` of a stand-in; no image is in both splits."""
    if classes is None:
        return load(name, split)
    whole = data.load(name, split, size=SIDE if name == "flowers17" else None)
    own = [(whole.labels == label).nonzero()[:, 0] for label in range(classes)]
    if name == "flowers17":
        # The two splits of this one are the same images.
        own = [one[:PRIVATE] if split == "train" else one[PRIVATE:] for one in own]
    kept = torch.cat(own)
    named = whole.class_names[:classes]
    return replace(whole, images=whole.images[kept], labels=whole.labels[kept], class_names=named)


def _count(
    dataset: str,
    balance: str,
    repeats: int,
    sizes: list[int],
    auxiliary: int,
    seed: int,
    device: str,
    classes: int | None = None,
) -> list[dict[str, Any]]:
    private, public = images(dataset, "train", classes), images(dataset, "test", classes)
    generator = torch.Generator().manual_seed(seed)
    tally = Tally()
    for number in range(repeats):
        model = built("llg-cnn", private, seed + number, device)
        given = others(public, auxiliary, generator)
        attack(tally, model, private, given, sizes=sizes, balance=balance, generator=generator)
    return tally.rows()


def _dlg(
    dataset: str, balance: str, size: int, repeats: int, steps: int, seed: int, device: str
) -> list[dict[str, Any]]:
    private = load(dataset, "train")
    generator = torch.Generator().manual_seed(seed + size)
    tally = Tally()
    for number in range(repeats):
        model = built("llg-cnn", private, seed + number, device)
        chosen = drawn(private.labels, size, balance, generator)
        leak = observe(model, private.images[chosen].to(device), private.labels[chosen].to(device))
        started = time.perf_counter()
        found = match(leak, "dlg", optimizer=LBFGS(steps=steps, search=False), seed=seed + number)
        counts = torch.bincount(found.labels.argmax(dim=1), minlength=private.classes).unsqueeze(0)
        truth = torch.bincount(private.labels[chosen], minlength=private.classes).unsqueeze(0)
        tally.add(DLG, size, counts, truth, time.perf_counter() - started)
    return tally.rows()


def _gradients(
    dataset: str, balance: str, repeats: int, sizes: list[int], seed: int, device: str
) -> list[dict[str, Any]]:
    private = load(dataset, "train")
    generator = torch.Generator().manual_seed(seed)
    seconds = dict.fromkeys(sizes, 0.0)
    for number in range(repeats):
        model = built("llg-cnn", private, seed + number, device)
        for size in sizes:
            chosen = drawn(private.labels, size, balance, generator)
            inputs, labels = private.images[chosen].to(device), private.labels[chosen].to(device)
            started = time.perf_counter()
            observe(model, inputs, labels)
            seconds[size] += time.perf_counter() - started
    return [{"attack": GRADIENTS, "size": size, "seconds": seconds[size], "count": repeats} for size in sizes]


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    shown = ", ".join(data.title(name) for name in parameters.datasets)
    return f"{parameters.repeats} networks a dataset; {shown}"


def table(record: Record) -> pd.DataFrame:
    """Return every attack's mean and least success over the batch sizes, a line a dataset and way to draw."""
    lines = []
    frame = record.frame()
    frame = frame[frame["part"] != "gradients"]
    for (dataset, balance), group in frame.groupby(["dataset", "balance"], sort=False):
        line = {"dataset": data.title(str(dataset)), "batches": str(balance)}
        for name in SHOWN:
            success = group[group["attack"] == name]["success"]
            line[name] = f"{success.mean():.1f} / {success.min():.1f}" if len(success) else "–"
        lines.append(line)
    return pd.DataFrame(lines)


def time_table(record: Record) -> pd.DataFrame:
    """Return the time that an attack takes for a batch, and the gradients themselves; a column a dataset."""
    frame = record.frame()
    sums = frame.groupby(["attack", "dataset"], sort=False)[["seconds", "count"]].sum()
    times = (1000 * sums["seconds"] / sums["count"]).unstack()
    return pd.DataFrame(
        [
            {"attack": name}
            | {f"{data.title(str(dataset))}, ms": f"{value:.2g}" for dataset, value in times.loc[name].dropna().items()}
            for name in (*SHOWN, GRADIENTS)
            if name in times.index
        ]
    ).fillna("–")


def figure_success(record: Record) -> Figure:
    """Draw success against the batch size, unbalanced batches: Figure 2."""
    return _success(record, "unbalanced")


def figure_balanced(record: Record) -> Figure:
    """Draw success against the batch size, balanced batches: Figure 6."""
    return _success(record, "balanced")


def _success(record: Record, balance: str) -> Figure:
    frame = record.frame()
    frame = frame[frame["balance"] == balance]
    if frame.empty:
        return figures.nothing(f"This run has no {balance} batches.")
    names = list(dict.fromkeys(frame["dataset"]))
    # All attacks are near the top: the scale begins below the least of them. The guess is seen where it gets there.
    bottom = 10 * math.floor(frame[frame["attack"] != GUESS]["success"].min() / 10)
    figure, axes = figures.grid(len(names), 2, height=2.6, sharey=True)
    for axis, name in zip(axes, names, strict=False):
        own = frame[frame["dataset"] == name]
        draw_success(axis, own, SHOWN)
        axis.set_title(data.title(name))
        best = own[own["attack"] == GUESS]["success"].max()
        axis.text(0.02, 0.05, f"a guess finds {best:.0f} % at most", transform=axis.transAxes, color="0.35", fontsize=9)
        axis.set_ylim(bottom - 5, 101)
    for axis in axes[::2]:
        axis.set_ylabel("labels found, %")
    figures.legend_below(figure, 4)
    return figure
