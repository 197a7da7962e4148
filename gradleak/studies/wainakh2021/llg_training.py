"""LLG while the model learns

wainakh2021, section 6.4: Figure 4.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from gradleak import data, studies
from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.leak import evaluating
from gradleak.studies.fitting import Sees
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import ATTACKS, GUESS, LOOKS, Tally, attack, load, others

PLACE = "Section 6.4, Figure 4"
SMALLEST: dict[str, Any] = {"iterations": 40, "every": 20, "batches": 2, "runs": 1}
RATE = 0.1
TESTED = 1000
SHOWN = {name: ATTACKS[name] for name in ("LLG", "LLG*", "LLG+", "guess")} | {
    "shadow": ("shadow", {}),
    "posterior": ("posterior", {}),
}


class Parameters(studies.Parameters):
    """What a rerun may change."""

    iterations: int = Field(600, ge=1, le=1_000_000, description="steps of gradient descent, one batch each")
    every: int = Field(200, ge=1, le=1_000_000, description="steps from one attack to the next")
    size: int = Field(8, ge=1, le=1024, description="samples in a batch, in training and under attack")
    batches: int = Field(8, ge=1, le=10_000, description="unbalanced batches attacked each time")
    runs: int = Field(2, ge=1, le=1000, description="networks, trained one after the other")
    auxiliary: int = Field(10, ge=1, le=1000, description="samples of a class that LLG+ has, test split")
    dataset: str = Field("digits", description="training images and private ones, training split")

    paper: ClassVar[dict[str, Any]] = {
        "iterations": 10_000,
        "every": 500,
        "batches": 100,
        "runs": 5,
        "dataset": "mnist",
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("llg-cnn", self.dataset)]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network."""
    common = parameters.model_dump(include={"iterations", "every", "size", "batches", "auxiliary", "dataset", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    return [{"run": run} | common for run in range(parameters.runs)]


def trial(
    *,
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
    rows = []
    for step in range(iterations + 1):
        if step % every == 0:
            tally = Tally()
            given = others(public, auxiliary, generator)
            for _ in range(batches):
                attack(
                    tally, model, private, given,
                    sizes=[size], balance="unbalanced", generator=generator, attacks=SHOWN,
                )  # fmt: skip
            rows += tally.rows(step=step, accuracy=_accuracy(model, public, device))
        chosen = torch.randint(len(private), (size,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(private.images[chosen].to(device)), private.labels[chosen].to(device)).backward()
        optimizer.step()
    return rows


def _accuracy(model: nn.Module, public: data.Dataset, device: str) -> float:
    with torch.no_grad(), evaluating(model):
        found = model(public.images[:TESTED].to(device)).argmax(dim=1).cpu()
    return 100 * float((found == public.labels[:TESTED]).double().mean())


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return (
        f"{parameters.runs} networks, {parameters.iterations:,} steps, {parameters.batches} batches at each stop, "
        f"{data.title(parameters.dataset)}"
    )


def _means(record: Record) -> pd.DataFrame:
    frame = record.frame()
    return frame.groupby(["step", "attack"], sort=False)[["success", "accuracy", "over_guess"]].mean().reset_index()


def table(record: Record) -> pd.DataFrame:
    """Return success and the model's accuracy along the way: at the start, in the middle, at the end."""
    frame = _means(record)
    steps = sorted(frame["step"].unique())
    lines = []
    for step in sorted({steps[0], *steps[:: max(1, len(steps) // 5)], steps[-1]}):
        own = frame[frame["step"] == step].set_index("attack")
        line = {"step": f"{step:.0f}", "accuracy, %": f"{own['accuracy'].iloc[0]:.1f}"}
        lines.append(line | {f"{name}, %": f"{own['success'][name]:.1f}" for name in SHOWN})
    return pd.DataFrame(lines)


def end_table(record: Record) -> pd.DataFrame:
    """Return the last stop of every network."""
    frame = record.frame()
    frame = frame[frame["step"] == frame["step"].max()]
    lines = []
    for run, group in frame.groupby("run"):
        own = group.set_index("attack")
        line = {
            "network": f"{run + 1:.0f}",
            "accuracy, %": f"{group['accuracy'].iloc[0]:.1f}",
            "n": f"{group['count'].iloc[0]:.0f}",
        }
        lines.append(line | {f"{name}, %": f"{own['success'][name]:.1f} ± {own['spread'][name]:.1f}" for name in SHOWN})
    return pd.DataFrame(lines)


def figure_training(record: Record) -> Figure:
    """Draw success and the model's accuracy against the steps of training, means over networks and their spread."""
    frame = record.frame()
    figure, axes = figures.panels(1, 2, height=3.4, width_ratios=(2.4, 1))
    left, right = axes[0]
    for name in SHOWN:
        own, (colour, dash) = frame[frame["attack"] == name], LOOKS[name]
        sns.lineplot(own, x="step", y="success", errorbar="sd", color=colour, linestyle=dash, label=name, ax=left)
    left.get_legend().remove()
    left.set(title="the attacks", xlabel="steps of training", ylabel="labels found, %", ylim=(0, 105))
    one = frame[frame["attack"] == GUESS]
    sns.lineplot(one, x="step", y="accuracy", errorbar="sd", color="0.2", ax=right)
    right.set(title="the model", xlabel="steps of training", ylabel="test accuracy, %", ylim=(0, 105))
    right.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    figures.legend_below(figure, len(SHOWN))
    return figure
