"""Transcripts in closed form: the words that a recogniser's decoder reads, in order

dang2021, section 4: its Table 5 and Figure 2 by a closed form instead of matching gradients; and cases beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from gradleak import claims, studies
from gradleak.data import text
from gradleak.models.recogniser import SIZES
from gradleak.runs.forms import Form
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST
from gradleak.sequences.transcripts import read_transcripts, step_misses
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import cells, greatest, least, median, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.dang2021.columns import COLUMNS
from gradleak.studies.shared.outcomes import RECOGNISERS, Outcome, collected, share_of, stages
from gradleak.studies.shared.proportions import successes
from gradleak.studies.shared.recognisers import (
    AttackedRecogniser,
    OnRecogniser,
    Positive,
    Source,
    about_utterances,
    attacked_texts,
    texts_far_apart,
    tokens_of,
    with_stage,
)
from gradleak.studies.shared.transcript_errors import certified, distances, timed, word_error_rate

PLACE = "Section 4, Table 5 (number of variables)"
CHUNK = 50  # utterances per experiment
# The parameters that take the states of the decoder's first layer, if it has one layer and if it has two.
NEXT = (("head.weight",), ("cells.1.weight_ih", "head.weight"))
SHOWN = 0.7  # the figure's utterance, as a share of a list sorted by length
SAMPLE = 60  # wrong words that the figure shows at each step


class Together(Form):
    """Batches of utterances, written "utterances per batch/batches"."""

    utterances: Positive
    count: Positive


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


class ReadTranscripts(OnRecogniser):
    """Utterances on a recogniser of one `size`."""

    size: str

    def read(self, number: int, tokens: Sequence[list[int]]) -> Columns:
        """Observe a batch of utterances, read their transcripts, and compare these with the truth."""
        model, words = self.recogniser(self.size), text.vocabulary(self.source)
        leak = self.leak_of(tokens, self.size, only=[*FIRST, *NEXT[len(model.cells) > 1]])
        found, seconds = timed(read_transcripts, leak, vocabulary=words)
        truth = [one[:-1] for one in tokens]
        length = sum(map(len, tokens))
        said, texts = words.decode(tokens[0]), found.texts or []
        errors = word_error_rate(texts[0] if len(texts) == 1 else "", said) if len(tokens) == 1 else 0.0
        return {
            "number": number,
            "attack": "closed form",
            "seconds": seconds,
            "length": length,
            "shared": len({one[0] for one in tokens}) < len(tokens),
            "length_error": abs(found.inputs - length + len(tokens) - 1),
            "read": sum(one in truth for one in found.tokens),
            "of": len(truth),
            "word_errors": errors,
            **certified(found.tokens, truth, found.status),
            **distances(found),
        }


class SingleUtterances(ReadTranscripts):
    """Utterances that are read one by one, numbered from `first`."""

    part: ClassVar[str] = "alone"
    utterances: int
    first: int

    def run(self) -> Iterator[Columns]:
        """Read each utterance."""
        every = tokens_of(self.source, attacked_texts(self.source, self.utterances))
        for number, tokens in list(enumerate(every))[self.first : self.first + CHUNK]:
            yield self.read(number, [tokens])


class Batches(ReadTranscripts):
    """Batches of several utterances with one common gradient; `form` is a `Together`."""

    part: ClassVar[str] = "together"
    form: str

    def run(self) -> Iterator[Columns]:
        """Read each batch."""
        batch = Together.of(self.form)
        for number in range(batch.count):
            said = texts_far_apart(self.source, number, batch.utterances, self.seed)
            yield self.read(number, tokens_of(self.source, said))


class CountUnknowns(ReadTranscripts):
    """The number of variables that matching has for each text: a context and a label for every token."""

    part: ClassVar[str] = "counted"

    def run(self) -> Iterator[Columns]:
        """Count the variables, with contexts of the paper's size."""
        classes = len(text.vocabulary(self.source))
        context = 2 * SIZES["paper" if self.source == "librispeech" else self.size].heard
        for number, tokens in enumerate(tokens_of(self.source, text.texts(self.source, "test"))):
            labels = {"matching without the bag": classes, "matching with the bag": len(set(tokens))}
            for attack, width in labels.items():
                yield {"number": number, "attack": attack, "variables": len(tokens) * (context + width)}


