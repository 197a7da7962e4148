"""Every label attack, everywhere: networks, training, defences, batch sizes

Beyond the papers: wainakh2021, yin2021, posterior2023, dang2021 and ma2023 side by side.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import nn

from gradleak import data, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.models import training
from gradleak.studies.fitting import Sees
from gradleak.studies.forms import Form
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.tally import Tally, attack, load, others

PLACE = "Beyond section 6"
SMALLEST: dict[str, Any] = {
    "networks": ["lenet5/tanh"],
    "epochs": [0],
    "defenses": ["none/0"],
    "sizes": [1, 4],
    "batches": 2,
}
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "guess": ("guess", {}),
    "GradInversion": ("gradinversion", {}),
    "row sums": ("row sums", {}),
    "RLG": ("rlg", {}),
    "LLG": ("llg", {}),
    "LLG*": ("llg*", {}),
    "iLRG": ("ilrg", {}),
    "LLG+": ("llg+", {}),
    "posterior": ("posterior", {}),
    "shadow": ("shadow", {}),
}
# This page's words for defences: the level of "noise" is a standard deviation, that of "clip" a norm.
WORDS = {"none": "none", "noise": "gaussian", "clip": "clip", "grad-drop": "grad-drop"}


class Network(Form):
    """A network and its activation; none where it has its own."""

    network: str
    activation: str


class Behind(Defended):
    """A defence of this page."""

    words: ClassVar = WORDS


class Parameters(studies.Parameters):
    """What a rerun may change."""

    networks: list[Network] = Field(
        ["llg-cnn/", "lenet5/relu", "lenet5/tanh"],
        validate_default=True,
        description="network/activation; none where the network has its own",
    )
    epochs: list[int] = Field([0, 2], description="how long the networks have been trained; 0: not at all")
    defenses: list[Behind] = Field(
        ["none/0", "noise/0.01", "grad-drop/0.9"], validate_default=True, description="defence/level"
    )
    sizes: list[int] = Field([1, 8, 32], description="samples in a batch")
    batches: int = Field(6, ge=1, le=10_000, description="unbalanced batches of a size")
    auxiliary: int = Field(10, ge=1, le=1000, description="auxiliary samples of a class, test split")
    dataset: str = Field("photos", description="private images, training split")

    paper: ClassVar[dict[str, Any]] = {
        "networks": ["llg-cnn/", "lenet5/relu", "lenet5/tanh", "llg-lenet/", "resnet20/"],
        "epochs": [0, 1, 5],
        "defenses": ["none/0", "noise/0.001", "noise/0.01", "grad-drop/0.9"],
        "sizes": [1, 8, 32, 128],
        "batches": 50,
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they are shown."""
        return [Sees(one.network, self.dataset, activation=one.activation) for one in self.networks]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network, state of training and defence."""
    common = parameters.model_dump(include={"sizes", "batches", "auxiliary", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    return [
        dict(network) | {"epochs": epochs} | dict(defended) | common
        for network in parameters.networks
        for epochs in parameters.epochs
        for defended in parameters.defenses
    ]


def trial(
    *,
    network: str,
    activation: str,
    epochs: int,
    defense: str,
    level: float,
    sizes: list[int],
    batches: int,
    auxiliary: int,
    dataset: str,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Run every attack on the same batches of one network behind one defence."""
    private, public = (_normalised(load(dataset, split)) for split in ("train", "test"))
    model, accuracy = _model(network, activation, epochs, private, dataset, seed, device)
    generator = torch.Generator().manual_seed(seed)
    tally = Tally()
    for _ in range(batches):
        given = others(public, auxiliary, generator)
        own = None if defense == "none" else named(WORDS, defense, level, generator)
        attack(
            tally, model, private, given,
            sizes=sizes, balance="unbalanced", generator=generator, attacks=ATTACKS, defense=own,
        )  # fmt: skip
    return tally.rows(accuracy=accuracy)


def _normalised(dataset: data.Dataset) -> data.Dataset:
    return replace(dataset, images=data.normalise(dataset.images))


