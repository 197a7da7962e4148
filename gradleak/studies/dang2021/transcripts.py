"""Transcripts in closed form: the words that a recogniser's decoder reads, in order

dang2021, section 4: its Table 5 and Figure 2 by a closed form instead of matching gradients; and cases beyond it.
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

from gradleak import claims, studies
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.models.recogniser import SIZES, Recogniser
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.sequences.transcripts import Transcripts, read_transcripts, step_misses
from gradleak.show import figures
from gradleak.show.drawn import drawn, points
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import count, greatest, joined, least, mean, median, share, spread, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.outcomes import RECOGNISERS, Outcome, collected, share_of, stages
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

PLACE = "Section 4, Table 5 (number of variables)"
CHUNK = 50  # utterances per experiment
# The parameters that take the states of the decoder's first layer, if it has one layer and if it has two.
NEXT = (("head.weight",), ("cells.1.weight_ih", "head.weight"))
SHOWN = 0.7  # the figure's utterance, as a share of a list sorted by length
SAMPLE = 60  # wrong words that the figure shows at each step


class Together(Form):
    """Batches of utterances, written "utterances per batch/batches"."""

    utterances: Whole
    count: Whole

    def check(self) -> None:
        """Raise an error if there is no utterance or no batch."""
        if min(self.utterances, self.count) < 1:
            raise InputError("utterances and batches must be at least 1")


class Parameters(studies.Parameters):
    """Parameters of the page: recognisers with their utterances, and batches of utterances."""

    source: Source = setting(paper="librispeech")
    rows: list[AttackedRecogniser] = setting(
        paper=["paper/0/101", "small/0/402", "small/100/101", "small/400/402", "small-2/0/101"],
        smallest=["small/0/2"],
        validate_default=True,
    )
    batches: list[Together] = setting(
        paper=["2/24", "4/24", "8/12", "16/6", "32/3"], smallest=["2/1"], validate_default=True
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield single utterances, batches of each size, the unknowns of matching, and the figure's utterance."""
        for row in self.rows:
            for first in range(0, row.utterances, CHUNK):
                yield SingleUtterances.of(self, **dict(row), first=first)
        small = next((row.size for row in self.rows if row.size in SIZES and row.size != "paper"), "paper")
        for form in self.batches:
            yield Batches.of(self, size=small, trained=0, form=str(form))
        yield CountUnknowns.of(self, size=small, trained=0)
        yield StepByStep.of(self, size=small, trained=0)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return about_utterances(self.rows, self.source)


class ReadTogether(Row):
    """The result of reading a batch; `hits` of its `utterances` transcripts are right.

    Attributes:
        number: The number of the batch.
        attack: The attack.
        seconds: The CPU time (s).
        length: The true number of tokens.
        shared: Whether two utterances begin with the same word.
        worst: The relative distance from the span of the worst word of a transcript.
        other: The same of the nearest other word.
        length_error: The error of the recovered number of tokens.
        exact: Whether all transcripts are right.
        unique: Whether the attack certified all transcripts as unique.
        wrongly_sure: Whether it did so although one is wrong.
        word_errors: The word error rate, for single utterances only.
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
    """The number of variables that matching has for an utterance."""

    number: int
    attack: str
    variables: int


class Step(Row):
    """The relative distances of words from the span at one step of an utterance.

    Attributes:
        step: The number of the step.
        piece: The word that was read, "" behind the last one.
        miss: The distance of this word.
        rest: The distances of a sample of all other words.
    """

    step: int
    piece: str
    miss: float | None
    rest: list[float]


class ReadTranscripts(OnRecogniser):
    """Utterances on a recogniser of one `size`."""

    size: str


class SingleUtterances(ReadTranscripts):
    """Utterances that are read one by one, numbered from `first`."""

    part: ClassVar[str] = "alone"
    utterances: int
    first: int

    def run(self) -> Iterator[ReadTogether]:
        """Read each utterance."""
        model = self.recogniser(self.size)
        chosen = list(enumerate(attacked_texts(self.source, self.utterances)))[self.first : self.first + CHUNK]
        for number, said in chosen:
            yield _read_together(model, self.source, number, [said])


class Batches(ReadTranscripts):
    """Batches of several utterances with one common gradient; `form` is a `Together`."""

    part: ClassVar[str] = "together"
    form: str

    def run(self) -> Iterator[ReadTogether]:
        """Read each batch."""
        model, batch = self.recogniser(self.size), Together.of(self.form)
        for number in range(batch.count):
            said = texts_far_apart(self.source, number, batch.utterances, self.seed)
            yield _read_together(model, self.source, number, said)


class CountUnknowns(ReadTranscripts):
    """The number of variables that matching has for each text: a context and a label for every token."""

    part: ClassVar[str] = "counted"

    def run(self) -> Iterator[Unknowns]:
        """Count the variables, with contexts of the paper's size."""
        classes = len(text.vocabulary(self.source))
        context = 2 * SIZES["paper" if self.source == "librispeech" else self.size].heard
        for number, tokens in enumerate(tokens_of(self.source, text.texts(self.source, "test"))):
            steps, bag = len(tokens), len(set(tokens))
            for attack, width in (("matching without the bag", classes), ("matching with the bag", bag)):
                yield Unknowns(number=number, attack=attack, variables=steps * (context + width))