class StepByStep(ReadTranscripts):
    """One utterance for the figure: the relative distances of the right word and of others from the span."""

    part: ClassVar[str] = "figure"

    def run(self) -> Iterator[Columns]:
        """Read the utterance, and measure the distances."""
        words, every = text.vocabulary(self.source), text.texts(self.source, "test")
        leak = self.leak_of(tokens_of(self.source, [every[int(SHOWN * len(every))]]), self.size, only=FIRST)
        (read,) = read_transcripts(leak).tokens
        for step, (token, misses) in enumerate(zip([*read, None], step_misses(leak, read), strict=True)):
            rest = misses if token is None else torch.cat([misses[:token], misses[token + 1 :]])
            near = rest.sort().values
            yield {
                "step": step,
                "piece": words.pieces[token] if token is not None else "",
                "miss": float(misses[token]) if token is not None else None,
                # The nearest and the farthest word of the vocabulary, and some in between.
                "rest": near[torch.linspace(0, len(near) - 1, SAMPLE).long()].tolist(),
            }


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
    """Return the results for single utterances, a row for each recogniser and stage of training."""
    return summary(
        with_stage(record.rows(SingleUtterances)),
        {"recogniser": "size", "stage": "stage"},
        {"transcripts exact": successes("exact")}
        | cells(COLUMNS, "unique", "wrongly_sure", by=total)
        | cells(COLUMNS, "worst", by=greatest)
        | cells(COLUMNS, "other", by=least)
        | cells(COLUMNS, "seconds", by=median),
    )


def batch_table(record: Record) -> pd.DataFrame:
    """Return the results for batches, a row for each batch size and whether two utterances begin with the same word."""
    rows = record.rows(Batches).astype({"of": int})
    return summary(
        rows.assign(alike=rows["shared"].map({True: "yes", False: "no"})),
        {"utterances per batch": "of", "two begin with the same word": "alike"},
        {"batches read": successes("exact")}
        | cells(COLUMNS, "unique", "wrongly_sure", by=total)
        | cells(COLUMNS, "seconds", by=median),
    )


def figure_steps(record: Record) -> Figure:
    """Draw the relative distances of the right word and of a sample of others from the span at each step."""
    frame = record.rows(StepByStep)
    read, others = frame.dropna(subset=["miss"]), frame.explode("rest")
    figure, axes = figures.panels(1, 1, height=3.4)
    axis = axes[0][0]
    aside = others["step"] + np.random.default_rng(0).uniform(-0.3, 0.3, len(others))
    misses, rest = read["miss"].astype(float), others["rest"].astype(float)
    said, other = figures.COLOURS[1:3]
    axis.scatter(read["step"], misses, s=36, marker="D", color=said, zorder=3, label="word that was said")
    axis.scatter(aside, rest, s=10, alpha=0.5, color=other, linewidth=0, label="other words (a sample)")
    axis.set(yscale="log", ylabel="share of the vector outside the span", xlim=(-0.6, len(frame) - 0.4), ylim=(1e-9, 3))
    pieces = [piece.replace(text.SPACE, "") or "end" for piece in frame["piece"]]
    axis.set_xticks(list(frame["step"]), pieces, rotation=30 if len(pieces) > 9 else 0)
    axis.grid(visible=False, axis="x")
    axis.legend(loc="center right")
    return figure


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
    together = record.rows(Batches)
    measured = [
        (record.rows(SingleUtterances), share_of("exact", "transcripts read exactly", "utterances")),
        (
            together.assign(right=together["read"] / together["of"]),
            share_of("right", "transcripts read exactly", "batches"),
        ),
    ]
    return [
        outcome
        for rows, measure in measured
        for outcome in collected(
            record, rows, "text", measure, attack="transcript, closed form", network=rows["size"].map(RECOGNISERS),
            training=stages(rows["trained"]), data=rows["source"], batch=rows["of"].astype(int),
        )
    ]  # fmt: skip
