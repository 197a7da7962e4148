"""Transcripts in closed form: what a recogniser's decoder read, in order

dang2021, section 4: what its Table 5 and Figure 2 reach by matching gradients; and beyond it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pydantic import Field

from gradleak import studies
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.models.recogniser import SIZES, Recogniser
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.sequences.transcripts import Transcripts, read_transcripts, step_misses
from gradleak.show import figures
from gradleak.studies.dang2021.words import Row, recogniser_of, spoken, stage_of, tokens_of, utterances_of

PLACE = "Section 4, Table 5, Figure 2"
SMALLEST: dict[str, Any] = {"rows": ["small/0/2"], "batches": ["2/1"]}
CHUNK = 50  # utterances a trial
# What reads the first layer's states, with one layer of decoder and with two.
NEXT = (("head.weight",), ("cells.1.weight_ih", "head.weight"))
SHOWN = 0.7  # the figure's utterance, as a share of a list sorted by length


class Together(Form):
    """How many utterances a batch, and how many batches."""

    utterances: Whole
    count: Whole

    def check(self) -> None:
        """Say so where nothing is left."""
        if min(self.utterances, self.count) < 1:
            raise InputError("utterances and batches are 1 at least")


class Parameters(studies.Parameters):
    """What a rerun may change."""

    source: Literal["sentences", "librispeech"] = Field("sentences", description="texts that are said")
    rows: list[Row] = Field(
        ["small/0/16", "small/4/8", "small-2/0/6"],
        validate_default=True,
        description="recogniser/steps of training/utterances",
    )
    batches: list[Together] = Field(
        ["2/4", "4/3"], validate_default=True, description="utterances a batch/batches, of the first small recogniser"
    )

    paper: ClassVar[dict[str, Any]] = {
        "source": "librispeech",
        "rows": ["paper/0/101", "small/0/402", "small/100/101", "small/400/402", "small-2/0/101"],
        "batches": ["2/24", "4/24", "8/12", "16/6", "32/3"],
    }


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads: texts are none."""
    del parameters
    return []


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return utterances_of(parameters.rows, parameters.source)


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: some utterances, batches of one size, the figure's one."""
    common = {"source": parameters.source, "seed": parameters.seed, "device": "cpu"}
    alone = [
        {"part": "alone", "size": row.size, "trained": row.trained, "utterances": row.utterances}
        | {"first": first, "form": ""}
        for row in parameters.rows
        for first in range(0, row.utterances, CHUNK)
    ]
    small = next((row.size for row in parameters.rows if row.size in SIZES and row.size != "paper"), "paper")
    one = {"size": small, "trained": 0, "first": 0}
    together = [{"part": "together", "form": str(form), "utterances": 0} | one for form in parameters.batches]
    others = [{"part": part, "form": "", "utterances": 1} | one for part in ("counted", "figure")]
    return [inputs | common for inputs in alone + together + others]


