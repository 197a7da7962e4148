"""What keeps sentences from being read out of a gradient

Beyond dang2021: clipping and noise at a stated privacy, larger batches, layers that are not sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from torch import nn

from gradleak import data, defenses, studies
from gradleak.data.text import TITLES
from gradleak.defenses import release_epsilon
from gradleak.errors import InputError
from gradleak.leak import Gradients, Leak, observe
from gradleak.models.language import batch_of
from gradleak.runs.records import Record
from gradleak.sequences import read_prefixes, read_sentences
from gradleak.show import figures
from gradleak.studies.dang2021.sentences import SHOWN, Cell, model_of
from gradleak.studies.shared.read import judge, private_of

PLACE = "Beyond section 2.5"
SMALLEST: dict[str, Any] = {
    "cells": ["lstm/64/1/untrained/2/1"],
    "noise": [0, 1],
    "sizes": [],
    "withheld": ["head"],
}
# The chance with which a release may be worse than its ε says.
DELTA = 1e-5
# Layers that a client may keep to itself, by what their parameters' names begin with.
LAYERS = {"none": "", "embedding": "embedding.", "head": "head.", "recurrent": "recurrent."}
WITHHELD = {
    "none": "all layers are sent",
    "embedding": "all but the embedding",
    "head": "all but the last layer",
    "recurrent": "all but the recurrent layers",
}
NonNegative = Annotated[float, Field(ge=0)]


class Parameters(studies.Parameters):
    """What a rerun may change."""

    text: str = Field("sentences", description="private sentences: sentences or librispeech")
    cells: list[Cell] = Field(
        ["lstm/128/1/untrained/4/2"],
        validate_default=True,
        description="model/width/layers/stage/sentences a batch/batches, behind DP-SGD",
    )
    clip: float = Field(0.5, gt=0, description="the norm that each sentence's gradient is clipped to")
    noise: list[NonNegative] = Field([0, 1e-5, 1e-3, 1], description="deviations of noise, in parts of that norm")
    sizes: list[Cell] = Field(
        ["lstm/64/1/untrained/4/2", "lstm/64/1/untrained/32/2"],
        validate_default=True,
        description="cells of batches of several sizes, no defence",
    )
    withheld: list[Literal["none", "embedding", "head", "recurrent"]] = Field(
        ["embedding", "head", "recurrent"], description="layers of the first cell that are not sent"
    )
    epochs: int = Field(4, ge=1, le=1000, description="epochs of training where a stage is trained")

    paper: ClassVar[dict[str, Any]] = {
        "text": "librispeech",
        "cells": [f"{model}/1/{stage}/8/10" for model in ("lstm/256", "gru/256") for stage in ("untrained", "trained")],
        "noise": [0, 1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 0.01, 1],
        "sizes": [f"lstm/256/1/untrained/{size}/10" for size in (16, 32, 40, 48, 64)],
        "withheld": ["none", "embedding", "head", "recurrent"],
    }


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    batches = sum(cell.batches for cell in (*parameters.cells, *parameters.sizes))
    return f"{batches:,} batches, {len(parameters.noise)} levels of noise, {TITLES[parameters.text]}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the texts this study reads."""
    return [parameters.text]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a cell behind DP-SGD, a cell of a size, a layer that is not sent."""
    common = {"text": parameters.text, "epochs": parameters.epochs, "seed": parameters.seed, "device": "cpu"}
    private = {"part": "dp", "clip": parameters.clip, "noise": [float(one) for one in parameters.noise]}
    behind = [private | {"withheld": "none"} | dict(cell) for cell in parameters.cells]
    plain = {"clip": 0.0, "noise": [0.0]}
    sizes = [plain | {"part": "size", "withheld": "none"} | dict(cell) for cell in parameters.sizes]
    layers = [plain | {"part": "layers", "withheld": name} | dict(parameters.cells[0]) for name in parameters.withheld]
    return [inputs | common for inputs in behind + sizes + layers]


def trial(
    part: str,
    kind: str,
    width: int,
    layers: int,
    stage: str,
    size: int,
    batches: int,
    clip: float,
    noise: list[float],
    withheld: str,
    text: str,
    epochs: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Read some batches behind a defence; a row a batch, level of noise and reader."""
    model, _ = model_of(kind, width, layers, stage, text, epochs, seed)
    model, rows = model.to(device), []
    words = range(len(data.vocabulary(text)))
    for number in range(batches):
        private = private_of(text, size, number, seed)
        clean = observe(model, *batch_of(private, device=device))
        summed = clipped_sum(model, private, clip) if part == "dp" else clean.gradients
        for level in noise:
            generator = torch.Generator().manual_seed(1_000_003 * seed + number)
            noisy = defenses.gaussian(level * clip / size, generator)(summed) if level else summed
            sent = {name: value for name, value in noisy.items() if not _withheld(name, withheld)}
            leak = Leak(model, sent, clean.head, size)
            about = {"batch": number, "level": level, "utility": defenses.utility(clean.gradients, noisy)}
            rows.append(about | {"reader": "prefixes"} | _prefixes(leak, private, words))
            # Counts are whole numbers no more where each sentence is clipped: one level tells.
            if level == 0:
                rows.append(about | {"reader": "counts"} | _counted(leak, private, words))
    return rows