class StepByStep(ReadTranscripts):
    """One utterance for the figure: the relative distances of the right word and of others from the span."""

    part: ClassVar[str] = "figure"

    def run(self) -> Iterator[Step]:
        """Read the utterance, and measure the distances."""
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
                # The nearest and the farthest word of the vocabulary, and some in between.
                rest=near[torch.linspace(0, len(near) - 1, SAMPLE).long()].tolist(),
            )


def _read_together(model: Recogniser, source: str, number: int, said: Sequence[str]) -> ReadTogether:
    """Observe utterances, read their transcripts, and compare these with the truth."""
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
    """Return the word error rate of a single utterance, and 0 for several."""
    if len(said) != 1 or found.texts is None:
        return 0.0
    return word_error_rate(found.texts[0] if len(found.texts) == 1 else "", said[0])


def headline(record: Record) -> Headline:
    """Return the finding: one gradient of the decoder's first layer gives the transcript in order."""
    known = claims.judgements(record)
    exact, trained, wrong = known["transcripts-untrained"], known["transcripts-trained"], known["transcripts-sure"]
    return Headline(
        f"One gradient of the decoder's first layer gives {exact.value or 0:.0f} % of the transcripts of single "
        "utterances exactly, word by word and in order, by solving linear equations: without audio, bag of words or "
        f"length, and for trained recognisers as well ({trained.value or 0:.0f} %).",
        true=bool(exact.agrees and trained.agrees and wrong.agrees),
        claim="transcripts-untrained",
        what="transcripts exact, untrained small recogniser, LibriSpeech texts with artificial speech",
        figure=figure_steps,
        of="utterances",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the results for single utterances, a row for each recogniser and stage of training.

    "worst word read" and "nearest other word" are relative distances from the span.
    """
    return summary(
        with_stage(record.rows(SingleUtterances)),
        {"recogniser": "size", "stage": "stage"},
        {
            "transcripts exact": successes("exact"),
            "word error rate": mean("word_errors", ".3f"),
            "called unique": share("unique", ".1%"),
            "of these wrong": total("wrongly_sure", ".0f"),
            "worst word read (share outside)": greatest("worst", ".1e"),
            "nearest other word (share outside)": least("other", ".1e"),
            "CPU time (s)": median("seconds", ".2g"),
        },
    )


def batch_table(record: Record) -> pd.DataFrame:
    """Return the results for batches, a row for each batch size and whether two utterances begin with the same word."""
    rows = record.rows(Batches)
    rows = rows.assign(
        size=[Together.of(form).utterances for form in rows["form"]],
        alike=["yes" if shared else "no" for shared in rows["shared"]],
    )
    return summary(
        rows,
        {"utterances per batch": "size", "two begin with the same word": "alike"},
        {
            "batches": count(),
            "batches read": share("exact"),
            "transcripts read": joined(" of ", total("read", ".0f"), total("of", ".0f")),
            "called unique": share("unique"),
            "of these wrong": total("wrongly_sure", ".0f"),
            "CPU time (s)": median("seconds", ".2g"),
        },
    )


def variables_table(record: Record) -> pd.DataFrame:
    """Return the mean number of unknowns of matching with and without the bag, and of the closed form (none)."""
    lines = summary(record.rows(CountUnknowns), {"attack": "attack"}, {"unknowns": spread("variables", ",.0f")})
    return pd.concat([lines, pd.DataFrame([{"attack": "closed form", "unknowns": "0"}])], ignore_index=True)


def figure_steps(record: Record) -> Figure:
    """Draw the relative distances of the right word and of a sample of others from the span at each step."""
    frame = record.rows(StepByStep)
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    generator = np.random.default_rng(0)
    for step, rest in zip(frame["step"], frame["rest"], strict=True):
        aside = step + generator.uniform(-0.3, 0.3, len(rest))
        axis.scatter(aside, rest, s=10, alpha=0.5, color=figures.COLOURS[2], linewidth=0)
    read = frame.dropna(subset=["miss"])
    axis.scatter(read["step"], read["miss"].astype(float), s=36, marker="D", color=figures.COLOURS[1], zorder=3)
    axis.set(yscale="log", ylabel="share of the vector outside the span", xlim=(-0.6, len(frame) - 0.4), ylim=(1e-9, 3))
    pieces = [piece.replace(text.SPACE, "") or "end" for piece in frame["piece"]]
    axis.set_xticks(list(frame["step"]), pieces, rotation=30 if len(pieces) > 9 else 0)
    axis.grid(visible=False, axis="x")
    axis.legend(
        handles=[
            Line2D([], [], marker=marker, color=figures.COLOURS[colour], linestyle="", label=label)
            for marker, colour, label in (("D", 1, "word that was said"), ("o", 2, "other words (a sample)"))
        ],
        loc="center right",
    )
    return figure


def figure_misses(record: Record) -> Figure:
    """Draw the relative distances from the span against the number of tokens, a panel per recogniser and stage.

    For every utterance they are those of the worst word of the transcript and of the nearest other word.
    """
    frame = record.rows(SingleUtterances)
    return drawn(
        frame.assign(tokens=frame["length"] + np.random.default_rng(0).uniform(-0.3, 0.3, len(frame))),
        points("tokens", "worst", "worst word read", figures.COLOURS[1], alpha=0.7),
        points("tokens", "other", "nearest other word", figures.COLOURS[2], alpha=0.7),
        panels=["size", "trained"],
        title=lambda size, trained: f"{size}\n{stage_of(trained)}",
        across=5,
        height=2.8,
        legend=2,
        yscale="log",
        xlabel="tokens",
        ylabel="share of the vector\noutside the span",
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    alone = line(table(record), "paper", "untrained")
    return Leaks(
        "the transcript of speech",
        "one utterance; an untrained speech recogniser of the paper's size",
        f"{alone['transcripts exact']} transcripts exact",
        f"{alone['CPU time (s)']} s",
        kind="text",
        attack="transcript",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.rows(SingleUtterances)
    exact = share_of("exact", "transcripts read exactly", "utterances")
    found = collected(
        record, rows, "text", exact, attack="transcript, closed form", network=rows["size"].map(RECOGNISERS),
        training=stages(rows["trained"]), data=rows["source"],
    )  # fmt: skip
    rows = record.part("together")
    right = share_of("right", "transcripts read exactly", "batches")
    return found + collected(
        record, rows.assign(right=rows["read"] / rows["of"]), "text", right, attack="transcript, closed form",
        network=rows["size"].map(RECOGNISERS), training=stages(rows["trained"]), data=rows["source"],
        batch=rows["of"].astype(int),
    )  # fmt: skip
