"""Which classes occur in a batch: RLG as its code runs it, features of any sign

dang2021, section 2.5.1: Tables 1 and 4 once more, on a trained network whose features are shifted.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from scipy.optimize import linprog
from torch import Tensor

from gradleak import data, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.defenses import named
from gradleak.errors import InputError
from gradleak.labels import reveal_labels
from gradleak.studies.dang2021.reveal_labels import Behind, scores
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.last_layers import TRAINED, Row, Seen, seen

PLACE = "Section 2.5.1, Tables 1 and 4"
SMALLEST: dict[str, Any] = {"row": "photos/lenet5/relu/50", "sizes": [4], "batches": 2, "defenses": ["none/0"]}
FEATURES = ("plain", "shifted")
Array = NDArray[np.float64]
# The points that a class is to be parted from, and by how much they may lie on its side where it lies at −1.
LARGEST, LOOSE = 199, 1e-2


class Parameters(studies.Parameters):
    """What a rerun may change."""

    row: Row = Field(
        "photos/lenet5/relu/60",
        validate_default=True,
        description="dataset/network/activation/classes; no activation where the network has its own",
    )
    sizes: list[PositiveInt] = Field([5, 10], description="samples in a batch")
    batches: int = Field(2, ge=1, le=10_000, description="batches a size")
    defenses: list[Behind] = Field(
        ["sign/0", "grad-drop/0.5", "grad-drop/0.9"],
        validate_default=True,
        description="defence/level, on the smallest batches",
    )

    paper: ClassVar[dict[str, Any]] = {
        "row": f"imagenet-sample/{TRAINED}//1000",
        "sizes": [10, 50, 100],
        "batches": 10,
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [self.row.sees]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.row.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: features, a batch size, a defence."""
    common = dict(parameters.row) | {"batches": parameters.batches, "seed": parameters.seed}
    common["device"] = studies.resolve_device(parameters.device)
    clean = [
        {"part": "table 1", "features": features, "size": size, "defense": "none", "level": 0.0} | common
        for features in FEATURES
        for size in parameters.sizes
    ]
    defended = [
        {"part": "table 4", "features": "shifted", "size": parameters.sizes[0]} | dict(one) | common
        for one in parameters.defenses
    ]
    return clean + defended