def trial(
    part: str,
    source: str,
    size: str,
    trained: int,
    utterances: int,
    first: int,
    form: str,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Read the transcripts of some utterances; a row an utterance, or a batch of them."""
    del device
    if part == "counted":
        return _counted(source, size)
    model = recogniser_of(size, source, trained, seed)
    if part == "figure":
        every = text.texts(source, "test")
        return _steps(model, source, every[int(SHOWN * len(every))])
    if part == "together":
        batch = Together.of(form)
        every = text.texts(source, "test")
        groups = [_spread(every, number, batch.utterances, seed) for number in range(batch.count)]
        return [{"number": n} | _read(model, source, said) for n, said in enumerate(groups)]
    chosen = list(enumerate(spoken(source, utterances)))[first : first + CHUNK]
    return [{"number": number} | _read(model, source, [said]) for number, said in chosen]


def _spread(every: Sequence[str], number: int, size: int, seed: int) -> list[str]:
    """Return texts far apart in a list that is sorted by length."""
    return [every[(number + k * (len(every) // size) + seed) % len(every)] for k in range(size)]


def _read(model: Recogniser, source: str, said: Sequence[str]) -> dict[str, Any]:
    """Observe utterances, read what was said, and compare."""
    words = text.vocabulary(source)
    tokens = tokens_of(source, said)
    leak = observe_speech(
        model, [pseudo_speech(one) for one in said], tokens, only=[*FIRST, *NEXT[len(model.cells) > 1]]
    )
    started = time.process_time()
    found = read_transcripts(leak, vocabulary=words)
    seconds = time.process_time() - started
    return {
        "attack": "closed form",
        "seconds": seconds,
        "length": sum(map(len, tokens)),
        "shared": len({one[0] for one in tokens}) < len(tokens),
        "worst": max((miss for miss, _ in found.misses), default=1.0),
        "other": min((other for _, other in found.misses), default=0.0),
        "length_error": abs(found.inputs - sum(map(len, tokens)) + len(tokens) - 1),
    } | _scores(found, [one[:-1] for one in tokens], [words.decode(one) for one in tokens])


def _scores(found: Transcripts, tokens: Sequence[Sequence[int]], said: Sequence[str]) -> dict[str, Any]:
    """Return how many transcripts of a batch were read, and how many words are wrong."""
    truth = [list(one) for one in tokens]
    hits = sum(one in truth for one in found.tokens)
    exact = sorted(found.tokens) == sorted(truth)
    unique = all(one == "unique" for one in found.status) and bool(found.status)
    errors = 0.0
    if len(said) == 1 and found.texts is not None:
        read = found.texts[0] if len(found.texts) == 1 else ""
        errors = edits(read.split(), said[0].split()) / max(1, len(said[0].split()))
    return {
        "exact": exact,
        "read": hits,
        "of": len(truth),
        "unique": unique,
        "wrongly_sure": unique and not exact,
        "word_errors": errors,
    }


def edits(found: Sequence[str], truth: Sequence[str]) -> int:
    """Return the fewest words to put in, leave out or change that make one text the other."""
    row = list(range(len(truth) + 1))
    for place, word in enumerate(found, 1):
        left = row
        row = [place]
        for column, other in enumerate(truth, 1):
            row.append(min(row[-1] + 1, left[column] + 1, left[column - 1] + (word != other)))
    return row[-1]


def _counted(source: str, size: str) -> list[dict[str, Any]]:
    """Return how many variables matching has, with contexts of the paper's size: [context; label] of every token."""
    classes, context = len(text.vocabulary(source)), 2 * SIZES["paper" if source == "librispeech" else size].heard
    rows = []
    for number, tokens in enumerate(tokens_of(source, text.texts(source, "test"))):
        steps, bag = len(tokens), len(set(tokens))
        for attack, width in (("matching without the bag", classes), ("matching with the bag", bag)):
            rows.append({"number": number, "attack": attack, "variables": steps * (context + width)})
    return rows


def _steps(model: Recogniser, source: str, said: str) -> list[dict[str, Any]]:
    """Return, for every step of one utterance, how far the word that was read and all others are from the span."""
    words = text.vocabulary(source)
    tokens = tokens_of(source, [said])
    leak = observe_speech(model, [pseudo_speech(said)], tokens, only=FIRST)
    (read,) = read_transcripts(leak).tokens
    rows = []
    for step, (token, misses) in enumerate(zip([*read, None], step_misses(leak, read), strict=True)):
        rest = misses if token is None else torch.cat([misses[:token], misses[token + 1 :]])
        near = rest.sort().values
        rows.append(
            {
                "step": step,
                "piece": words.pieces[token] if token is not None else "",
                "miss": float(misses[token]) if token is not None else None,
                # Of the vocabulary the nearest, and every so manieth.
                "rest": [float(value) for value in near[torch.linspace(0, len(near) - 1, 60).long()]],
            }
        )
    return rows


def table(record: Record) -> pd.DataFrame:
    """Return single utterances: a line a recogniser and stage."""
    lines = []
    for (size, trained), group in record.part("alone").groupby(["size", "trained"], sort=False):
        lines.append(
            {
                "recogniser": size,
                "stage": stage_of(trained),
                "exact": f"{group['exact'].sum():.0f} of {len(group)}",
                "word errors": f"{group['word_errors'].mean():.3f}",
                "called unique": f"{group['unique'].mean():.1%}",
                "of these wrong": f"{group['wrongly_sure'].sum():.0f}",
                "worst word read": f"{group['worst'].max():.1e}",
                "nearest other": f"{group['other'].min():.1e}",
                "CPU-s": f"{group['seconds'].median():.2g}",
            }
        )
    return pd.DataFrame(lines)


def batch_table(record: Record) -> pd.DataFrame:
    """Return batches of utterances, a line a size, apart by whether two begin with the same word."""
    lines = []
    for (form, shared), group in record.part("together").groupby(["form", "shared"], sort=False):
        lines.append(
            {
                "utterances": str(Together.of(str(form)).utterances),
                "two begin alike": "yes" if shared else "no",
                "batches": f"{len(group)}",
                "whole": f"{group['exact'].mean():.0%}",
                "transcripts read": f"{group['read'].sum():.0f} of {group['of'].sum():.0f}",
                "called unique": f"{group['unique'].mean():.0%}",
                "of these wrong": f"{group['wrongly_sure'].sum():.0f}",
                "CPU-s": f"{group['seconds'].median():.2g}",
            }
        )
    return pd.DataFrame(lines)


def variables_table(record: Record) -> pd.DataFrame:
    """Return how many unknowns matching has, on average, and the closed form: none."""
    frame = record.part("counted")
    return pd.DataFrame(
        [
            {"attack": attack, "unknowns": f"{group['variables'].mean():,.0f} ± {group['variables'].std():,.0f}"}
            for attack, group in frame.groupby("attack", sort=False)
        ]
        + [{"attack": "closed form", "unknowns": "0"}]
    )


def figure_steps(record: Record) -> Figure:
    """Draw one sentence as it appears: at every step, how far each word of the vocabulary is from the span."""
    frame = record.part("figure")
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    generator = np.random.default_rng(0)
    for step, rest in zip(frame["step"], frame["rest"], strict=True):
        aside = step + generator.uniform(-0.3, 0.3, len(rest))
        axis.scatter(aside, rest, s=10, alpha=0.5, color=figures.COLOURS[2], linewidth=0)
    read = frame.dropna(subset=["miss"])
    axis.scatter(read["step"], read["miss"].astype(float), s=36, marker="D", color=figures.COLOURS[1], zorder=3)
    axis.set(yscale="log", ylabel="share outside the span", xlim=(-0.6, len(frame) - 0.4), ylim=(1e-9, 3))
    pieces = [piece.replace(text.SPACE, "") or "end" for piece in frame["piece"]]
    axis.set_xticks(list(frame["step"]), pieces, rotation=30 if len(pieces) > 9 else 0)
    axis.grid(visible=False, axis="x")
    axis.legend(
        handles=[
            Line2D([], [], marker=marker, color=figures.COLOURS[colour], linestyle="", label=label)
            for marker, colour, label in (("D", 1, "the word that is read"), ("o", 2, "every other word, a sample"))
        ],
        loc="center right",
    )
    return figure


def figure_misses(record: Record) -> Figure:
    """Draw the worst word read and the nearest other word of every utterance, a panel a recogniser and stage."""
    groups = list(record.part("alone").groupby(["size", "trained"], sort=False))
    figure, axes = figures.panels(1, len(groups), height=2.8, sharey=True)
    for axis, ((size, trained), group) in zip(axes[0], groups, strict=True):
        jitter = np.random.default_rng(0).uniform(-0.3, 0.3, len(group))
        for name, label, colour in (
            ("worst", "worst word read", figures.COLOURS[1]),
            ("other", "nearest other word", figures.COLOURS[2]),
        ):
            axis.scatter(group["length"] + jitter, group[name], s=9, alpha=0.7, color=colour, label=label, linewidth=0)
        axis.set(yscale="log", title=f"{size}\n{stage_of(trained)}", xlabel="tokens", ylabel="")
    axes[0][0].set_ylabel("share outside the span")
    figures.legend_below(figure, 2)
    return figure
