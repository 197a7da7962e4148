"""Speech that is heard: synthesised sentences and recorded digits

Beyond dang2021, section 3: whether what is read from a gradient depends on the sound.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import studies
from gradleak.data import text
from gradleak.data.audio import can_speak, spoken_digits, synthesised
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.models.recogniser import Recogniser
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.sequences.observed import FIRST, observe_speech
from gradleak.sequences.transcripts import read_transcripts
from gradleak.sequences.words import reveal_words
from gradleak.show import figures
from gradleak.studies.dang2021.words import recogniser_of, spoken, stage_of, tokens_of

PLACE = "Beyond section 3"
SMALLEST: dict[str, Any] = {"voices": ["en-us/175/50"], "utterances": 2, "stages": [0]}
SIZE = "small"
CHUNK = 25  # utterances a trial
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MADE_UP = "made up"


class Voice(Form):
    """A voice of espeak-ng, how many words a minute it says, and how high."""

    name: str
    rate: Whole
    pitch: Whole

    def check(self) -> None:
        """Say so where nobody speaks so."""
        if not 80 <= self.rate <= 450 or self.pitch > 99:
            raise InputError("words a minute are 80 to 450, and a pitch 0 to 99")


class Parameters(studies.Parameters):
    """What a rerun may change."""

    source: Literal["sentences", "librispeech"] = Field("sentences", description="texts that are said")
    voices: list[Voice] = Field(
        ["en-us/175/50", "en-gb/140/35", "en-us+f3/210/65"],
        validate_default=True,
        description="voices of espeak-ng, one after another, as voice/words a minute/pitch",
    )
    stand_in: bool = Field(True, description="speech is made up where espeak-ng is not installed")
    utterances: int = Field(6, ge=1, description="texts that are synthesised")
    digits: int = Field(0, ge=0, le=500, description="strings of recorded digits")
    stages: list[Whole] = Field([0, 4], description="steps of training")

    paper: ClassVar[dict[str, Any]] = {
        "source": "librispeech",
        "voices": [
            "en-us/175/50",
            "en-gb/140/35",
            "en-us+f3/210/65",
            "en-gb-scotland/160/40",
            "en-gb-x-rp+f2/190/70",
            "en-us+m3/120/20",
        ],
        "stand_in": False,
        "utterances": 134,
        "digits": 60,
        "stages": [0, 100],
    }


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the texts this study reads."""
    return [parameters.source]


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    digits = f" and {parameters.digits} strings of recorded digits" if parameters.digits else ""
    return f"{parameters.utterances} synthesised utterances{digits}, {text.TITLES[parameters.source]}"


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: some utterances of one kind of speech, on a recogniser of one stage."""
    heard = not parameters.stand_in or can_speak()
    voices = [str(voice) for voice in parameters.voices] if heard else [MADE_UP]
    kinds: list[tuple[str, list[str], int]] = [
        ("synthesised", voices, parameters.utterances),
        ("recorded", [], parameters.digits),
    ]
    return [
        {"part": part, "source": parameters.source, "voices": spoken_by, "utterances": count, "first": first}
        | {"trained": trained, "seed": parameters.seed, "device": "cpu"}
        for trained in parameters.stages
        for part, spoken_by, count in kinds
        for first in range(0, count, CHUNK)
    ]


def trial(
    part: str, source: str, voices: list[str], utterances: int, first: int, trained: int, seed: int, device: str
) -> list[dict[str, Any]]:
    """Read the words and the transcripts of some utterances; a row an utterance."""
    del device
    model = recogniser_of(SIZE, source, trained, seed)
    if part == "recorded":
        said = [(digits_of(number, seed), "recorded") for number in range(utterances)]
    else:
        chosen = spoken(source, utterances)
        said = [(one, voices[number % len(voices)]) for number, one in enumerate(chosen)]
    return [
        {"number": number, "voice": voice} | _read(model, source, one, sound_of(one, voice, number))
        for number, (one, voice) in list(enumerate(said))[first : first + CHUNK]
    ]


def digits_of(number: int, seed: int) -> str:
    """Return two to seven digits, drawn."""
    generator = torch.Generator().manual_seed(1009 * seed + number)
    return " ".join(DIGITS[one] for one in torch.randint(len(DIGITS), (2 + number % 6,), generator=generator))


def sound_of(said: str, voice: str, number: int) -> Tensor:
    """Return the speech (F, 80) of a text: recorded, made up, or by a voice."""
    if voice == "recorded":
        return spoken_digits(said, number)
    if voice == MADE_UP:
        return pseudo_speech(said)
    own = Voice.of(voice)
    return synthesised(said, voice=own.name, rate=own.rate, pitch=own.pitch)


def _read(model: Recogniser, source: str, said: str, sound: Tensor) -> dict[str, Any]:
    """Observe one utterance, read its bag and its transcript, and compare."""
    (tokens,) = tokens_of(source, [said])
    leak = observe_speech(model, [sound], [tokens], only=[*FIRST, "head.weight"])
    started = time.process_time()
    bag = reveal_words(leak)
    found = read_transcripts(leak)
    seconds = time.process_time() - started
    exact = found.tokens == [tokens[:-1]]
    unique = found.status == ["unique"]
    return {
        "frames": len(sound),
        "length": len(tokens),
        "length_error": abs(bag.count - len(tokens)),
        "bag": bag.tokens == [sorted(set(tokens))],
        "exact": exact,
        "unique": unique,
        "wrongly_sure": unique and not exact,
        "worst": max((miss for miss, _ in found.misses), default=1.0),
        "other": min((other for _, other in found.misses), default=0.0),
        "seconds": seconds,
    }


def _kind(voice: str) -> str:
    return voice if voice in (MADE_UP, "recorded") else "synthesised"


def table(record: Record) -> pd.DataFrame:
    """Return what was read, a line a kind of speech and stage."""
    frame = record.frame()
    frame = frame.assign(kind=frame["voice"].map(_kind))
    return pd.DataFrame(
        [
            {
                "speech": f"{kind} digits" if kind == "recorded" else f"{kind} sentences",
                "stage": stage_of(trained),
                "voices": f"{group['voice'].nunique()}" if kind == "synthesised" else "–",
                "frames": f"{group['frames'].min():.0f} to {group['frames'].max():.0f}",
                "length error": f"{group['length_error'].max():.0f}",
                "bags exact": f"{group['bag'].sum():.0f} of {len(group)}",
                "transcripts exact": f"{group['exact'].sum():.0f} of {len(group)}",
                "called unique": f"{group['unique'].sum():.0f}",
                "of these wrong": f"{group['wrongly_sure'].sum():.0f}",
                "CPU-s": f"{group['seconds'].median():.2g}",
            }
            for (kind, trained), group in frame.groupby(["kind", "trained"], sort=False)
        ]
    )


def figure_sounds(sounds: dict[str, Tensor]) -> Figure:
    """Draw log-mel bands over time, a panel a sound."""
    figure, axes = figures.panels(1, len(sounds), height=2.4)
    for axis, (name, sound) in zip(axes[0], sounds.items(), strict=True):
        axis.imshow(sound.T.cpu().numpy(), origin="lower", aspect="auto", cmap="magma", interpolation="nearest")
        axis.set(title=name, xlabel="frames of 10 ms")
        axis.grid(visible=False)
    axes[0][0].set_ylabel("bands")
    return figure


def figure_misses(record: Record) -> Figure:
    """Draw the worst word read and the nearest other of every utterance, a panel a kind of speech and stage."""
    frame = record.frame()
    frame = frame.assign(kind=frame["voice"].map(_kind))
    groups = list(frame.groupby(["kind", "trained"], sort=False))
    figure, axes = figures.panels(1, len(groups), height=2.6, sharey=True)
    for axis, ((kind, trained), group) in zip(axes[0], groups, strict=True):
        for name, label, colour in (("worst", "worst word read", 1), ("other", "nearest other word", 2)):
            axis.scatter(group["frames"], group[name], s=9, color=figures.COLOURS[colour], label=label, linewidth=0)
        axis.set(yscale="log", title=f"{kind}\n{stage_of(trained)}", xlabel="frames")
    axes[0][0].set_ylabel("share outside the span")
    figures.legend_below(figure, 2)
    return figure
