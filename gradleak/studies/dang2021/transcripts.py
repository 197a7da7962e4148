"""Transcripts in closed form: what a recogniser's decoder read, in order

dang2021, section 4: what its Table 5 and Figure 2 reach by matching gradients; and beyond it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

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
from gradleak.show.leaks import Leaks
from gradleak.show.summaries import count, greatest, joined, least, mean, median, share, spread, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.proportions import successes
from gradleak.studies.shared.recognisers import (
    AttackedRecogniser,
    OnRecogniser,
    Source,
    about_utterances,
    attacked_texts,
    stage_of,
    texts_far_apart,
    tokens_of,
    with_stage,
)
from gradleak.studies.shared.transcript_errors import word_error_rate

PLACE = "Section 4, Table 5, Figure 2"
CHUNK = 50  # utterances an experiment
# What reads the first layer's states, with one layer of decoder and with two.
NEXT = (("head.weight",), ("cells.1.weight_ih", "head.weight"))
SHOWN = 0.7  # the figure's utterance, as a share of a list sorted by length
SAMPLE = 60  # words that the figure shows at each step, of those that were not said


class Together(Form):
    """How many utterances a batch, and how many batches."""

    utterances: Whole
    count: Whole

    def check(self) -> None:
        """Say so where nothing is left."""
        if min(self.utterances, self.count) < 1:
            raise InputError("utterances and batches are 1 at least")


class Parameters(studies.Parameters):
    """Which recognisers' utterances are read alone, and how many together."""

    source: Source = setting("sentences", paper="librispeech", about="texts that are said")
    rows: list[AttackedRecogniser] = setting(
        ["small/0/16", "small/4/8", "small-2/0/6"],
        paper=["paper/0/101", "small/0/402", "small/100/101", "small/400/402", "small-2/0/101"],
        smallest=["small/0/2"],
        validate_default=True,
        about="recogniser/steps of training/utterances",
    )
    batches: list[Together] = setting(
        ["2/4", "4/3"],
        paper=["2/24", "4/24", "8/12", "16/6", "32/3"],
        smallest=["2/1"],
        validate_default=True,
        about="utterances a batch/batches, of the first small recogniser",
    )

    def experiments(self) -> Iterator[Experiment]:
        """Give single utterances, batches of each size, the unknowns of matching, and the figure's utterance."""
        for row in self.rows:
            for first in range(0, row.utterances, CHUNK):
                yield SingleUtterances.of(self, **dict(row), first=first, form="")
        small = next((row.size for row in self.rows if row.size in SIZES and row.size != "paper"), "paper")
        one = {"size": small, "trained": 0, "first": 0}
        for form in self.batches:
            yield Batches.of(self, **one, form=str(form), utterances=0)
        yield CountUnknowns.of(self, **one, form="", utterances=1)
        yield StepByStep.of(self, **one, form="", utterances=1)

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return about_utterances(self.rows, self.source)


class ReadTogether(Row):
    """The transcripts of a batch as they were read: `hits` of `utterances` are right, with no word wrong.

    `length`: tokens that were said, and `length_error`: by how many the attack is off; `shared`: whether two utterances
    begin with the same word. `worst`: how far the worst word that was read is from the span, and `other`: the nearest
    of the others. `word_errors`: of single utterances.
    """

    number: int
    attack: str
    seconds: float
    length: int
    shared: bool
    worst: float
    other: float
    length_error: int
    exact: bool
    hits: int = Field(alias="read")
    utterances: int = Field(alias="of")
    unique: bool
    wrongly_sure: bool
    word_errors: float


class Unknowns(Row):
    """How many variables matching has for an utterance."""

    number: int
    attack: str
    variables: int


class Step(Row):
    """A step of an utterance: the word that was read, how far it is from the span, and how far a sample of others.

    The step behind the last word has none.
    """

    step: int
    piece: str
    miss: float | None
    rest: list[float]


class ReadTranscripts(OnRecogniser):
    """Utterances that a recogniser of one `size` hears.

    `first`: the number of the first utterance; `form`: a `Together`, where there are batches. Each experiment states
    all of these inputs, used or not, since records name them so.
    """

    size: str
    first: int
    form: str


class SingleUtterances(ReadTranscripts):
    """Utterances that are read one by one, from number `first` on."""

    part: ClassVar[str] = "alone"

    def run(self) -> Iterator[ReadTogether]:
        """Read each utterance."""
        model = self.recogniser(self.size)
        chosen = list(enumerate(attacked_texts(self.source, self.utterances)))[self.first : self.first + CHUNK]
        for number, said in chosen:
            yield _read_together(model, self.source, number, [said])


class Batches(ReadTranscripts):
    """Batches of utterances in one gradient."""

    part: ClassVar[str] = "together"

    def run(self) -> Iterator[ReadTogether]:
        """Read each batch."""
        model, batch = self.recogniser(self.size), Together.of(self.form)
        for number in range(batch.count):
            said = texts_far_apart(self.source, number, batch.utterances, self.seed)
            yield _read_together(model, self.source, number, said)


class CountUnknowns(ReadTranscripts):
    """How many variables matching has for each text: a context and a label for every token."""

    part: ClassVar[str] = "counted"

    def run(self) -> Iterator[Unknowns]:
        """Count them, with contexts of the paper's size."""
        classes = len(text.vocabulary(self.source))
        context = 2 * SIZES["paper" if self.source == "librispeech" else self.size].heard
        for number, tokens in enumerate(tokens_of(self.source, text.texts(self.source, "test"))):
            steps, bag = len(tokens), len(set(tokens))
            for attack, width in (("matching without the bag", classes), ("matching with the bag", bag)):
                yield Unknowns(number=number, attack=attack, variables=steps * (context + width))


