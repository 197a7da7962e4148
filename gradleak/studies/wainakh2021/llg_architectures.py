"""LLG on other networks

wainakh2021, section 6.3: Figure 3.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import data, studies
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import (
    ATTACKS,
    SIZES,
    Tally,
    attack,
    draw_success,
    load,
    others,
    success_cells,
)

PLACE = "Section 6.3, Figure 3"
SMALLEST: dict[str, Any] = {"repeats": 2, "sizes": [1, 4], "networks": ["llg-cnn"]}
# LLG+ has so many batches of every class, as large as the one attacked; of slow networks no more samples than this.
MOST = {"llg-resnet20": 32, "llg-resnet20-batch": 32}
# Where batch norm takes a batch's own statistics, batches of a class are run one by one.
BY_BATCH = ("llg-resnet20-batch",)
# The paper's line, what the other attacks do there, and what reads the bias as well.
SHOWN = {name: ATTACKS[name] for name in ("LLG+", "LLG*", "LLG", "guess")} | {
    "iLRG": ("ilrg", {}),
    "posterior": ("posterior", {}),
}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    repeats: int = Field(2, ge=1, le=10_000, description="networks of each kind, each with a batch of every size")
    repeats_by_batch: int = Field(
        2, ge=1, le=10_000, description="networks of the kind whose batch norm takes each batch's own statistics"
    )
    sizes: list[int] = Field([1, 2, 4, 8, 16, 32], description="samples in a batch")
    networks: list[str] = Field(
        ["llg-cnn", "llg-lenet", "llg-resnet20"],
        description="the paper's three networks; llg-lenet-3x3 and llg-resnet20-batch are two of them in another way",
    )
    rounds: int = Field(2, ge=1, le=1000, description="batches of each class that LLG+ has, test split")
    dataset: str = Field("photos", description="private images, training split")

    paper: ClassVar[dict[str, Any]] = {
        "repeats": 100,
        "repeats_by_batch": 50,
        "sizes": SIZES,
        "networks": ["llg-cnn", "llg-lenet", "llg-lenet-3x3", "llg-resnet20", "llg-resnet20-batch"],
        "rounds": 10,
        "dataset": "mnist",
    }

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they are shown."""
        return [Sees(network, self.dataset) for network in self.networks]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network."""
    common = parameters.model_dump(include={"repeats", "sizes", "rounds", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    fewer = {name: {"repeats": parameters.repeats_by_batch} for name in BY_BATCH}
    return [{"network": network} | common | fewer.get(network, {}) for network in parameters.networks]


def trial(
    *, network: str, repeats: int, sizes: list[int], rounds: int, dataset: str, seed: int, device: str
) -> list[dict[str, Any]]:
    """Count the labels of many batches on many networks of one kind."""
    private, public = load(dataset, "train"), load(dataset, "test")
    generator = torch.Generator().manual_seed(seed)
    tally = Tally()
    for number in range(repeats):
        model = built(network, private, seed + number, device)
        for size in sizes:
            few = min(rounds, max(1, MOST.get(network, rounds * size) // size))
            attack(
                tally, model, private, others(public, few * size, generator),
                sizes=[size], balance="unbalanced", generator=generator, attacks=SHOWN,
                chunk=size if network in BY_BATCH else 250,
            )  # fmt: skip
    return tally.rows()


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return f"{parameters.repeats} networks of each kind and {data.title(parameters.dataset)}"


def table(record: Record) -> pd.DataFrame:
    """Return the success of every attack on every network: the mean over batch sizes, and the least."""
    lines = []
    for (network, name), group in record.frame().groupby(["network", "attack"], sort=False):
        lines.append({"network": network, "attack": name} | success_cells(group))
    return pd.DataFrame(lines)


def figure_architectures(record: Record) -> Figure:
    """Draw success against the batch size, a panel a network."""
    frame = record.frame()
    names = list(dict.fromkeys(frame["network"]))
    figure, axes = figures.grid(len(names), 3, height=2.7, sharey=True)
    for axis, name in zip(axes, names, strict=False):
        draw_success(axis, frame[frame["network"] == name], list(SHOWN))
        axis.set_title(name)
    for axis in axes[::3]:
        axis.set_ylabel("labels found, %")
    figures.legend_below(figure, len(SHOWN))
    return figure