def _model(
    network: str, activation: str, epochs: int, private: data.Dataset, dataset: str, seed: int, device: str
) -> tuple[nn.Module, float | None]:
    if epochs:
        recipe = training.Recipe(
            network=network,
            dataset=dataset,
            epochs=epochs,
            bias=True,
            init="torch",
            activation=activation or None,
            seed=seed,
        )
        trained = training.train(recipe, device=device)
        return trained.model.to(device), trained.accuracy
    return built(network, private, seed, device, bias=True, activation=activation or None), None


def _setting(line: Any) -> str:
    network = f"{line['network']} {line['activation']}".strip()
    epochs = round(line["epochs"])
    stage = f"{epochs} epoch{'s' if epochs > 1 else ''}" if epochs else "untrained"
    defense = "" if line["defense"] == "none" else f", {line['defense']} {line['level']:g}"
    return f"{network}, {stage}{defense}"


def _grid(record: Record, column: str) -> pd.DataFrame:
    """Return a column's values, a line a setting and a column an attack and batch size."""
    frame = record.frame()
    frame["setting"] = [_setting(line) for line in frame.to_dict("records")]
    grid = frame.pivot(index="setting", columns=["attack", "size"], values=column)
    order = [(name, size) for name in ATTACKS for size in sorted(frame["size"].unique())]
    return grid.reindex(index=list(dict.fromkeys(frame["setting"])), columns=pd.MultiIndex.from_tuples(order))


def figure_labels(record: Record) -> Figure:
    """Draw the share of labels that every attack finds in every setting."""
    return _heat(record, "success")


def figure_classes(record: Record) -> Figure:
    """Draw how well every attack tells which classes occur, in every setting."""
    return _heat(record, "classes")


def _heat(record: Record, column: str) -> Figure:
    grid = _grid(record, column)
    values = grid.to_numpy(dtype=float)
    figure, axes = figures.panels(1, 1, height=1.6 + 0.26 * len(grid), width=11.5)
    axis = axes[0][0]
    axis.grid(False)
    image = axis.imshow(values, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    sizes = list(dict.fromkeys(grid.columns.get_level_values(1)))
    for (row, place), value in np.ndenumerate(values):
        if not math.isnan(value):
            colour = "white" if value < 55 else "black"
            axis.text(place, row, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
    axis.set_yticks(range(len(grid)), list(grid.index), fontsize=8)
    axis.set_xticks(range(len(grid.columns)), [f"{size:.0f}" for size in grid.columns.get_level_values(1)], fontsize=7)
    axis.set_xlabel("batch size, below each attack")
    for index, name in enumerate(ATTACKS):
        axis.text((index + 0.5) * len(sizes) - 0.5, -0.8, name, ha="center", va="bottom", fontsize=8)
        if index:
            axis.axvline(index * len(sizes) - 0.5, color="white", linewidth=2)
    figure.colorbar(image, ax=axis, shrink=0.6, label="%")
    return figure


def table(record: Record) -> pd.DataFrame:
    """Return every attack over all settings: labels, classes, the setting it is worst in, and its time."""
    frame = record.frame()
    lines = []
    for name in ATTACKS:
        own = frame[frame["attack"] == name]
        clean = own[own["defense"] == "none"]
        worst = own.sort_values("success").iloc[0].to_dict()
        lines.append(
            {
                "attack": name,
                "labels, no defence": f"{clean['success'].mean():.1f} %",
                "labels, all": f"{own['success'].mean():.1f} %",
                "classes, no defence": f"{clean['classes'].mean():.1f} %",
                "least": f"{worst['success']:.0f} %",
                "where": f"{_setting(worst)}, B = {worst['size']:.0f}",
                "ms a batch": f"{1000 * own['seconds'].sum() / own['count'].sum():.2g}",
            }
        )
    return pd.DataFrame(lines)


def threat_table() -> pd.DataFrame:
    """Return what every attack needs and takes for granted."""
    from gradleak.labels import METHODS

    return pd.DataFrame(
        [
            {"attack": name, "sees": METHODS[method].threat, "takes for granted": METHODS[method].assumes}
            for name, (method, _) in ATTACKS.items()
        ]
    )
