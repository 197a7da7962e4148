"""Which classes occur in a batch: planes between the rows of a gradient

dang2021, sections 2.5.1 and 3: Table 1, and the image half of Table 4.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.defenses import named
from gradleak.errors import InputError
from gradleak.labels import reveal_labels
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.defended import Defended
from gradleak.studies.shared.last_layers import TRAINED, Row, seen

PLACE = "Sections 2.5.1 and 3, Tables 1 and 4"
SMALLEST: dict[str, Any] = {"rows": ["photos/lenet5/tanh/50"], "sizes": [4], "batches": 2, "defenses": ["none/0"]}


class Behind(Defended):
    """A defence of the paper."""

    words: ClassVar = {name: name for name in ("none", "sign", "grad-drop")}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    rows: list[Row] = Field(
        ["photos/lenet5/relu/100", "photos/lenet5/tanh/100"],
        validate_default=True,
        description="dataset/network/activation/classes; no activation where the network has its own",
    )
    sizes: list[int] = Field([10, 20], description="samples in a batch")
    batches: int = Field(3, ge=1, le=10_000, description="batches a network and size")
    defenses: list[Behind] = Field(
        ["none/0", "sign/0", "grad-drop/0.5", "grad-drop/0.9"],
        validate_default=True,
        description="defence/level, on the last row's smallest batches",
    )

    paper: ClassVar[dict[str, Any]] = {
        "rows": [
            f"imagenet-sample/{TRAINED}//1000",
            "imagenet-sample/efficientnet-b0//1000",
        ],
        "sizes": [10, 50, 100],
        "batches": 100,
    }

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they are shown."""
        return [row.sees for row in self.rows]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys(row.dataset for row in parameters.rows))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network, one the defences."""
    common = parameters.model_dump(include={"sizes", "batches", "seed"})
    common |= {"device": studies.resolve_device(parameters.device), "defenses": ["none/0"]}
    rows = [dict(row) | common for row in parameters.rows]
    defended = rows[-1] | {"sizes": parameters.sizes[:1], "defenses": [str(one) for one in parameters.defenses]}
    return [{"part": "table 1"} | row for row in rows] + [{"part": "table 4"} | defended]


def trial(
    *,
    part: str,
    dataset: str,
    network: str,
    activation: str,
    classes: int,
    sizes: list[int],
    batches: int,
    defenses: list[str],
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Reveal the classes of many batches; a row a batch, attack and defence."""
    del part
    run = seen(dataset, network, activation, classes, seed, device)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for text in defenses:
        about, defend = dict(Behind.of(text)), named(text)
        for size in sizes:
            for number in range(batches):
                chosen = torch.randperm(len(run.features), generator=generator)[:size].to(device)
                own = run.labels_of(chosen, generator)
                gradient = defend({"weight": run.gradient(chosen, own)})["weight"]
                truth = set(own.tolist())
                # A changed gradient has full rank; the attacker is told the batch size, as in the paper's code.
                for attack, found, seconds in _attacked(gradient, None if about["defense"] == "none" else size):
                    rows.append(
                        about
                        | {"size": size, "batch": number, "attack": attack}
                        | scores(found, truth)
                        | {"seconds": seconds, "labels": len(truth)}
                    )
    return rows


def _attacked(gradient: Tensor, rank: int | None) -> list[tuple[str, set[int], float]]:
    """Return what each attack reveals, and the seconds it took."""
    started = time.perf_counter()
    minimum = set((gradient.amin(dim=1) < 0).nonzero()[:, 0].tolist())
    between = time.perf_counter()
    try:
        planes = reveal_labels(gradient, rank=rank)
    except InputError:
        # Of full rank: there is no telling, and a guess is not made.
        planes = set()
    return [("minimum rule", minimum, between - started), ("RLG", planes, time.perf_counter() - between)]


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
        "n": f"{len(group)}",
        "ms": f"{1000 * group['seconds'].median():.2g}",
    }


def table(record: Record) -> pd.DataFrame:
    """Return Table 1: precision, recall, F1 and exact matches, a line a network, size and attack."""
    keys = ["network", "activation", "size", "attack"]
    return pd.DataFrame(
        [
            {"network": f"{network} {activation}".strip(), "N": f"{size:.0f}", "attack": attack} | _line(group)
            for (network, activation, size, attack), group in record.part("table 1").groupby(keys, sort=False)
        ]
    )


def defense_table(record: Record) -> pd.DataFrame:
    """Return the image half of Table 4: RLG behind defences."""
    frame = record.part("table 4")
    frame = frame[frame["attack"] == "RLG"]
    return pd.DataFrame(
        [
            {"defence": f"{name} {level:.0%}" if name == "grad-drop" else name, "N": f"{size:.0f}"} | _line(group)
            for (name, level, size), group in frame.groupby(["defense", "level", "size"], sort=False)
        ]
    )


def figure_exact(record: Record) -> Figure:
    """Draw precision, recall and exact matches against the batch size, a row of panels a network."""
    frame = record.part("table 1").astype({"exact": float})
    groups = list(frame.groupby(["network", "activation"], sort=False))
    columns = {"precision": "precision", "recall": "recall", "exact": "exact match"}
    figure, axes = figures.panels(len(groups), len(columns), height=1.9, sharex=True, sharey=True)
    for row, ((network, activation), group) in zip(axes, groups, strict=True):
        for axis, column in zip(row, columns, strict=True):
            sns.barplot(group, x="size", y=column, hue="attack", errorbar=None, width=0.7, ax=axis)
            axis.get_legend().remove()
            axis.set(xlabel="", ylabel="", ylim=(0, 1.03))
            axis.grid(visible=False, axis="x")
        row[0].set_ylabel(f"{network} {activation}".strip())
    for axis, title in zip(axes[0], columns.values(), strict=True):
        axis.set_title(title)
    for axis in axes[-1]:
        axis.set_xlabel("samples in a batch")
    figures.legend_below(figure, 2)
    return figure
