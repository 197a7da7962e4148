"""Which classes occur in a batch: planes between the rows of a gradient

dang2021, sections 2.5.1 and 3: Table 1, and the image half of Table 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, studies
from gradleak.defenses import named
from gradleak.errors import InputError
from gradleak.labels import reveal_labels
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded_on_images
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.defended import Defended
from gradleak.studies.shared.last_layers import TRAINED, Row, Seen, seen

PLACE = "Sections 2.5.1 and 3, Tables 1 and 4"
SMALLEST: dict[str, Any] = {"rows": ["photos/lenet5/tanh/50"], "sizes": [4], "batches": 2, "coded": 1} | {
    "defenses": ["none/0"]
}
NETWORK = ["network", "activation", "features"]
# As dang2021's code runs it: told the batch size for the rank, or by numpy's rank, where that is another.
CODED, BY_NUMPY = "RLG as coded", "RLG as coded, rank by numpy"


class Behind(Defended):
    """A defence of the paper."""

    words: ClassVar = {name: name for name in ("none", "sign", "grad-drop")}


class Shown(Row):
    """A network and its features: as they are, or centred, their mean moved into the bias, so that signs vary."""

    features: Literal["plain", "centred"] = "plain"


class Parameters(studies.Parameters):
    """What a rerun may change."""

    rows: list[Shown] = Field(
        ["photos/lenet5/relu/100", "photos/lenet5/relu/100/centred"],
        validate_default=True,
        description="dataset/network/activation/classes, no activation where the network has its own; then plain or"
        " centred features",
    )
    sizes: list[int] = Field([10, 20], description="samples in a batch")
    batches: int = Field(3, ge=1, le=10_000, description="batches a network and size")
    coded: int = Field(1, ge=0, le=10_000, description="how many of them RLG as coded is run on")
    defenses: list[Behind] = Field(
        ["none/0", "sign/0", "grad-drop/0.5", "grad-drop/0.9"],
        validate_default=True,
        description="defence/level, on the last row's smallest batches",
    )

    paper: ClassVar[dict[str, Any]] = {
        "rows": [f"imagenet-sample/{TRAINED}//1000", f"imagenet-sample/{TRAINED}//1000/centred"],
        "sizes": [10, 50, 100],
        "batches": 100,
        "coded": 10,
    }

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they are shown."""
        return [row.sees for row in self.rows]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys(row.dataset for row in parameters.rows))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network and size, then one a defence."""
    common = parameters.model_dump(include={"batches", "coded", "seed"})
    common |= {"device": studies.resolve_device(parameters.device)}
    clean = [
        {"part": "table 1"} | dict(row) | common | {"size": size, "defense": "none", "level": 0.0}
        for row in parameters.rows
        for size in parameters.sizes
    ]
    last = clean[-1] | {"part": "table 4", "size": parameters.sizes[0]}
    return clean + [last | dict(one) for one in parameters.defenses]


def trial(
    *,
    part: str,
    dataset: str,
    network: str,
    activation: str,
    classes: int,
    features: str,
    size: int,
    batches: int,
    coded: int,
    defense: str,
    level: float,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Reveal the classes of many batches; a row a batch and attack."""
    del part
    run = seen(dataset, network, activation, classes, seed, device)
    run = centred(run) if features == "centred" else run
    generator = torch.Generator().manual_seed(seed)
    defend = named(f"{Behind.words[defense]}/{level}")
    rows = []
    for number in range(batches):
        chosen = torch.randperm(len(run.features), generator=generator)[:size].to(device)
        own = run.labels_of(chosen, generator)
        gradient = defend({"weight": run.gradient(chosen, own)})["weight"]
        truth = set(own.tolist())
        # A changed gradient has full rank; the attacker is told the batch size, as in the paper's code.
        attacks = _attacks(gradient, size, clean=defense == "none", coded=number < coded)
        for attack, reveal in attacks.items():
            started = time.perf_counter()
            found = reveal()
            seconds = time.perf_counter() - started
            rows.append(
                {"batch": number, "attack": attack, "found": len(found), "labels": len(truth)}
                | scores(found, truth)
                | {"seconds": seconds}
            )
    return rows


def centred(run: Seen) -> Seen:
    """Return the same network with its features' mean moved into its bias: f − μ and b + Wμ predict the same."""
    return replace(run, features=run.features - run.features.mean(dim=0))


def _attacks(gradient: Tensor, size: int, *, clean: bool, coded: bool) -> dict[str, Callable[[], set[int]]]:
    """Return what reveals the classes of a batch, by name."""
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
        # Of full rank: there is no telling, and a guess is not made.
        return set()


def scores(found: set[int], truth: set[int]) -> dict[str, Any]:
    """Return precision, recall and F1 of a set of classes, and whether it is exactly the true one."""
    both = len(found & truth)
    precision, recall = both / len(found) if found else 0.0, both / len(truth)
    harmonic = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"precision": precision, "recall": recall, "f1": harmonic, "exact": found == truth}


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    images = ", ".join(data.title(name) for name in datasets(parameters))
    return f"{len(parameters.rows)} networks, {parameters.batches} batches of a size, {images}"


def _line(group: pd.DataFrame) -> dict[str, Any]:
    return {
        "precision": f"{group['precision'].mean():.3f}",
        "recall": f"{group['recall'].mean():.3f}",
        "F1": f"{group['f1'].mean():.3f}",
        "exact": f"{100 * group['exact'].mean():.0f} %",
        "classes found": f"{group['found'].mean():.1f}",
        "n": f"{len(group)}",
        "ms": f"{1000 * group['seconds'].median():.2g}",
    }


def table(record: Record) -> pd.DataFrame:
    """Return Table 1: precision, recall, F1 and exact matches, a line a network, size and attack."""
    keys = [*NETWORK, "size", "attack"]
    return pd.DataFrame(
        [
            {"network": _title(network), "N": f"{size:.0f}", "attack": attack} | _line(group)
            for (*network, size, attack), group in record.part("table 1").groupby(keys, sort=False)
        ]
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return the image half of Table 4: RLG and RLG as coded behind defences."""
    frame = record.part("table 4")
    frame = frame[frame["attack"] != "minimum rule"]
    keys = ["defense", "level", "attack"]
    return pd.DataFrame(
        [
            {"defence": f"{name} {level:.0%}" if name == "grad-drop" else name, "attack": attack} | _line(group)
            for (name, level, attack), group in frame.groupby(keys, sort=False)
        ]
    )


def _title(words: Iterable[object]) -> str:
    """Return how a network is named: its features are, where they are not plain."""
    return " ".join(str(word) for word in words if word not in ("", "plain"))


def figure_exact(record: Record) -> Figure:
    """Draw precision, recall and exact matches against the batch size, a row of panels a network."""
    frame = record.part("table 1").astype({"exact": float})
    groups = list(frame.groupby(NETWORK, sort=False))
    columns = {"precision": "precision", "recall": "recall", "exact": "exact match"}
    figure, axes = figures.panels(len(groups), len(columns), height=1.9, sharex=True, sharey=True)
    for row, (network, group) in zip(axes, groups, strict=True):
        for axis, column in zip(row, columns, strict=True):
            sns.barplot(group, x="size", y=column, hue="attack", errorbar=None, width=0.7, ax=axis)
            axis.get_legend().remove()
            axis.set(xlabel="", ylabel="", ylim=(0, 1.03))
            axis.grid(visible=False, axis="x")
        row[0].set_ylabel(_title(network))
    for axis, title in zip(axes[0], columns.values(), strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("samples in a batch")
    figures.legend_below(figure, 2)
    return figure
