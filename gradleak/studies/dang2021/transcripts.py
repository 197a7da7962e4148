"""Transcripts in closed form: the words that a recogniser's decoder reads, in order

dang2021, section 4: its Table 5 and Figure 2 by a closed form instead of matching gradients; and beyond it batches of
utterances, and speech that is synthesised or recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import claims, studies
from gradleak.data import text
from gradleak.data.audio import can_speak, spoken_digits, synthesised
from gradleak.data.speech import pseudo_speech
from gradleak.models.recogniser import SIZES
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.sequences.transcripts import read_transcripts, step_misses
from gradleak.sequences.words import reveal_words
from gradleak.show import figures
from gradleak.show.drawn import drawn, points
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
    OnUtterances,
    Positive,
    Source,
    about_utterances,
    attacked_texts,
    stage_of,
    texts_far_apart,
    tokens_of,
    with_stage,
)
from gradleak.studies.shared.transcript_errors import certified, distances, timed, word_error_rate

PLACE = "Section 4, Table 5 (number of variables)"
CHUNK, HEARD = 50, 25  # utterances per experiment, in artificial speech and in other speech
# The parameters that take the states of the decoder's first layer, if it has one layer and if it has two.
NEXT = (("head.weight",), ("cells.1.weight_ih", "head.weight"))
SHOWN = 0.7  # the figure's utterance, as a share of a list sorted by length
SAMPLE = 60  # wrong words that the figure shows at each step
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ARTIFICIAL, RECORDED, SYNTHESISED = "artificial", "recorded", "synthesised"  # kinds of speech


class Together(Form):
    """Batches of utterances, written "utterances per batch/batches"."""

    utterances: Positive
    count: Positive


class Voice(Form):
    """A voice of espeak-ng, written "name/words per minute/pitch"."""

    name: str
    rate: Whole = Field(ge=80, le=450)
    pitch: Whole = Field(le=99)


class Parameters(studies.Parameters):
    """Parameters of the page: single utterances, batches, and other speech with its stages of training."""

    source: Source = setting(paper="librispeech")
    rows: list[AttackedRecogniser] = setting(
        paper=["paper/0/101", "small/0/402", "small/100/101", "small/400/402", "small-2/0/101"],
        smallest=["small/0/2"],
        validate_default=True,
    )
    batches: list[Together] = setting(
        paper=["2/24", "4/24", "8/12", "16/6", "32/3"], smallest=["2/1"], validate_default=True
    )
    voices: list[Voice] = setting(
        paper=[
            "en-us/175/50",
            "en-gb/140/35",
            "en-us+f3/210/65",
            "en-gb-scotland/160/40",
            "en-gb-x-rp+f2/190/70",
            "en-us+m3/120/20",
        ],
        smallest=["en-us/175/50"],
        validate_default=True,
    )
    stand_in: bool = setting(paper=False)
    utterances: int = setting(paper=134, smallest=2, ge=1)
    digits: int = setting(paper=60, ge=0, le=500)
    stages: list[Whole] = setting(paper=[0, 100], smallest=[0])

    def experiments(self) -> Iterator[Experiment]:
        """Yield single utterances, batches, the unknowns of matching, the figure's utterance, and other speech."""
        for row in self.rows:
            for first in range(0, row.utterances, CHUNK):
                yield SingleUtterances.of(self, **dict(row), first=first)
        small = next((row.size for row in self.rows if row.size in SIZES and row.size != "paper"), "paper")
        for form in self.batches:
            yield Batches.of(self, size=small, trained=0, form=str(form))
        yield CountUnknowns.of(self, size=small, trained=0)
        yield StepByStep.of(self, size=small, trained=0)
        heard = not self.stand_in or can_speak()
        voices = [str(voice) for voice in self.voices] if heard else [ARTIFICIAL]
        for trained in self.stages:
            for first in range(0, self.utterances, HEARD):
                yield SynthesisedTexts.of(self, voices=voices, trained=trained, first=first)
            for first in range(0, self.digits, HEARD):
                yield RecordedDigits.of(self, utterances=self.digits, trained=trained, first=first)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        digits = f" and {self.digits} strings of recorded digits" if self.digits else ""
        return f"{about_utterances(self.rows, self.source)}, {self.utterances} synthesised utterances{digits}"


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


class HearSpeech(OnUtterances):
    """Utterances of one kind of speech, numbered from `first`."""

    first: int

    def heard(self, said: str, voice: str, number: int) -> Columns:
        """Observe an utterance, read the bag and the transcript, and compare both with the truth."""
        sound = sound_of(said, voice, number)
        (tokens,) = tokens_of(self.source, [said])
        leak = observe_speech(self.recogniser(), [sound], [tokens], only=[*FIRST, "head.weight"])
        (bag, found), seconds = timed(lambda: (reveal_words(leak), read_transcripts(leak)))
        return {
            "number": number,
            "voice": voice,
            "frames": len(sound),
            "length": len(tokens),
            "length_error": abs(bag.count - len(tokens)),
            "bag_exact": bag.tokens == [sorted(set(tokens))],
            "seconds": seconds,
            **certified(found.tokens, [tokens[:-1]], found.status),
            **distances(found),
        }


