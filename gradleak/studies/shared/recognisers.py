"""Clients that train a speech recogniser: their utterances, the recogniser, and the names of its stages of training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from gradleak.data import text
from gradleak.data.recordings import recorded
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import START, Recogniser
from gradleak.models.recogniser_training import trained_recogniser
from gradleak.sequences.observed import observe_speech
from gradleak.studies import Experiment, Group

# The texts from which clients' utterances are made, and the recognisers.
Source = Literal["sentences", "librispeech", "librispeech-recorded"]
Size = Literal["paper", "small", "small-2"]
# The learning rate of a client's local steps.
RATE = 0.1
# The parameters of the recogniser's last layer.
LAST = ("head.weight", "head.bias")


class AttackedRecogniser(Group):
    """A recogniser, its number of training steps, and the number of attacked utterances."""

    size: Size
    trained: NonNegativeInt
    utterances: PositiveInt


class OnRecogniser(Experiment):
    """An experiment on a recogniser that was trained for `trained` steps on the text `source`."""

    stays_on_cpu: ClassVar[str] = "they read one utterance at a time, in steps that are too small for a GPU"
    source: str
    trained: int

    def recogniser(self, size: str = "small") -> Recogniser:
        """Return the recogniser."""
        return _trained(size, self.source, self.trained, self.seed)

    def leak_of(self, tokens: Sequence[Sequence[int]], size: str = "small", **sent: Any) -> Leak:
        """Return what a client sends that trains on utterances with these tokens.

        Args:
            tokens: The tokens of each utterance, with the end mark.
            size: The recogniser's size.
            sent: Further arguments of `observe_speech`, such as the parameters whose gradients are sent.
        """
        speech = [speech_of(self.source, text.vocabulary(self.source).decode(one)) for one in tokens]
        return observe_speech(self.recogniser(size), speech, tokens, **sent)

    def tokens_of(self, said: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, with the end mark."""
        return tokens_of(self.source, said)

    def attacked_texts(self, count: int) -> list[str]:
        """Return `count` of the texts of the test split, evenly spaced."""
        every = text.texts(self.source, "test")
        if count > len(every):
            raise InputError(f"there are {len(every)} utterances to attack; {count} were asked for")
        return [every[number * len(every) // count] for number in range(count)]

    def attacked_tokens(self, count: int) -> list[list[int]]:
        """Return the tokens of these texts, with the end mark."""
        return self.tokens_of(self.attacked_texts(count))

    def batch_of(self, number: int, size: int) -> list[list[int]]:
        """Return the tokens of the texts of one batch, far apart in the list, which is sorted by length.

        Batches share no text until all texts have occurred. Then texts occur again, with others.
        """
        every = text.texts(self.source, "test")
        apart = len(every) // size
        places = [(number + k * (apart + number // apart) + self.seed) % len(every) for k in range(size)]
        return self.tokens_of([every[place] for place in places])


class OnUtterances(OnRecogniser):
    """An experiment on a number of `utterances`."""

    utterances: int

    def tokens(self) -> list[list[int]]:
        """Return the tokens of each utterance, with the end mark."""
        return self.attacked_tokens(self.utterances)


@functools.lru_cache(maxsize=2)
def _trained(size: str, source: str, trained: int, seed: int) -> Recogniser:
    # Recordings are heard by a recogniser that was trained on the other texts of LibriSpeech in artificial speech.
    return trained_recogniser(size, "librispeech" if source == text.RECORDED else source, trained, seed=seed)[0]


@functools.lru_cache(maxsize=512)
def last_inputs(size: str, source: str, trained: int, seed: int, said: str) -> Tensor:
    """Return the inputs (S, I) of the last layer at each step of one utterance, in which a recogniser hears a text."""
    (tokens,) = tokens_of(source, [said])
    model = _trained(size, source, trained, seed)
    before = torch.tensor([[START, *tokens[:-1]]])
    with torch.no_grad():
        return model.steps(model.listen(speech_of(source, said).unsqueeze(0)), before)[0]


def speech_of(source: str, said: str) -> Tensor:
    """Return the frames (F, 80) of a text: the frames of its recording, or else artificial frames."""
    return recorded(said) if source == text.RECORDED else pseudo_speech(said)


def tokens_of(source: str, said: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text, with the end mark."""
    words = text.vocabulary(source)
    return [[*words.encode(one), words.end] for one in said]


def stage_of(trained: Any) -> str:
    """Return the number of training steps in words, for tables and figures."""
    return f"after {trained:.0f} steps" if trained else "untrained"