def clipped_sum(model: nn.Module, private: list[list[int]], clip: float) -> Gradients:
    """Return DP-SGD's sum (abadi2016) before its noise, over the number of sentences: each clipped by itself."""
    device = next(model.parameters()).device
    own = [defenses.clip(clip)(observe(model, *batch_of([one], device=device)).gradients) for one in private]
    return defenses.average(own)


def _withheld(name: str, layer: str) -> bool:
    return layer != "none" and name.startswith(LAYERS[layer])


def _prefixes(leak: Leak, private: list[list[int]], words: range) -> dict[str, Any]:
    """Read the ends of prefixes: how many of the sentences are among them, and how many more there are."""
    started = time.process_time()
    try:
        found = read_prefixes(leak, words=words)
    except InputError:
        found = []  # what prefixes are read from is not sent
    seconds = time.process_time() - started
    right = sum(sentence in found for sentence in private) / len(private)
    false = sum(sentence not in private for sentence in found)
    exact = right == 1 and false == 0
    return {"right": right, "false": false, "exact": exact, "wrongly_sure": False, "seconds": seconds}


def _counted(leak: Leak, private: list[list[int]], words: range) -> dict[str, Any]:
    """Read sentences with their counts, and whether the reader promises what is not so."""
    started = time.process_time()
    try:
        read = read_sentences(leak, words=words)
    except InputError:
        # A layer that counts or prefixes are read from is not sent, which the reader says.
        return {"right": 0.0, "false": 0, "exact": False, "wrongly_sure": False, "seconds": 0.0}
    seconds = time.process_time() - started
    false = sum(sentence not in private for sentence in read.all())
    told = judge(read, private)
    kept = ("right", "exact", "wrongly_sure", "status", "tokens", "rank")
    return {"false": false, "seconds": seconds} | {name: told[name] for name in kept}


def private_level(level: float) -> str:
    """Return a level of noise as its ε, one release, in a few characters."""
    epsilon = release_epsilon(level, delta=DELTA)
    return "∞" if math.isinf(epsilon) else f"{epsilon:.2g}"


def _line(group: pd.DataFrame) -> dict[str, Any]:
    return {
        "batches": len(group),
        "sentences right": f"{group['right'].mean():.0%}",
        "false, a batch": f"{group['false'].mean():.1f}",
        "exact": f"{group['exact'].sum():.0f}",
        "CPU-s": f"{group['seconds'].median():.2g}",
    }