class SynthesisedTexts(HearSpeech):
    """Texts spoken by `voices` of espeak-ng in turn, or in artificial speech."""

    part: ClassVar[str] = SYNTHESISED
    voices: list[str]

    def run(self) -> Iterator[Columns]:
        """Read each text."""
        every = list(enumerate(attacked_texts(self.source, self.utterances)))
        for number, said in every[self.first : self.first + HEARD]:
            yield self.heard(said, self.voices[number % len(self.voices)], number)


class RecordedDigits(HearSpeech):
    """Strings of digits that people spoke."""

    part: ClassVar[str] = RECORDED

    def run(self) -> Iterator[Columns]:
        """Read each string."""
        for number in range(self.utterances)[self.first : self.first + HEARD]:
            yield self.heard(digits_of(number, self.seed), RECORDED, number)


def digits_of(number: int, seed: int) -> str:
    """Return two to seven random digits as words."""
    generator = torch.Generator().manual_seed(1009 * seed + number)
    return " ".join(DIGITS[one] for one in torch.randint(len(DIGITS), (2 + number % 6,), generator=generator))


def sound_of(said: str, voice: str, number: int) -> Tensor:
    """Return the speech (F, 80) of a text: recorded, artificial, or synthesised with a voice."""
    if voice == RECORDED:
        return spoken_digits(said, number)
    if voice == ARTIFICIAL:
        return pseudo_speech(said)
    own = Voice.of(voice)
    return synthesised(said, voice=own.name, rate=own.rate, pitch=own.pitch)


def headline(record: Record) -> Headline:
    """Return the finding: one gradient of the decoder's first layer gives the transcript in order."""
    known = claims.judgements(record)
    exact, trained, wrong = known["transcripts-untrained"], known["transcripts-trained"], known["transcripts-sure"]
    said, digits = known["spoken-transcripts"], known["spoken-digits-transcripts"]
    return Headline(
        f"One gradient of the decoder's first layer gives {exact.value or 0:.0f} % of the transcripts of single "
        f"utterances exactly, in order and without audio, from trained recognisers ({trained.value or 0:.0f} %), and "
        f"for speech that is synthesised ({said.value or 0:.0f} %) or recorded ({digits.value or 0:.0f} %) as well.",
        true=all(one.agrees for one in (exact, trained, wrong, said, digits, known["spoken-sure"])),
        claim="transcripts-untrained",
        what="transcripts exact, untrained small recogniser, LibriSpeech texts with artificial speech",
        figure=figure_steps,
        of="utterances",
    )


def _single(record: Record) -> pd.DataFrame:
    """Return the rows of all single utterances, with their kind of speech."""
    rows = pd.concat([record.rows(kind) for kind in (SingleUtterances, SynthesisedTexts, RecordedDigits)])
    kinds = {RECORDED: RECORDED, ARTIFICIAL: ARTIFICIAL}
    kind = [kinds.get(voice, SYNTHESISED) for voice in rows["voice"].fillna(ARTIFICIAL)]
    return rows.assign(kind=kind, size=rows["size"].fillna("small"))


def table(record: Record) -> pd.DataFrame:
    """Return the results for single utterances, a row for each kind of speech, recogniser and stage of training."""
    return summary(
        with_stage(_single(record)),
        {"speech": "kind", "recogniser": "size", "stage": "stage"},
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


def figure_sounds(sounds: dict[str, Tensor]) -> Figure:
    """Draw the log-mel bands of each sound against time, a panel per sound."""
    figure, axes = figures.panels(1, len(sounds), height=2.4)
    for axis, (name, sound) in zip(axes[0], sounds.items(), strict=True):
        axis.imshow(sound.T.cpu().numpy(), origin="lower", aspect="auto", cmap="magma", interpolation="nearest")
        axis.set(title=name, xlabel="frames of 10 ms")
        axis.grid(visible=False)
    axes[0][0].set_ylabel("mel bands")
    return figure


def figure_misses(record: Record) -> Figure:
    """Draw the relative distances from the span against the number of frames, a panel per kind of speech and stage.

    For every utterance they are those of the worst word of the transcript and of the nearest other word.
    """
    return drawn(
        _single(record).dropna(subset=["frames"]),
        points("frames", "worst", "worst word read", figures.COLOURS[1]),
        points("frames", "other", "nearest other word", figures.COLOURS[2]),
        panels=["kind", "trained"],
        title=lambda kind, trained: f"{kind}\n{stage_of(trained)}",
        height=2.6,
        legend=2,
        yscale="log",
        xlabel="frames of 10 ms",
        ylabel="share outside the span",
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    alone = line(table(record), ARTIFICIAL, "paper", "untrained")
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
    alone, together = _single(record), record.rows(Batches)
    data = alone["source"].where(alone["kind"] == ARTIFICIAL, alone["kind"] + " speech")
    measured = [
        (alone.assign(data=data, of=1), share_of("exact", "transcripts read exactly", "utterances")),
        (
            together.assign(data=together["source"], right=together["read"] / together["of"]),
            share_of("right", "transcripts read exactly", "batches"),
        ),
    ]
    return [
        outcome
        for rows, measure in measured
        for outcome in collected(
            record, rows, "text", measure, attack="transcript, closed form", network=rows["size"].map(RECOGNISERS),
            training=stages(rows["trained"]), data=rows["data"], batch=rows["of"].astype(int),
        )
    ]  # fmt: skip
