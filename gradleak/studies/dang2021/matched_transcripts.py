"""Transcripts by matching gradients, and from the last layer alone

dang2021, section 4: Table 5 and Figure 2; Table 2's baseline.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field
from scipy.stats import binomtest

from gradleak import studies
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.labels.hard.rlg import rlg
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences.matching import OURS, PRINTED, Matched, match_transcript
from gradleak.sequences.observed import observe_speech
from gradleak.sequences.recovered import read_recovered
from gradleak.sequences.transcripts import read_transcripts
from gradleak.show import figures
from gradleak.studies.dang2021.transcripts import edits
from gradleak.studies.dang2021.words import recogniser_of, stage_of, tokens_of

PLACE = "Section 4, Table 5, Figure 2; Table 2"
SMALLEST: dict[str, Any] = {"rows": ["sentences/softmax/0/1/1"], "stages": ["0/2"], "lengths": ["4/1"]}
SIZE = "small"
SEARCHES = {"printed": PRINTED, "softmax": OURS}
TITLES = {"printed": "as printed", "softmax": "labels by softmax"}
# What is matched or read; the rest of a gradient is not looked at.
DECODER = ("cells.0.weight_ih", "cells.0.weight_hh", "cells.0.bias_ih")
LAST = ("head.weight", "head.bias")


class Row(Form):
    """Texts, how they are searched for, how long the recogniser has learned, starts with the bag, and utterances."""

    source: Literal["sentences", "librispeech"]
    search: Literal["printed", "softmax"]
    trained: Whole
    starts: Whole
    utterances: Whole

    def check(self) -> None:
        """Say so where nothing is left."""
        if min(self.starts, self.utterances) < 1:
            raise InputError("starts and utterances are 1 at least")


class Stage(Form):
    """How long a recogniser of our own sentences has learned, and how many utterances are read."""

    trained: Whole
    utterances: Whole

    def check(self) -> None:
        """Say so where nothing is left."""
        if self.utterances < 1:
            raise InputError("utterances are 1 at least")


class Length(Form):
    """So many tokens, and how many utterances of them."""

    tokens: Whole
    utterances: Whole

    def check(self) -> None:
        """Say so where nothing is left."""
        if min(self.tokens, self.utterances) < 1:
            raise InputError("tokens and utterances are 1 at least")


class Parameters(studies.Parameters):
    """What a rerun may change."""

    rows: list[Row] = Field(
        ["sentences/printed/0/2/1", "sentences/softmax/0/1/2"],
        validate_default=True,
        description="texts/search/steps of training/starts with the bag/utterances",
    )
    steps: int = Field(120, ge=1, description="steps of the search as printed")
    stages: list[Stage] = Field(["0/4", "4/4"], validate_default=True, description="steps of training/utterances")
    source: Literal["sentences", "librispeech"] = Field("sentences", description="texts, read from the last layer")
    lengths: list[Length] = Field(
        ["4/2", "12/1"], validate_default=True, description="tokens/utterances, read from the last layer alone"
    )

    paper: ClassVar[dict[str, Any]] = {
        "rows": [
            "sentences/printed/0/5/24",
            "sentences/softmax/0/1/24",
            "sentences/softmax/100/1/12",
            "sentences/softmax/400/1/12",
            "librispeech/softmax/0/1/24",
            "librispeech/printed/0/1/6",
        ],
        "steps": 1200,
        "stages": ["0/80", "25/80", "100/80", "400/80"],
        "source": "librispeech",
        "lengths": ["4/2", "8/2", "12/2", "16/2", "20/2", "24/2", "28/2"],
    }


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads: texts are none."""
    del parameters
    return []


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    most = max(row.utterances for row in parameters.rows)
    sources = " and ".join(dict.fromkeys(text.TITLES[row.source] for row in parameters.rows))
    return f"up to {most} utterances a search, {sources}, made-up speech"


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one utterance's searches, a stage's closed forms, utterances of one length."""
    common = {"seed": parameters.seed, "device": "cpu"}
    matched = [
        {"part": "matching", "source": row.source, "search": row.search, "trained": row.trained, "starts": row.starts}
        | {"steps": parameters.steps if row.search == "printed" else OURS.steps}
        | {"utterances": row.utterances, "number": number, "length": 0}
        for row in parameters.rows
        for number in range(row.utterances)
    ]
    plain: dict[str, Any] = {"search": "", "starts": 0, "steps": 0}
    staged = [
        {"part": "stages", "source": "sentences", "trained": stage.trained, "utterances": stage.utterances}
        | {"number": 0, "length": 0}
        | plain
        for stage in parameters.stages
    ]
    alone = [
        {"part": "last layer", "source": parameters.source, "trained": 0, "utterances": one.utterances}
        | {"number": number, "length": one.tokens}
        | plain
        for one in parameters.lengths
        for number in range(one.utterances)
    ]
    return [inputs | common for inputs in matched + staged + alone]


def trial(
    part: str,
    source: str,
    search: str,
    trained: int,
    starts: int,
    steps: int,
    utterances: int,
    number: int,
    length: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Return the rows of one utterance, matched or read from the last layer, or of a stage's utterances."""
    del device
    if part == "stages":
        return [_read(source, trained, said, seed) for said in text.texts(source, "test")[:utterances]]
    if part == "last layer":
        return [_from_last(source, tokens_long(source, length, number), seed)]
    return _matched(source, search, trained, starts, steps, short(source, utterances)[number], seed)