def trial(
    *,
    part: str,
    features: str,
    size: int,
    defense: str,
    level: float,
    dataset: str,
    network: str,
    activation: str,
    classes: int,
    batches: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Reveal the classes of many batches by every attack; a row a batch and attack."""
    del part
    run = seen(dataset, network, activation, classes, seed, device)
    if features == "shifted":
        run = shifted(run)
    generator = torch.Generator().manual_seed(seed)
    defend = named(f"{Behind.words[defense]}/{level}")
    rows = []
    for number in range(batches):
        chosen = torch.randperm(len(run.features), generator=generator)[:size].to(device)
        own = run.labels_of(chosen, generator)
        gradient = defend({"weight": run.gradient(chosen, own)})["weight"]
        truth = set(own.tolist())
        for attack, found, rank, seconds in _attacked(gradient, size, clean=defense == "none"):
            about = {"batch": number, "attack": attack, "found": len(found), "labels": len(truth), "rank": rank}
            rows.append(about | scores(found, truth) | {"seconds": seconds})
    return rows


def shifted(run: Seen) -> Seen:
    """Return the same network with its features' mean moved into the bias: f − μ and b + Wμ, which have any sign."""
    return Seen(run.features - run.features.mean(dim=0), run.predicted, run.labels)


def _attacked(gradient: Tensor, size: int, *, clean: bool) -> list[tuple[str, set[int], int | None, float]]:
    """Return what each attack reveals, the rank it takes, and the seconds it took."""
    times = [time.perf_counter()]
    minimum = set((gradient.amin(dim=1) < 0).nonzero()[:, 0].tolist())
    times.append(time.perf_counter())
    try:
        ours = reveal_labels(gradient, rank=None if clean else size)
    except InputError:
        ours = set()
    times.append(time.perf_counter())
    points = gradient.cpu().to(torch.float32).numpy()
    rank = int(np.linalg.matrix_rank(points))
    by_rank = as_coded(points, rank)
    times.append(time.perf_counter())
    by_size = by_rank if rank == size else as_coded(points, size)
    times.append(time.perf_counter())
    found = {
        "minimum rule": (minimum, None),
        "RLG": (ours, None),
        "RLG as coded, numpy's rank": (by_rank, rank),
        "RLG as coded, size told": (by_size, size),
    }
    return [(name, *one, times[n + 1] - times[n]) for n, (name, one) in enumerate(found.items())]


def as_coded(gradient: NDArray[np.float32], rank: int) -> set[int]:
    """Return the classes that RLG's code accepts in a gradient (C, I), by its `rank` leading singular vectors.

    A class is accepted if a plane at which it lies at −1 leaves none of the 199 largest points further behind than
    0.01. The code's screening before that accepts every class.
    """
    q: Array = np.linalg.svd(gradient, full_matrices=False)[0][:, :rank].astype(np.float64)
    sizes = np.linalg.norm(q, axis=1)
    largest = np.argsort(-sizes, kind="stable")[:LARGEST]
    return {row for row in range(len(q)) if sizes[row] > 0 and _accepted(q[largest[largest != row]], q[row])}


def _accepted(others: Array, point: Array) -> bool:
    """Whether a plane has a point at −1 and no other further behind than is allowed."""
    # What is outside of their span is parted by a plane that holds all of them.
    beside = point - others.T @ np.linalg.lstsq(others.T, point, rcond=None)[0]
    if np.linalg.norm(beside) > 1e-6 * np.linalg.norm(point):
        return True
    # By duality: the least weights with which the others add up to the point are more than 1 / 0.01 in all.
    answer = linprog(np.ones(len(others)), A_eq=others.T, b_eq=point, bounds=(0, None), method="highs-ds")
    return bool(answer.status == 2 or (answer.status == 0 and answer.fun > 1 / LOOSE))


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return f"{parameters.batches} batches of a size, {parameters.row.network}, {data.title(parameters.row.dataset)}"


def _line(group: pd.DataFrame) -> dict[str, Any]:
    return {
        "precision": f"{group['precision'].mean():.3f}",
        "recall": f"{group['recall'].mean():.3f}",
        "F1": f"{group['f1'].mean():.3f}",
        "exact": f"{100 * group['exact'].mean():.0f} %",
        "classes found": f"{group['found'].mean():.1f}",
        "rank": "–" if group["rank"].isna().all() else f"{group['rank'].astype(float).mean():.0f}",
        "s": f"{group['seconds'].median():.2g}",
    }


def table(record: Record) -> pd.DataFrame:
    """Return Table 1: precision, recall, F1 and exact matches, a line a kind of features, size and attack."""
    keys = ["features", "size", "attack"]
    return pd.DataFrame(
        [
            {"features": str(features), "N": f"{size:.0f}", "attack": attack} | _line(group)
            for (features, size, attack), group in record.part("table 1").groupby(keys, sort=False)
        ]
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return Table 4: the attacks behind defences, features shifted."""
    keys = ["defense", "level", "attack"]
    return pd.DataFrame(
        [
            {"defence": f"{name} {level:.0%}" if level else str(name), "attack": attack} | _line(group)
            for (name, level, attack), group in record.part("table 4").groupby(keys, sort=False)
        ]
    )


def figure_as_coded(record: Record) -> Figure:
    """Draw precision, recall and exact matches against the batch size, a row of panels a kind of features."""
    frame = record.part("table 1").astype({"exact": float})
    columns = {"precision": "precision", "recall": "recall", "exact": "exact match"}
    groups = list(frame.groupby("features", sort=False))
    figure, axes = figures.panels(len(groups), len(columns), height=2.1, sharex=True, sharey=True)
    for row, (features, group) in zip(axes, groups, strict=True):
        for axis, column in zip(row, columns, strict=True):
            sns.barplot(group, x="size", y=column, hue="attack", errorbar=None, width=0.8, ax=axis)
            axis.get_legend().remove()
            axis.set(xlabel="", ylabel="", ylim=(0, 1.03))
            axis.grid(visible=False, axis="x")
        row[0].set_ylabel(f"{features} features")
    for axis, title in zip(axes[0], columns.values(), strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("samples in a batch")
    figures.legend_below(figure, 2)
    return figure
