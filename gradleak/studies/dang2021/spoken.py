"""Spoken sentences and digits: speech that is synthesised or recorded

Beyond dang2021, section 3: whether the result of an attack depends on the sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import claims, studies
from gradleak.data import text
from gradleak.data.audio import can_speak, spoken_digits, synthesised
from gradleak.data.speech import pseudo_speech
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.sequences.transcripts import read_transcripts
from gradleak.sequences.words import reveal_words
from gradleak.show import figures
from gradleak.show.drawn import drawn, points
from gradleak.show.headline import Headline
from gradleak.show.summaries import cells, greatest, joined, least, median, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.dang2021.columns import COLUMNS
from gradleak.studies.shared.outcomes import RECOGNISERS, Outcome, collected, share_of, stages
from gradleak.studies.shared.proportions import successes
from gradleak.studies.shared.recognisers import OnUtterances, Source, attacked_texts, stage_of, tokens_of, with_stage
from gradleak.studies.shared.transcript_errors import certified, distances, timed

PLACE = "Beyond section 3"
CHUNK = 25  # utterances per experiment
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MADE_UP, RECORDED, SYNTHESISED = "made up", "recorded", "synthesised"


class Voice(Form):
    """A voice of espeak-ng, written "name/words per minute/pitch"."""

    name: str
    rate: Whole = Field(ge=80, le=450)
    pitch: Whole = Field(le=99)


class Parameters(studies.Parameters):
    """Parameters of the page: texts, voices, recorded digits, and stages of training."""

    source: Source = setting(paper="librispeech")
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
        """Yield, for each stage of training, the synthesised texts and then the recorded digits."""
        heard = not self.stand_in or can_speak()
        voices = [str(voice) for voice in self.voices] if heard else [MADE_UP]
        for trained in self.stages:
            for first in range(0, self.utterances, CHUNK):
                yield SynthesisedTexts.of(self, voices=voices, trained=trained, first=first)
            for first in range(0, self.digits, CHUNK):
                yield RecordedDigits.of(self, utterances=self.digits, trained=trained, first=first)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        digits = f" and {self.digits} strings of recorded digits" if self.digits else ""
        return f"{self.utterances} synthesised utterances{digits}, {text.TITLES[self.source]}"


class HearSpeech(OnUtterances):
    """Utterances of one kind of speech, numbered from `first`."""

    first: int

    def heard(self, said: str, voice: str, number: int) -> Columns:
        """Observe one utterance, read its bag and its transcript, and compare them with the truth."""
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
    """Texts spoken by `voices` of espeak-ng in turn, or made-up speech."""

    part: ClassVar[str] = SYNTHESISED
    voices: list[str]

    def run(self) -> Iterator[Columns]:
        """Read each text."""
        every = list(enumerate(attacked_texts(self.source, self.utterances)))
        for number, said in every[self.first : self.first + CHUNK]:
            yield self.heard(said, self.voices[number % len(self.voices)], number)


class RecordedDigits(HearSpeech):
    """Strings of digits that people spoke."""

    part: ClassVar[str] = RECORDED

    def run(self) -> Iterator[Columns]:
        """Read each string."""
        for number in range(self.utterances)[self.first : self.first + CHUNK]:
            yield self.heard(digits_of(number, self.seed), RECORDED, number)


def digits_of(number: int, seed: int) -> str:
    """Return two to seven random digits as words."""
    generator = torch.Generator().manual_seed(1009 * seed + number)
    return " ".join(DIGITS[one] for one in torch.randint(len(DIGITS), (2 + number % 6,), generator=generator))


def sound_of(said: str, voice: str, number: int) -> Tensor:
    """Return the speech (F, 80) of a text: recorded, made up, or synthesised with a voice."""
    if voice == RECORDED:
        return spoken_digits(said, number)
    if voice == MADE_UP:
        return pseudo_speech(said)
    own = Voice.of(voice)
    return synthesised(said, voice=own.name, rate=own.rate, pitch=own.pitch)


def _with_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with their kind of speech; speech is made up if no voice was available."""
    return rows.assign(kind=[voice if voice in (MADE_UP, RECORDED) else SYNTHESISED for voice in rows["voice"]])


def headline(record: Record) -> Headline:
    """Return the finding: the sound of an utterance does not protect its words."""
    known = claims.judgements(record)
    said, recorded, wrong = known["spoken-transcripts"], known["spoken-digits-transcripts"], known["spoken-sure"]
    return Headline(
        "How an utterance sounds does not protect it: the closed form reads the transcripts of synthesised sentences "
        f"in several voices ({said.text} exact) and of recorded digits ({recorded.text} exact) from one gradient, "
        "before and after training.",
        true=bool(said.agrees and recorded.agrees and wrong.agrees),
        claim="spoken-transcripts",
        what="transcripts of synthesised sentences exact (small recogniser, untrained and after 100 training steps)",
        figure=figure_misses,
        of="attacks, one for each utterance and stage of training,",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the results for each kind of speech and stage of training."""
    return summary(
        _with_kind(with_stage(record.frame())),
        {"speech": "kind", "stage": "stage"},
        {COLUMNS["frames"].head: joined(" to ", *(end("frames", ".0f") for end in (least, greatest)))}
        | {"bags exact": successes("bag_exact"), "transcripts exact": successes("exact")}
        | cells(COLUMNS, "unique", "wrongly_sure", by=total)
        | cells(COLUMNS, "seconds", by=median),
    )


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
        _with_kind(record.frame()),
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


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    exact = share_of("exact", "transcripts read exactly", "utterances")
    return collected(
        record, rows, "text", exact, attack="transcript, closed form", network=RECOGNISERS["small"],
        training=stages(rows["trained"]), data=rows["part"] + " speech",
    )  # fmt: skip
