"""LLG while the model learns

wainakh2021, section 6.4: Figure 4.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, data, studies
from gradleak.leak import evaluating
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import ATTACKS, DRAWN, GUESS, LOOKS, Tally, attack, load, others

PLACE = "Section 6.4, Figure 4"
SMALLEST: dict[str, Any] = {"iterations": 40, "every": 20, "batches": 2, "runs": 1, "clients": ["skewed"]}
RATE = 0.1
TESTED = 1000
Clients = Literal["skewed", "even"]
CLIENTS: tuple[Clients, ...] = get_args(Clients)
# Steps for which skewed clients keep their two classes.
BLOCK = 100
SHOWN = {name: ATTACKS[name] for name in ("LLG", "LLG*", "LLG+", "guess")} | {
    "shadow": ("shadow", {}),
    "posterior": ("posterior", {}),
    DRAWN: ("draw", {}),
}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    iterations: int = Field(600, ge=1, le=1_000_000, description="steps of gradient descent, one batch each")
    every: int = Field(200, ge=1, le=1_000_000, description="steps from one attack to the next")
    size: int = Field(8, ge=1, le=1024, description="samples in a batch, in training and under attack")
    batches: int = Field(8, ge=1, le=10_000, description="unbalanced batches attacked each time")
    clients: list[Clients] = Field(
        list(CLIENTS), description="batches of training: skewed, 75 % of two classes for 100 steps, or even"
    )
    runs: int = Field(1, ge=1, le=1000, description="networks a kind of client, trained one after the other")
    auxiliary: int = Field(10, ge=1, le=1000, description="samples of a class that LLG+ has, test split")
    dataset: str = Field("digits", description="training images and private ones, training split")

    paper: ClassVar[dict[str, Any]] = {
        "iterations": 10_000,
        "every": 500,
        "batches": 100,
        "clients": ["skewed"],
        "runs": 1,
        "auxiliary": 80,
        "dataset": "mnist",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("llg-cnn", self.dataset)]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network and kind of client."""
    common = parameters.model_dump(include={"iterations", "every", "size", "batches", "auxiliary", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    return [
        {"clients": clients, "run": run} | common for clients in parameters.clients for run in range(parameters.runs)
    ]


def trial(
    *,
    clients: str,
    run: int,
    iterations: int,
    every: int,
    size: int,
    batches: int,
    auxiliary: int,
    dataset: str,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Train one network by plain gradient descent, and attack batches along the way."""
    private, public = load(dataset, "train"), load(dataset, "test")
    generator = torch.Generator().manual_seed(seed + run)
    model = built("llg-cnn", private, seed + run, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    rows: list[dict[str, Any]] = []
    before: dict[str, float] = {}
    pair = torch.randperm(private.classes, generator=generator)[:2]
    for step in range(iterations + 1):
        if step % every == 0:
            tally = Tally()
            given = others(public, auxiliary, generator)
            for _ in range(batches):
                attack(
                    tally, model, private, given,
                    sizes=[size], balance="unbalanced", generator=generator, attacks=SHOWN,
                )  # fmt: skip
            if step == 0:
                before = {row["attack"]: row["success"] for row in tally.rows()}
            own = _batch(clients, private, TESTED // size * size, pair, generator)
            found = tally.rows(
                step=step,
                accuracy=_accuracy(model, public.images[:TESTED], public.labels[:TESTED], device),
                own_accuracy=_accuracy(model, private.images[own], private.labels[own], device),
            )
            llg = next(row["success"] for row in found if row["attack"] == "LLG")
            rows += [
                row | {"lost": before[row["attack"]] - row["success"], "over_llg": row["success"] - llg}
                for row in found
            ]
        if step % BLOCK == 0:
            pair = torch.randperm(private.classes, generator=generator)[:2]
        chosen = _batch(clients, private, size, pair, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(private.images[chosen].to(device)), private.labels[chosen].to(device)).backward()
        optimizer.step()
    return rows


def _batch(clients: str, private: data.Dataset, size: int, pair: Tensor, generator: torch.Generator) -> Tensor:
    """Return the indices (B,) of what clients train on: any samples, or half of one class and a quarter of another."""
    if clients == "even":
        return torch.randint(len(private), (size,), generator=generator)
    first, second = pair.repeat_interleave(torch.tensor([size // 2, size // 4])).split([size // 2, size // 4])
    rest = torch.randint(private.classes, (size - len(first) - len(second),), generator=generator)
    return augment.samples_of(private.labels, torch.cat([first, second, rest]), generator)


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor, device: str) -> float:
    with torch.no_grad(), evaluating(model):
        found = model(images.to(device)).argmax(dim=1).cpu()
    return 100 * float((found == labels).double().mean())


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return (
        f"{parameters.runs} networks, {parameters.iterations:,} steps, {parameters.batches} batches at each stop, "
        f"{' and '.join(parameters.clients)} clients, {data.title(parameters.dataset)}"
    )


def table(record: Record) -> pd.DataFrame:
    """Return success and the model's accuracy along the way: at the start, in the middle, at the end."""
    keys = ["clients", "step", "attack"]
    columns = ["success", "accuracy", "own_accuracy"]
    means = record.frame().groupby(keys, sort=False)[columns].mean().reset_index()
    lines = []
    for clients, frame in means.groupby("clients", sort=False):
        steps = sorted(frame["step"].unique())
        lines += [
            {"clients": str(clients), "step": f"{step:.0f}"} | _cells(frame[frame["step"] == step])
            for step in sorted({steps[0], *steps[:: max(1, len(steps) // 5)], steps[-1]})
        ]
    return pd.DataFrame(lines)


def _cells(frame: pd.DataFrame) -> dict[str, str]:
    own = frame.set_index("attack")
    line = {
        "test accuracy, %": f"{own['accuracy'].iloc[0]:.1f}",
        "on such batches, %": f"{own['own_accuracy'].iloc[0]:.1f}",
    }
    return line | {f"{name}, %": f"{own['success'][name]:.1f}" for name in SHOWN}


def end_table(record: Record) -> pd.DataFrame:
    """Return the last stop of every network."""
    frame = record.frame()
    frame = frame[frame["step"] == frame["step"].max()]
    lines = []
    for (clients, run), group in frame.groupby(["clients", "run"], sort=False):
        own = group.set_index("attack")
        line = {
            "clients": str(clients),
            "network": f"{run + 1:.0f}",
            "accuracy, %": f"{group['accuracy'].iloc[0]:.1f}",
            "n": f"{group['count'].iloc[0]:.0f}",
        }
        lines.append(line | {f"{name}, %": f"{own['success'][name]:.1f} ± {own['spread'][name]:.1f}" for name in SHOWN})
    return pd.DataFrame(lines)


def figure_training(record: Record) -> Figure:
    """Draw success and the model's accuracy against the steps of training, a row a kind of client."""
    frame = record.frame()
    kinds = list(dict.fromkeys(frame["clients"]))
    figure, axes = figures.panels(len(kinds), 2, height=2.8, width_ratios=(2.4, 1), sharex=True)
    for (left, right), kind in zip(axes, kinds, strict=True):
        part = frame[frame["clients"] == kind]
        for name in SHOWN:
            own, (colour, dash) = part[part["attack"] == name], LOOKS[name]
            sns.lineplot(own, x="step", y="success", errorbar="sd", color=colour, linestyle=dash, label=name, ax=left)
        left.get_legend().remove()
        left.set(title=f"the attacks, {kind} clients", ylabel="labels found, %", ylim=(0, 105))
        one = part[part["attack"] == GUESS]
        for column, dash, label in (("accuracy", "-", "test images"), ("own_accuracy", ":", "such batches")):
            sns.lineplot(one, x="step", y=column, errorbar="sd", color="0.2", linestyle=dash, label=label, ax=right)
        right.set(title="the model", ylabel="accuracy, %", ylim=(0, 105))
        right.get_legend().remove()
    for axis in axes[-1]:
        axis.set_xlabel("steps of training")
        axis.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    figures.legend_below(figure, 4)
    return figure
