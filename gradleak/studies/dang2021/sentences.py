"""Whole sentences from one gradient of a language model, in order

Beyond dang2021, which reveals the set of an utterance's words: here every word stands in its place, in closed form.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import data, defenses, studies
from gradleak.data.text import TITLES
from gradleak.defenses import Each
from gradleak.errors import InputError, MissingData
from gradleak.leak import Defense, Leak, observe
from gradleak.models.language import KINDS, batch_of
from gradleak.models.language_training import LanguageRecipe, train_language_model
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences import read_sentences
from gradleak.sequences.recurrent import layers_of
from gradleak.sequences.span import span_of
from gradleak.show import figures
from gradleak.studies.shared.read import judge, private_of

PLACE = "Beyond section 2.5"
SMALLEST: dict[str, Any] = {"cells": ["lstm/64/1/untrained/2/2"], "free": 1, "defended": "lstm/64/1/untrained/2/2"}
# How a table names a model by its kind and its layers.
SHOWN = {"lstm": "LSTM", "gru": "GRU", "transformer": "transformer"}
STAGES = ("untrained", "trained")
RECURRENT = ("lstm/256/1", "gru/256/1", "lstm/256/2")
SIZES = (1, 8, 32)
# So many batches are a trial: what a killed run loses.
CHUNK = 25
# Of the words that do not fit, the figure shows so many nearest ones.
NEAREST = 60

# Batches whose prefixes are counted, of so many sentences; and the dimensions of a span, by the layer that has it: a
# recurrent one's E + H + 1, a transformer's width and one for its bias.
BATCHES, COUNTED = 100, (16, 32, 64, 128)
ROOM = (("transformer of 256", 257), ("LSTM of 256", 513), ("transformer of 768", 769), ("LSTM of 1,024", 2049))


class Cell(Form):
    """A language model, its state, and how many batches of how many sentences are read from it."""

    kind: str
    width: Whole
    layers: Whole
    stage: Literal["untrained", "trained"]
    size: Whole
    batches: Whole

    def check(self) -> None:
        """Say so where there is no such model, or nothing to read."""
        if self.kind not in KINDS:
            raise ValueError(f"'{self.kind}' is none of {', '.join(KINDS)}")
        if min(self.layers, self.size, self.batches) < 1 or self.width < 4 or self.width % 4:
            raise ValueError("layers, size and batches must be at least 1, and the width a multiple of 4")


class Behind(Form):
    """What a client does to its gradient: noise of a share of each tensor's root mean square, fewer digits, less."""

    words: ClassVar = ("none", "noise", "half", "bfloat16", "quantize", "grad-drop", "sign")
    defense: str
    level: float

    def check(self) -> None:
        """Say so where there is no such defence."""
        made(self.defense, self.level, torch.Generator())


def made(defense: str, level: float, generator: torch.Generator) -> Defense:
    """Return a defence by its name here and its level."""
    if defense == "noise":
        return Each(
            lambda value: value + level * value.square().mean().sqrt() * torch.randn(value.shape, generator=generator)
        )
    if defense == "bfloat16":
        return Each(lambda value: value.bfloat16())
    if defense not in Behind.words:
        raise InputError(f"defence '{defense}' is none of {', '.join(Behind.words)}")
    return defenses.named(f"{defense}/{level}", generator=generator)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    text: str = Field("sentences", description="private sentences: sentences or librispeech")
    cells: list[Cell] = Field(
        ["lstm/128/1/untrained/8/3", "gru/128/1/trained/8/3", "transformer/64/2/untrained/2/1"],
        validate_default=True,
        description="model/width/layers/stage/sentences a batch/batches",
    )
    free: int = Field(2, ge=0, le=10_000, description="batches of each cell read with the embedding's rows as well")
    epochs: int = Field(4, ge=1, le=1000, description="epochs of training where a stage is trained")
    defended: Cell = Field(
        "lstm/128/1/untrained/4/2", validate_default=True, description="the cell that defences are tried on"
    )
    defenses: list[Behind] = Field(
        ["noise/0.01", "noise/1", "sign/0"], validate_default=True, description="defence/level"
    )

    paper: ClassVar[dict[str, Any]] = {
        "text": "librispeech",
        "cells": [
            *(f"{model}/{stage}/{size}/100" for size in SIZES for model in RECURRENT for stage in STAGES),
            *(f"gru/256/2/{stage}/{size}/25" for size in SIZES for stage in STAGES),
            *(f"{kind}/512/1/untrained/{size}/10" for size in SIZES for kind in ("lstm", "gru")),
            "lstm/512/1/untrained/64/10",
            "lstm/1024/1/untrained/64/4",
            "lstm/512/1/trained/64/10",
            "lstm/1024/1/trained/64/4",
            "gru/512/1/untrained/64/10",
            "gru/1024/1/untrained/64/4",
            *(f"transformer/256/2/untrained/{size}/10" for size in (1, 4, 16)),
            "transformer/256/2/trained/16/5",
            *(f"transformer/768/2/untrained/{size}/4" for size in (32, 64)),
            "transformer/768/2/untrained/128/2",
        ],
        "free": 3,
        "epochs": 4,
        "defended": "lstm/256/1/untrained/8/3",
        "defenses": [
            "none/0",
            "noise/0.001",
            "noise/0.01",
            "noise/0.1",
            "noise/0.3",
            "noise/1",
            "noise/3",
            "half/0",
            "bfloat16/0",
            "quantize/8",
            "grad-drop/0.5",
            "grad-drop/0.9",
            "sign/0",
        ],
    }


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    batches = sum(cell.batches for cell in parameters.cells)
    return f"{batches:,} batches in {len(parameters.cells)} cells, {TITLES[parameters.text]}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the texts this study reads."""
    return [parameters.text]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: some batches of a cell, a defence, or the figure's sentence."""
    common = {"text": parameters.text, "epochs": parameters.epochs, "seed": parameters.seed}
    common |= {"device": studies.resolve_device(parameters.device)}

    def of(cell: Cell) -> dict[str, Any]:
        return {name: value for name, value in dict(cell).items() if name != "batches"}

    read = [
        {"part": "read"}
        | of(cell)
        | {"first": first, "batches": min(CHUNK, cell.batches - first)}
        | {"free": max(0, min(CHUNK, parameters.free - first))}
        | common
        for cell in parameters.cells
        for first in range(0, cell.batches, CHUNK)
    ]
    own = parameters.defended
    defended = [
        {"part": "defense"} | of(own) | {"batches": own.batches} | dict(behind) | common
        for behind in parameters.defenses
    ]
    figure = {"part": "figure"} | of(own) | common
    # Some of everything first: what a long run has when it is stopped.
    return sorted([*read, *defended, figure], key=lambda inputs: int(inputs.get("first", 0)))


