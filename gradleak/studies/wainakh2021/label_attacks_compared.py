"""Every label attack, everywhere: networks, training, defences, batch sizes

Beyond the papers: wainakh2021, yin2021, posterior2023, dang2021 and ma2023 side by side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import nn

from gradleak import data, studies
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import OnPixels, built
from gradleak.studies.shared.defended import Defended, named
from gradleak.studies.shared.tally import Tally, attack, load, others

PLACE = "Beyond section 6"
SMALLEST: dict[str, Any] = {
    "networks": ["lenet5/tanh"],
    "told": [],
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
# LLG's kin, its random inputs normalised as the private ones are, beside LLG and the same with pixels as they are.
TOLD = {name: ATTACKS[name] for name in ("guess", "LLG", "LLG*")}
IN_RANGE = "LLG*, normalised"
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
        ["llg-cnn/", "lenet5/tanh"],
        validate_default=True,
        description="network/activation; none where the network has its own",
    )
    told: list[Network] = Field(
        ["llg-cnn/", "lenet5/tanh"],
        validate_default=True,
        description="those on which LLG* is also told how inputs are normalised, no defence",
    )
    epochs: list[int] = Field([0, 1], description="how long the networks have been trained; 0: not at all")
    defenses: list[Behind] = Field(["none/0", "grad-drop/0.9"], validate_default=True, description="defence/level")
    sizes: list[int] = Field([1, 8], description="samples in a batch")
    batches: int = Field(3, ge=1, le=10_000, description="unbalanced batches of a size")
    auxiliary: int = Field(10, ge=1, le=1000, description="auxiliary samples of a class, test split")
    dataset: str = Field("photos", description="private images, training split")

    paper: ClassVar[dict[str, Any]] = {
        "networks": ["llg-cnn/", "lenet5/relu", "lenet5/tanh", "llg-lenet/", "resnet20/"],
        "told": ["llg-cnn/", "lenet5/relu", "lenet5/tanh", "llg-lenet/"],
        "epochs": [0, 1, 5],
        "defenses": ["none/0", "noise/0.001", "noise/0.01", "grad-drop/0.9"],
        "sizes": [1, 8, 32, 128],
        "batches": 50,
        "dataset": "cifar10",
    }

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they are shown."""
        return [Sees(one.network, self.dataset, activation=one.activation) for one in (*self.networks, *self.told)]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network, state of training and defence."""
    common = parameters.model_dump(include={"sizes", "batches", "auxiliary", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    every = [
        dict(network) | {"epochs": epochs} | dict(defended) | common
        for network in parameters.networks
        for epochs in parameters.epochs
        for defended in parameters.defenses
    ]
    told = common | dict(Behind.of("none/0")) | {"told": True}
    return every + [dict(one) | {"epochs": epochs} | told for one in parameters.told for epochs in parameters.epochs]


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
    told: bool = False,
) -> list[dict[str, Any]]:
    """Run every attack on the same batches of one network behind one defence.

    `told`: LLG* alone, who is told how inputs are normalised, beside LLG and the guess.
    """
    private, public = (load(dataset, split) for split in ("train", "test"))
    model, accuracy = _model(network, activation, epochs, private, dataset, seed, device)
    if told:
        model = OnPixels(model)
    else:
        private, public = _normalised(private), _normalised(public)
    generator = torch.Generator().manual_seed(seed)
    tally = Tally()
    for _ in range(batches):
        given = others(public, auxiliary, generator)
        own = None if defense == "none" else named(WORDS, defense, level, generator)
        attack(
            tally, model, private, given,
            sizes=sizes, balance="unbalanced", generator=generator, attacks=TOLD if told else ATTACKS, defense=own,
        )  # fmt: skip
    rows = tally.rows(accuracy=accuracy)
    if not told:
        return rows
    alone = {row["size"]: row["success"] for row in rows if row["attack"] == "LLG"}
    return [
        row | {"attack": IN_RANGE, "over_llg": row["success"] - alone[row["size"]]}
        for row in rows
        if row["attack"] == "LLG*"
    ]


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


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return (
        f"{len(parameters.networks)} networks at {len(parameters.epochs)} stages of training, "
        f"{parameters.batches} batches of a size, {data.title(parameters.dataset)}"
    )


def _frame(record: Record) -> pd.DataFrame:
    """Return the rows, with the names that settings go by on the page."""
    frame = record.frame()
    frame["net"] = (frame["network"] + " " + frame["activation"]).str.strip()
    frame["behind"] = [
        "no defence" if name == "none" else f"{name} {level:g}"
        for name, level in zip(frame["defense"], frame["level"], strict=True)
    ]
    return frame


def figure_labels(record: Record) -> Figure:
    """Draw the share of labels that every attack finds on every network, no defence, mean over the batch sizes."""
    return _by_network(record, "success")


def figure_classes(record: Record) -> Figure:
    """Draw how well every attack tells which classes occur, no defence, mean over the batch sizes."""
    return _by_network(record, "classes")


def figure_defenses(record: Record) -> Figure:
    """Draw the share of labels found behind every defence, by batch size, mean over networks and their training."""
    return _heat(_frame(record), "behind", "size", "success", "batch size")


def _by_network(record: Record, column: str) -> Figure:
    frame = _frame(record)
    return _heat(frame[frame["behind"] == frame["behind"].iloc[0]], "net", "epochs", column, "epochs")


def _heat(frame: pd.DataFrame, panel: str, across: str, column: str, label: str) -> Figure:
    """Draw means as numbers on colours: a panel a value of one column, a line an attack."""
    titles = list(dict.fromkeys(frame[panel]))
    figure, axes = figures.panels(1, len(titles), height=3.9, sharey=True)
    for axis, title in zip(axes[0], titles, strict=True):
        means = frame[frame[panel] == title].pivot_table(index="attack", columns=across, values=column, sort=False)
        sns.heatmap(
            means.reindex(list(ATTACKS)).sort_index(axis=1),
            ax=axis,
            vmin=0,
            vmax=100,
            cmap="cividis",
            annot=True,
            fmt=".0f",
            annot_kws={"size": 9.5},
            cbar=False,
            linewidths=0.6,
        )
        axis.set(title=title, xlabel=label, ylabel="")
        axis.tick_params(length=0)
        axis.tick_params("y", labelrotation=0)
    return figure


def table(record: Record) -> pd.DataFrame:
    """Return every attack over all settings: labels, classes, and its time."""
    frame = _frame(record)
    lines = []
    for name in ATTACKS:
        own = frame[frame["attack"] == name]
        clean = own[own["defense"] == "none"]
        lines.append(
            {
                "attack": name,
                "labels, no defence": f"{clean['success'].mean():.1f} %",
                "labels, all": f"{own['success'].mean():.1f} %",
                "classes, no defence": f"{clean['classes'].mean():.1f} %",
                "ms a batch": f"{1000 * own['seconds'].sum() / own['count'].sum():.2g}",
            }
        )
    return pd.DataFrame(lines)


def told_table(record: Record) -> pd.DataFrame:
    """Return LLG, and LLG* with its random inputs as pixels and normalised, no defence, means over the batch sizes."""
    frame = _frame(record)
    frame = frame[(frame["defense"] == "none") & frame["attack"].isin(["LLG", "LLG*", IN_RANGE])]
    lines = []
    for (net, epochs), group in frame.groupby(["net", "epochs"], sort=False):
        means = group.groupby("attack")["success"].mean()
        if IN_RANGE not in means:
            continue
        line = {"network": str(net), "epochs": f"{epochs:.0f}"}
        lines.append(line | {f"{name}, %": f"{means[name]:.1f}" for name in ("LLG", "LLG*", IN_RANGE)})
    return pd.DataFrame(lines)


def worst_table(record: Record) -> pd.DataFrame:
    """Return the setting in which every attack finds least."""
    frame = _frame(record)
    lines = []
    for name in ATTACKS:
        worst = frame[frame["attack"] == name].sort_values("success").iloc[0]
        lines.append(
            {"attack": name, "least": f"{worst['success']:.0f} %", "network": worst["net"]}
            | {"epochs": f"{worst['epochs']:.0f}", "behind": worst["behind"], "B": f"{worst['size']:.0f}"}
        )
    return pd.DataFrame(lines)


def full_tables(record: Record) -> dict[str, pd.DataFrame]:
    """Return the labels found in every setting, in percent, a table a defence."""
    frame = _frame(record)
    tables = {}
    for behind, group in frame.groupby("behind", sort=False):
        wide = group.pivot_table(index=["net", "epochs", "size"], columns="attack", values="success", sort=False)
        lines = wide[list(ATTACKS)].round(0).astype(int).astype(str).reset_index()
        tables[str(behind)] = lines.rename(columns={"net": "network", "size": "B"})
    return tables


def threat_table() -> pd.DataFrame:
    """Return what every attack needs and takes for granted."""
    from gradleak.labels import METHODS

    return pd.DataFrame(
        [
            {"attack": name, "sees": METHODS[method].threat, "takes for granted": METHODS[method].assumes}
            for name, (method, _) in ATTACKS.items()
        ]
    )
