"""Clients that train a speech recogniser: the utterances they say, the recogniser, and how tables name its stage."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pandas as pd

from gradleak.data import text
from gradleak.errors import InputError
from gradleak.models.recogniser import SIZES, Recogniser
from gradleak.models.recogniser_training import trained_recogniser
from gradleak.runs.forms import Form, Whole
from gradleak.studies import Experiment

# The texts that clients say.
Source = Literal["sentences", "librispeech"]
# The learning rate of a client's local steps.
RATE = 0.1


class AttackedRecogniser(Form):
    """A recogniser, how many steps it has learned, and how many utterances are attacked."""

    size: str
    trained: Whole
    utterances: Whole

    def check(self) -> None:
        """Say so where there is no such recogniser."""
        if self.size not in SIZES or self.utterances < 1:
            raise InputError(f"a recogniser is one of {', '.join(SIZES)}, and utterances are 1 at least")


class OnRecogniser(Experiment):
    """Utterances of a text, whose gradients a recogniser gives after `trained` steps of training."""

    stays_on_cpu: ClassVar[str] = "it reads one utterance at a time, in steps that are too small for a GPU"
    source: str
    trained: int
    utterances: int

    def recogniser(self, size: str = "small") -> Recogniser:
        """Return the recogniser."""
        return _recogniser(size, self.source, self.trained, self.seed)


@functools.lru_cache(maxsize=2)
def _recogniser(size: str, source: str, trained: int, seed: int) -> Recogniser:
    return trained_recogniser(size, source, trained, seed=seed)[0]


def attacked_texts(source: str, count: int) -> list[str]:
    """Return so many of the texts that are attacked, evenly over all."""
    every = text.texts(source, "test")
    if count > len(every):
        raise InputError(f"there are {len(every)} utterances to attack; {count} were asked for")
    return [every[number * len(every) // count] for number in range(count)]


def texts_far_apart(source: str, number: int, size: int, seed: int) -> list[str]:
    """Return the texts of one batch, far apart in a list that is sorted by length; no batch shares one with another."""
    every = text.texts(source, "test")
    return [every[(number + k * (len(every) // size) + seed) % len(every)] for k in range(size)]


def tokens_of(source: str, said: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts, each with its end mark."""
    words = text.vocabulary(source)
    return [[*words.encode(one), words.end] for one in said]


def about_utterances(recognisers: Sequence[AttackedRecogniser], source: str) -> str:
    """Return how many utterances of a text a recogniser is given, at least and at most."""
    counts = sorted(one.utterances for one in recognisers)
    many = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return f"{many} utterances a recogniser, {text.TITLES[source]}, made-up speech"


def stage_of(trained: Any) -> str:
    """Return how long a recogniser has learned, as tables and figures show it."""
    return f"after {trained:.0f} steps" if trained else "untrained"


def with_stage(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the stage of their recogniser."""
    return rows.assign(stage=rows["trained"].map(stage_of))