class StepByStep(ReadTranscripts):
    """One utterance, for the figure: at every step, how far the word that was read and all others are from the span."""

    part: ClassVar[str] = "figure"

    def run(self) -> Iterator[Step]:
        """Read the utterance, and measure."""
        words, every = text.vocabulary(self.source), text.texts(self.source, "test")
        said = every[int(SHOWN * len(every))]
        tokens = tokens_of(self.source, [said])
        leak = observe_speech(self.recogniser(self.size), [pseudo_speech(said)], tokens, only=FIRST)
        (read,) = read_transcripts(leak).tokens
        for step, (token, misses) in enumerate(zip([*read, None], step_misses(leak, read), strict=True)):
            rest = misses if token is None else torch.cat([misses[:token], misses[token + 1 :]])
            near = rest.sort().values
            yield Step(
                step=step,
                piece=words.pieces[token] if token is not None else "",
                miss=float(misses[token]) if token is not None else None,
                # The nearest word of the vocabulary, the farthest, and some in between.
                rest=near[torch.linspace(0, len(near) - 1, SAMPLE).long()].tolist(),
            )


def _read_together(model: Recogniser, source: str, number: int, said: Sequence[str]) -> ReadTogether:
    """Observe utterances, read what was said, and compare."""
    words = text.vocabulary(source)
    tokens = tokens_of(source, said)
    sounds = [pseudo_speech(one) for one in said]
    leak = observe_speech(model, sounds, tokens, only=[*FIRST, *NEXT[len(model.cells) > 1]])
    started = time.process_time()
    found = read_transcripts(leak, vocabulary=words)
    seconds = time.process_time() - started
    truth = [one[:-1] for one in tokens]
    exact = sorted(found.tokens) == sorted(truth)
    unique = all(one == "unique" for one in found.status) and bool(found.status)
    return ReadTogether(
        number=number,
        attack="closed form",
        seconds=seconds,
        length=sum(map(len, tokens)),
        shared=len({one[0] for one in tokens}) < len(tokens),
        worst=max((miss for miss, _ in found.misses), default=1.0),
        other=min((other for _, other in found.misses), default=0.0),
        length_error=abs(found.inputs - sum(map(len, tokens)) + len(tokens) - 1),
        exact=exact,
        hits=sum(one in truth for one in found.tokens),
        utterances=len(truth),
        unique=unique,
        wrongly_sure=unique and not exact,
        word_errors=_word_errors(found, [words.decode(one) for one in tokens]),
    )


def _word_errors(found: Transcripts, said: Sequence[str]) -> float:
    """Return the word error rate of a single utterance; several have none."""
    if len(said) != 1 or found.texts is None:
        return 0.0
    return word_error_rate(found.texts[0] if len(found.texts) == 1 else "", said[0])


def table(record: Record) -> pd.DataFrame:
    """Return single utterances: a line a recogniser and stage."""
    return summary(
        with_stage(record.rows(SingleUtterances)),
        {"recogniser": "size", "stage": "stage"},
        {
            "exact": successes("exact"),
            "word errors": mean("word_errors", ".3f"),
            "called unique": share("unique", ".1%"),
            "of these wrong": total("wrongly_sure", ".0f"),
            "worst word read": greatest("worst", ".1e"),
            "nearest other": least("other", ".1e"),
            "CPU-s": median("seconds", ".2g"),
        },
    )


def batch_table(record: Record) -> pd.DataFrame:
    """Return batches of utterances, a line a size, apart by whether two begin with the same word."""
    rows = record.rows(Batches)
    rows = rows.assign(
        size=[Together.of(form).utterances for form in rows["form"]],
        alike=["yes" if shared else "no" for shared in rows["shared"]],
    )
    return summary(
        rows,
        {"utterances": "size", "two begin alike": "alike"},
        {
            "batches": count(),
            "whole": share("exact"),
            "transcripts read": joined(" of ", total("read", ".0f"), total("of", ".0f")),
            "called unique": share("unique"),
            "of these wrong": total("wrongly_sure", ".0f"),
            "CPU-s": median("seconds", ".2g"),
        },
    )


def variables_table(record: Record) -> pd.DataFrame:
    """Return how many unknowns matching has, on average, and the closed form: none."""
    lines = summary(record.rows(CountUnknowns), {"attack": "attack"}, {"unknowns": spread("variables", ",.0f")})
    return pd.concat([lines, pd.DataFrame([{"attack": "closed form", "unknowns": "0"}])], ignore_index=True)


def figure_steps(record: Record) -> Figure:
    """Draw one sentence as it appears: at every step, how far each word of the vocabulary is from the span."""
    frame = record.rows(StepByStep)
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
    groups = list(record.rows(SingleUtterances).groupby(["size", "trained"], sort=False))
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


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    rows = record.rows(SingleUtterances)
    alone = rows[rows["size"] == "paper"]
    return Leaks(
        "what was said, in order",
        "one utterance; a speech recogniser",
        f"{alone['exact'].sum()} of {len(alone)} transcripts, each word in its place",
        alone["seconds"].median(),
    )