def short(source: str, count: int) -> list[str]:
    """Return so many texts that are attacked: of LibriSpeech's evenly over all, of our own the shortest."""
    every = text.texts(source, "test")
    if count > len(every):
        raise InputError(f"there are {len(every)} utterances to attack; {count} were asked for")
    if source == "sentences":
        lengths = [len(tokens) for tokens in tokens_of(source, every)]
        return [every[place] for place in np.argsort(lengths, kind="stable")[:count]]
    return [every[place * len(every) // count] for place in range(count)]


def tokens_long(source: str, length: int, number: int) -> list[int]:
    """Return the first tokens of a text that has enough of them, and the end mark: so many in all."""
    every = tokens_of(source, text.texts(source))
    longer = [one for one in every if len(one) >= length]
    if not longer:
        raise InputError(f"no text of '{source}' makes {length} tokens")
    chosen = longer[number * 7 % len(longer)]
    return [*chosen[: length - 1], text.vocabulary(source).end]


def _matched(
    source: str, search: str, trained: int, starts: int, steps: int, said: str, seed: int
) -> list[dict[str, Any]]:
    """Match one utterance, without the bag from one start and with it from several; a row a way to do it."""
    model = recogniser_of(SIZE, source, trained, seed)
    (tokens,) = tokens_of(source, [said])
    leak = observe_speech(model, [pseudo_speech(said)], [tokens], only=[*DECODER, *LAST])
    way = replace(SEARCHES[search], steps=steps)
    rows: list[dict[str, Any]] = []
    for bag, count in (("without", 1), ("with", starts)):
        started = time.process_time()
        found = match_transcript(
            leak, way, bag="revealed" if bag == "with" else None, starts=count, seed=seed,
        )  # fmt: skip
        seconds = time.process_time() - started
        # The first start is what one run would have given, for its share of the time.
        tries = {1: found.attempts[0], count: found.tokens}
        rows += [
            {"bag": bag, "best_of": best, "seconds": seconds * best / count}
            | _measured(source, read, tokens)
            | _of_search(found, best)
            for best, read in tries.items()
        ]
    exact = {(row["bag"], row["best_of"]): float(row["exact"]) for row in rows}
    gains = {
        "bag_gains": exact["with", 1] - exact["without", 1],
        "starts_gain": exact["with", starts] - exact["with", 1],
    }
    return [*rows, {"bag": "", "best_of": 0} | gains]


def _of_search(found: Matched, best: int) -> dict[str, Any]:
    nearest = float(found.distances[:best].min())
    return {"variables": found.variables, "distance": nearest}


def _measured(source: str, read: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """Compare a transcript with what was said, in order and as a bag."""
    words = text.vocabulary(source)
    said = words.decode(tokens).split()
    return {
        "length": len(tokens),
        "exact": list(read) == list(tokens),
        "word_errors": edits(words.decode(read).split(), said) / max(1, len(said)),
    } | _bags(set(read), set(tokens))


def _bags(found: set[int], truth: set[int]) -> dict[str, Any]:
    both = len(found & truth)
    return {
        "precision": both / len(found) if found else 0.0,
        "recall": both / len(truth),
        "f1": 2 * both / (len(found) + len(truth)),
        "bag_exact": found == truth,
    }


def _read(source: str, trained: int, said: str, seed: int) -> dict[str, Any]:
    """Read the bag and the transcript of one utterance in closed form."""
    model = recogniser_of(SIZE, source, trained, seed)
    (tokens,) = tokens_of(source, [said])
    leak = observe_speech(model, [pseudo_speech(said)], [tokens], only=[*DECODER, LAST[0]])
    started = time.process_time()
    found = read_transcripts(leak)
    seconds = time.process_time() - started
    # The closed form leaves the end mark out.
    read = [*found.tokens[0], text.vocabulary(source).end] if len(found.tokens) == 1 else []
    bag = rlg(leak.weight_gradient)
    return {"seconds": seconds} | _measured(source, read, tokens) | _bags(bag, set(tokens))


def _from_last(source: str, tokens: Sequence[int], seed: int) -> dict[str, Any]:
    """Read a transcript of so many tokens from the last layer's gradient alone."""
    said = text.vocabulary(source).decode(tokens)
    leak = observe_speech(recogniser_of(SIZE, source, 0, seed), [pseudo_speech(said)], [tokens], only=LAST)
    started = time.process_time()
    found = read_recovered(leak)
    seconds = time.process_time() - started
    unique = found.status == "unique"
    measured = _measured(source, found.tokens, tokens)
    return {"seconds": seconds, "steps_found": found.steps, "unique": unique} | measured | {
        "wrongly_sure": unique and not measured["exact"]
    }  # fmt: skip


def _searches(record: Record) -> pd.DataFrame:
    """Return the rows of searches, without those that compare two."""
    frame = record.part("matching")
    return frame[frame["best_of"] > 0].astype({"best_of": int, "exact": bool, "bag_exact": bool})


def interval(values: pd.Series[Any]) -> tuple[float, float]:
    """Return where a share lies with 95 %, from its successes."""
    found = binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def share(values: pd.Series[Any]) -> str:
    """Return how many succeeded, and where the share lies with 95 %."""
    low, high = interval(values)
    return f"{values.sum():.0f} of {len(values)} ({low:.0%} to {high:.0%})"


def table(record: Record) -> pd.DataFrame:
    """Return Table 5: a line a text, search, bag and number of starts, untrained."""
    frame = _searches(record)
    keys = ["source", "search", "bag", "best_of"]
    return pd.DataFrame(
        [
            {
                "texts": text.TITLES[str(source)],
                "search": TITLES[str(search)],
                "bag": bag,
                "runs": f"{best:.0f}",
                "unknowns": f"{group['variables'].mean():,.0f}",
                "exact": share(group["exact"]),
                "word errors": f"{group['word_errors'].mean():.3f}",
                "distance": f"{group['distance'].median():.1g}",
                "CPU-s": f"{group['seconds'].median():.2g}",
            }
            for (source, search, bag, best), group in frame[frame["trained"] == 0].groupby(keys, sort=False)
        ]
    )


def bag_table(record: Record) -> pd.DataFrame:
    """Return Table 2's baseline: the bag that matching without it gives, and the closed form's."""
    frame = _searches(record)
    frame = frame[(frame["bag"] == "without") & (frame["trained"] == 0)]
    groups = [
        (f"matching, {TITLES[str(search)]}", str(source), group)
        for (source, search), group in frame.groupby(["source", "search"], sort=False)
    ]
    stages = record.part("stages")
    groups.append(("RLG, ours", "sentences", stages[stages["trained"] == stages["trained"].min()]))
    return pd.DataFrame(
        [
            {
                "attack": name,
                "texts": text.TITLES[source],
                "precision": f"{group['precision'].mean():.3f}",
                "recall": f"{group['recall'].mean():.3f}",
                "F1": f"{group['f1'].mean():.3f}",
                "exact": share(group["bag_exact"].astype(bool)),
            }
            for name, source, group in groups
        ]
    )


def last_table(record: Record) -> pd.DataFrame:
    """Return transcripts from the last layer's gradient alone, a line a number of tokens."""
    return pd.DataFrame(
        [
            {
                "tokens": f"{length:.0f}",
                "exact": f"{group['exact'].sum():.0f} of {len(group)}",
                "steps found": f"{group['steps_found'].mean():.1f}",
                "called unique": f"{group['unique'].sum():.0f}",
                "of these wrong": f"{group['wrongly_sure'].sum():.0f}",
                "CPU-s": f"{group['seconds'].median():.2g}",
            }
            for length, group in record.part("last layer").groupby("length", sort=False)
        ]
    )


def figure_ways(record: Record) -> Figure:
    """Draw the share of exact transcripts of every way to match, untrained, with its interval."""
    frame = _searches(record)
    frame = frame[frame["trained"] == 0]
    keys = ["source", "search", "bag", "best_of"]
    groups = [(list(map(str, key)), group) for key, group in frame.groupby(keys, sort=False)][::-1]
    figure, axes = figures.panels(1, 1, height=0.8 + 0.36 * len(groups))
    axis = axes[0][0]
    names = []
    for place, ((source, search, bag, best), group) in enumerate(groups):
        low, high = interval(group["exact"])
        colour = figures.COLOURS[list(SEARCHES).index(search)]
        axis.plot([low, high], [place, place], color=colour, linewidth=2)
        axis.plot([group["exact"].mean()], [place], marker="o" if bag == "with" else "s", markersize=8, color=colour)
        runs = "" if best == "1" else f", best of {best}"
        names.append(f"{TITLES[search]}, {bag} the bag{runs}\n{text.TITLES[source]}")
    axis.set_yticks(range(len(names)), names, fontsize=8.5)
    axis.set(xlim=(-0.03, 1.03), xlabel="transcripts exact", ylim=(-0.6, len(names) - 0.4))
    axis.grid(visible=False, axis="y")
    return figure


def curves(record: Record) -> dict[str, pd.Series[Any]]:
    """Return five curves as Figure 2 has them, each by steps of training."""
    stages = record.part("stages").astype({"exact": float, "bag_exact": float}).groupby("trained")
    frame = _searches(record).astype({"exact": float})
    one = frame[(frame["source"] == "sentences") & (frame["search"] == "softmax")]
    alone = one[(one["bag"] == "with") & (one["best_of"] == 1)].groupby("trained")
    return {
        "bag, F1": stages["f1"].mean(),
        "bag, exact": stages["bag_exact"].mean(),
        "transcript, exact, closed form": stages["exact"].mean(),
        "transcript, exact, matching": alone["exact"].mean(),
        "transcript, word errors, matching": alone["word_errors"].mean(),
    }


def figure_stages(record: Record) -> Figure:
    """Draw Figure 2: bags and transcripts over training."""
    figure, axes = figures.panels(1, 1, height=3.2)
    axis = axes[0][0]
    every = curves(record)
    stages = sorted({stage for curve in every.values() for stage in curve.index})
    marks = zip(every.items(), figures.COLOURS, figures.DASHES, "osDv^", strict=False)
    for number, ((name, curve), colour, dashes, marker) in enumerate(marks):
        # A little aside, for curves that lie on one another.
        places = [stages.index(stage) + 0.04 * (number - 2) for stage in curve.index]
        axis.plot(places, curve.to_numpy(), marker=marker, color=colour, linestyle=dashes, label=name)
    axis.set_xticks(range(len(stages)), [stage_of(stage) for stage in stages])
    axis.set(ylim=(-0.05, 1.05), ylabel="share")
    axis.margins(x=0.1)
    figures.legend_below(figure, 2)
    return figure


def figure_last(record: Record) -> Figure:
    """Draw the share of transcripts exact from the last layer alone, and the seconds, by the number of tokens."""
    frame = record.part("last layer").astype({"exact": float}).groupby("length")
    figure, axes = figures.panels(1, 2, height=2.6)
    shares, seconds = frame["exact"].mean(), frame["seconds"].median()
    axes[0][0].plot(shares.index, shares.to_numpy(), marker="o")
    axes[0][0].set(ylim=(-0.05, 1.05), xlabel="tokens", ylabel="transcripts exact")
    axes[0][1].plot(seconds.index, seconds.to_numpy(), marker="o", color=figures.COLOURS[1])
    axes[0][1].set(ylim=(0, None), xlabel="tokens", ylabel="CPU-seconds")
    return figure
