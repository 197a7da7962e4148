"""Transcripts behind noise, fewer digits and dropped entries: read by the nearest words, and never promised."""

from __future__ import annotations

import pytest
import torch

from gradleak.data.speech import pseudo_speech
from gradleak.defenses import Each, named
from gradleak.errors import InputError
from gradleak.leak import Defense, Leak
from gradleak.models.recogniser import recogniser
from gradleak.sequences import observe_speech, read_defended, read_transcripts
from gradleak.sequences.observed import FIRST

CLASSES = 400
SAID = [17, 230, 17, 305, 44]


def noise(level: float) -> Defense:
    generator = torch.Generator().manual_seed(0)
    return Each(
        lambda value: value + level * value.square().mean().sqrt() * torch.randn(value.shape, generator=generator)
    )


def leaked(said: list[int], defense: Defense | None = None) -> Leak:
    model = recogniser("small", CLASSES, seed=1)
    return observe_speech(model, [pseudo_speech("a parrot")], [[*said, 2]], only=FIRST, defense=defense)


CASES: dict[str, tuple[list[int], Defense | None]] = {
    "none": (SAID, None),
    "noise": (SAID, noise(0.1)),
    "noise, one word": ([9], noise(0.1)),
    "8 bits, a word again and again": ([7, 7, 7, 8], named("quantize/8", generator=None)),
    "half dropped": (SAID, named("grad-drop/0.5", generator=None)),
    "nine tenths dropped": ([17, 230, 17, 305, 44, 9, 17, 80], named("grad-drop/0.9", generator=None)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_read_behind_a_defence(name: str) -> None:
    said, defense = CASES[name]
    leak = leaked(said, defense)
    found = read_defended(leak)
    assert found.tokens == [said]
    assert found.inputs == len(said) + 1
    assert found.status == ["ambiguous"]
    assert name == "none" or read_transcripts(leak).status != ["unique"]


@pytest.mark.parametrize("said", [[17, 230, 17, 305, 44, 9, 17, 80], [17, 230, 305, 44, 9, 80]])
def test_words_are_read_behind_as_much_noise_as_there_is_gradient(said: list[int]) -> None:
    assert read_defended(leaked(said, noise(1.0))).tokens == [said]


def test_how_many_steps_there_are_may_be_told() -> None:
    leak = leaked(SAID, named("grad-drop/0.9", generator=None))
    assert read_defended(leak, steps=len(SAID) + 1).tokens == [SAID]
    assert read_defended(leak, steps=3).tokens != [SAID]
    with pytest.raises(InputError, match="at least one step"):
        read_defended(leak, steps=0)


def test_what_is_drowned_is_said_to_be() -> None:
    assert read_defended(leaked(SAID, noise(30))).status == ["failed"]