def noise_table(record: Record) -> pd.DataFrame:
    """Return what is read behind DP-SGD, a line a level of noise, all models and stages together."""
    frame = record.part("dp")
    lines = []
    for level, reader in frame[["level", "reader"]].drop_duplicates().itertuples(index=False):
        group = frame[(frame["level"] == level) & (frame["reader"] == reader)]
        about = {"noise": f"{level:g}", "ε": private_level(level), "reader": reader}
        lines.append(about | {"cosine": f"{group['utility'].mean():.3g}"} | _line(group))
    return pd.DataFrame(lines)


def size_table(record: Record) -> pd.DataFrame:
    """Return what is read of batches of several sizes, with how many tokens they hold."""
    frame, lines = record.part("size"), []
    if frame.empty:
        return pd.DataFrame({"sentences": []})
    keys = ["kind", "width", "stage", "size", "reader"]
    for (kind, width, stage, size, reader), group in frame.groupby(keys, sort=False):
        own = frame[(frame["stage"] == stage) & (frame["size"] == size) & frame["tokens"].notna()]
        about = {"model": f"{SHOWN[str(kind)]} {width:.0f}", "state": stage, "sentences": f"{size:.0f}"}
        lines.append(about | {"tokens": f"{own['tokens'].median():.0f}", "reader": reader} | _line(group))
    return pd.DataFrame(lines)


def layers_table(record: Record) -> pd.DataFrame:
    """Return what is read where a layer's gradient is not sent."""
    return pd.DataFrame(
        [
            {"sent": WITHHELD[str(withheld)], "reader": reader} | _line(group)
            for (withheld, reader), group in record.part("layers").groupby(["withheld", "reader"], sort=False)
        ]
    )


def figure_frontier(record: Record) -> Figure:
    """Draw the share of sentences exact against the noise, its ε below, a line a model and stage."""
    frame = record.part("dp")
    frame = frame[frame["reader"] == "prefixes"]
    levels = sorted(frame["level"].unique())
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    groups = frame.groupby(["kind", "stage"], sort=False)
    for number, (((kind, stage), group), colour, dashes, marker) in enumerate(
        zip(groups, figures.COLOURS, figures.DASHES, "osDv^x", strict=False)
    ):
        shares = group.groupby("level")["right"].mean()
        # A little aside, for curves that lie on one another.
        places = [levels.index(level) + 0.05 * (number - 1.5) for level in shares.index]
        axis.plot(
            places,
            shares.to_numpy(),
            marker=marker,
            color=colour,
            linestyle=dashes,
            label=f"{SHOWN[str(kind)]}, {stage}",
        )
    noise_axis(axis, levels)
    axis.set(ylim=(-0.03, 1.05), ylabel="sentences exact")
    figures.legend_below(figure, 4)
    return figure


def noise_axis(axis: Axes, levels: Sequence[float]) -> None:
    """Write levels of noise below places 0, 1, 2 …, each with its ε."""
    axis.set_xticks(range(len(levels)), [f"{level:g}\nε {private_level(float(level))}" for level in levels])
    axis.set_xlabel("noise, in parts of the clipping norm; its ε")


def figure_sizes(record: Record) -> Figure:
    """Draw the share of sentences exact against their number in a batch, a line a reader and stage."""
    frame = record.part("size")
    if frame.empty:
        return figures.nothing("no batches without a defence were read")
    figure, axes = figures.panels(1, 1, height=2.8)
    axis = axes[0][0]
    groups = frame.groupby(["reader", "stage"], sort=False)
    for ((reader, stage), group), colour, dashes, marker in zip(
        groups, figures.COLOURS, figures.DASHES, "osDv", strict=False
    ):
        shares = group.groupby("size")["right"].mean()
        axis.plot(
            shares.index, shares.to_numpy(), marker=marker, color=colour, linestyle=dashes, label=f"{reader}, {stage}"
        )
    axis.set(ylim=(-0.03, 1.05), ylabel="sentences exact", xlabel="sentences in a batch")
    figures.legend_below(figure, 4)
    return figure