def trial(part: str, **inputs: Any) -> list[dict[str, Any]]:
    """Read the sentences of some batches, behind a defence or not; or show how one sentence appears."""
    if part == "read":
        return _read(**inputs)
    return _defended(**inputs) if part == "defense" else _figure(**inputs)


def model_of(
    kind: str, width: int, layers: int, stage: str, text: str, epochs: int, seed: int
) -> tuple[nn.Module, Any]:
    recipe = LanguageRecipe(text=text, kind=kind, width=width, layers=layers, epochs=epochs, seed=seed)
    if stage == "untrained":
        return recipe.build(), {}
    model, (first, last, test) = train_language_model(recipe)
    return model, {"loss_first": first, "loss_last": last, "loss_test": test}


def _timed(leak: Leak, words: range | None, private: list[list[int]]) -> dict[str, Any]:
    started = time.process_time()
    read = read_sentences(leak, words=words)
    return judge(read, private) | {"seconds": time.process_time() - started}


def _read(
    kind: str,
    width: int,
    layers: int,
    stage: str,
    size: int,
    first: int,
    batches: int,
    free: int,
    text: str,
    epochs: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    model, about = model_of(kind, width, layers, stage, text, epochs, seed)
    model, rows = model.to(device), []
    every = range(len(data.vocabulary(text)))
    for number in range(batches):
        private = private_of(text, size, first + number, seed)
        leak = observe(model, *batch_of(private, device=device))
        ways: list[tuple[str, range | None]] = [("all", every), *([("free", None)] if number < free else [])]
        rows += [
            {"batch": first + number, "words": words} | about | _timed(leak, tried, private) for words, tried in ways
        ]
    return rows


def _defended(
    kind: str,
    width: int,
    layers: int,
    stage: str,
    size: int,
    batches: int,
    defense: str,
    level: float,
    text: str,
    epochs: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    model, _ = model_of(kind, width, layers, stage, text, epochs, seed)
    generator, rows = torch.Generator().manual_seed(seed), []
    for number in range(batches):
        private = private_of(text, size, number, seed)
        clean = observe(model, *batch_of(private))
        sent = made(defense, level, generator)(clean.gradients)
        leak = Leak(model, sent, clean.head, clean.batch_size)
        row = _timed(leak, range(len(data.vocabulary(text))), private)
        rows.append({"batch": number, "utility": defenses.utility(clean.gradients, sent)} | row)
    return rows


def misses(model: nn.Module, leak: Leak, sentence: list[int], start: int) -> list[Tensor]:
    """Return, for every step of a sentence and the one behind it, by how much each word (C,) misses the span.

    Of vectors of length one; what a random vector misses is near 1.
    """
    recurrent = next(module for module in model.modules() if isinstance(module, nn.LSTM | nn.GRU))
    layer = layers_of("recurrent", recurrent)[0]
    span = span_of(layer.gradient(leak.gradients))
    embedding = next(module for module in model.modules() if isinstance(module, nn.Embedding)).weight.detach().double()
    state, found = layer.start(), []
    for word in [start, *sentence]:
        state = layer.step(embedding[[word]], state)
        tried = layer.inputs(embedding, state[0].expand(len(embedding), -1)) / span.units
        tried = tried / tried.norm(dim=1, keepdim=True)
        found.append((tried - tried @ span.basis @ span.basis.T).norm(dim=1))
    return found


def _figure(
    kind: str, width: int, layers: int, stage: str, size: int, text: str, epochs: int, seed: int, device: str
) -> list[dict[str, Any]]:
    """Show how one sentence of a batch appears: every word's miss at every step."""
    model, _ = model_of(kind, width, layers, stage, text, epochs, seed)
    pieces = data.vocabulary(text)
    leak = observe(model, *batch_of(private_of(text, size, 0, seed)))
    read = read_sentences(leak)
    if not read.tokens or kind == "transformer":
        return [{"step": 0}]
    # The sentence nearest to eight words among those that were read: as many steps as a figure has room for.
    sentence = min(read.tokens, key=lambda own: (abs(len(own) - 8), own))
    rows = []
    for step, own in enumerate(misses(model, leak, sentence, pieces.start)):
        nearest = own.argsort()[:NEAREST].tolist()
        rows.append(
            {
                "step": step,
                "word": pieces.pieces[sentence[step]] if step < len(sentence) else "",
                "miss": float(own[sentence[step]]) if step < len(sentence) else None,
                "nearest": [float(own[one]) for one in nearest],
                "nearest_words": [pieces.pieces[one] for one in nearest[:4]],
                "middle": float(own.median()),
            }
        )
    return rows


def _named(kind: Any, layers: Any) -> str:
    return f"{layers:.0f} × {SHOWN[kind]}" if layers > 1 else SHOWN[str(kind)]


def table(record: Record) -> pd.DataFrame:
    """Return how many batches were read exactly, a line a cell; all words of the vocabulary tried."""
    frame = record.frame()
    frame = frame[(frame["part"] == "read") & (frame["words"] == "all")]
    keys = ["kind", "layers", "width", "stage", "size"]
    lines = []
    for (kind, layers, width, stage, size), group in frame.groupby(keys, sort=False):
        lines.append(
            {
                "model": _named(kind, layers),
                "width": f"{width:.0f}",
                "state": stage,
                "sentences": f"{size:.0f}",
                "tokens": f"{group['tokens'].median():.0f}",
                "batches": len(group),
                "exact": f"{group['exact'].sum():.0f}",
                "said unique": f"{group['unique'].sum():.0f}",
                "of these wrong": f"{group['wrongly_sure'].sum():.0f}",
                "CPU-s": _seconds(group["seconds"].median()),
            }
        )
    return pd.DataFrame(lines)


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def free_table(record: Record) -> pd.DataFrame:
    """Return what the embedding's rows add: the same batches, only words with such a row tried, and all tried."""
    frame = record.frame()
    frame = frame[frame["part"] == "read"]
    keys = ["kind", "layers", "width", "stage", "size", "batch"]
    both = frame[frame["words"] == "free"].merge(frame[frame["words"] == "all"], on=keys, suffixes=("_free", "_all"))
    return pd.DataFrame(
        [
            {
                "model": _named(kind, layers),
                "sentences": f"{size:.0f}",
                "batches": len(group),
                "exact, words given": f"{group['exact_free'].sum():.0f}",
                "exact, all tried": f"{group['exact_all'].sum():.0f}",
                "CPU-s, words given": _seconds(group["seconds_free"].median()),
                "CPU-s, all tried": _seconds(group["seconds_all"].median()),
            }
            for (kind, layers, size), group in both.groupby(["kind", "layers", "size"], sort=False)
        ]
    )


def _defense_name(defense: str, level: Any) -> str:
    shown = {
        "none": "none",
        "noise": f"noise, {level:g} of a tensor's size",
        "half": "float16 numbers",
        "bfloat16": "bfloat16 numbers",
        "quantize": f"{level:.0f} bits",
        "grad-drop": f"smallest {level:.0%} dropped",
        "sign": "sign",
    }
    return shown[defense]


def defense_table(record: Record) -> pd.DataFrame:
    """Return what defences leave of the sentences, and of the gradient."""
    frame = record.frame()
    frame = frame[frame["part"] == "defense"]
    return pd.DataFrame(
        [
            {
                "defence": _defense_name(str(defense), level),
                "cosine": f"{group['utility'].mean():.4f}",
                "batches": len(group),
                "exact": f"{group['exact'].sum():.0f}",
                "sentences right": f"{group['right'].mean():.0%}",
                "said unique": f"{group['unique'].sum():.0f}",
                "of these wrong": f"{group['wrongly_sure'].sum():.0f}",
            }
            for (defense, level), group in frame.groupby(["defense", "level"], sort=False)
        ]
    )


def counted_text(text: str) -> str:
    """Return the text whose batches are counted: the one that was attacked, or our own where that is not at hand."""
    try:
        data.texts(text, "test"), data.vocabulary(text)
    except MissingData:
        return "sentences"
    return text


def limits_table(text: str, seed: int) -> pd.DataFrame:
    """Return how many different prefixes batches have, a line a size, and of how many a layer's span has room for them.

    Counted on the texts alone: no gradient is computed.
    """
    lines = []
    for size in COUNTED:
        prefixes, places = [], []
        for number in range(BATCHES):
            private = private_of(text, size, number, seed)
            prefixes.append(len({tuple(own[:length]) for own in private for length in range(len(own) + 1)}))
            # The start is a word at a place of its own.
            places.append(1 + len({(place, word) for own in private for place, word in enumerate(own)}))
        line = {
            "sentences": str(size),
            "prefixes, median": f"{median(prefixes):.0f}",
            "most": str(max(prefixes)),
            "words at places, median": f"{median(places):.0f}",
        }
        shares = {
            f"{name}, {dimensions}": f"{sum(count < dimensions for count in prefixes) / BATCHES:.0%}"
            for name, dimensions in ROOM
        }
        lines.append(line | shares)
    return pd.DataFrame(lines)


def training_table(record: Record) -> pd.DataFrame:
    """Return how well the trained models know their text: the mean loss a token."""
    frame = record.frame()
    if "loss_last" not in frame:
        return pd.DataFrame({"model": []})
    frame = frame[frame["loss_last"].notna()].drop_duplicates(["kind", "layers", "width"])
    return pd.DataFrame(
        {
            "model": [_named(kind, layers) for kind, layers in zip(frame["kind"], frame["layers"], strict=True)],
            "width": frame["width"].map("{:.0f}".format),
            "first epoch": frame["loss_first"].map("{:.2f}".format),
            "last epoch": frame["loss_last"].map("{:.2f}".format),
            "attacked sentences": frame["loss_test"].map("{:.2f}".format),
        }
    )


def figure_reading(record: Record) -> Figure:
    """Draw a sentence as it appears: at each step the word that lies in the span, far below all others."""
    frame = record.frame()
    frame = frame[(frame["part"] == "figure") & frame["nearest"].notna()]
    if frame.empty:
        return figures.nothing("no sentence was read, or the model is no recurrent one")
    figure, axes = figures.panels(1, 1, height=3.6)
    axis = axes[0][0]
    for step, word, miss, nearest in zip(frame["step"], frame["word"], frame["miss"], frame["nearest"], strict=True):
        others = [one for one in nearest if miss is None or pd.isna(miss) or one != miss]
        axis.scatter([step] * len(others), others, s=9, color="0.6", linewidths=0, zorder=2)
        if word:
            axis.scatter([step], [miss], s=42, color=figures.COLOURS[1], zorder=3)
            # A piece that does not begin a word is marked; every second stands lower, for long words have no room.
            shown, lower = word.removeprefix("▁") if word.startswith("▁") else f"-{word}", -17 - 14 * (step % 2)
            style = {"ha": "center", "fontsize": 10, "fontweight": "bold"}
            axis.annotate(shown, (step, miss), (0, lower), textcoords="offset points", **style)
    low = float(frame["miss"].min())
    axis.set(yscale="log", ylim=(low / 80, 3), xlim=(-0.6, len(frame) - 0.4))
    axis.set(xlabel="step", ylabel="outside of the span, share of its size")
    axis.set_xticks(range(len(frame)), [str(step + 1) for step in range(len(frame))])
    return figure


def figure_noise(record: Record) -> Figure:
    """Draw the share of sentences read against the noise."""
    frame = record.frame()
    frame = frame[(frame["part"] == "defense") & (frame["defense"] == "noise")]
    if frame.empty:
        return figures.nothing("no noise was tried")
    figure, axes = figures.panels(1, 1, height=2.8)
    axis = axes[0][0]
    groups = frame.groupby("level")
    for column, label, mark, colour in (
        ("right", "sentences that are right", "o", figures.COLOURS[0]),
        ("unique", "batches said to be unique", "s", figures.COLOURS[1]),
        ("utility", "cosine to the clean gradient", "x", figures.COLOURS[2]),
    ):
        means = groups[column].mean().astype(float)
        axis.plot(means.index, means, marker=mark, color=colour, label=label)
    axis.set(
        xscale="log", xlabel="noise, in parts of each tensor's root mean square", ylabel="share", ylim=(-0.03, 1.05)
    )
    figures.legend_below(figure, 3)
    return figure
