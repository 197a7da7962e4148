"""Steps that are recovered from the last layer's gradient are put in order, or it is said that they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.data.speech import pseudo_speech
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import Recogniser, recogniser
from gradleak.sequences import observe_speech
from gradleak.sequences.recovered import read_recovered

CLASSES = 300
HEAD = ["head.weight", "head.bias"]


def leaked(model: Recogniser, tokens: list[int], only: list[str] | None = HEAD) -> Leak:
    sound = pseudo_speech("".join(chr(97 + token % 26) for token in tokens))
    return observe_speech(model, [sound], [tokens], only=only)


@pytest.mark.parametrize("size", ["small", "small-2"])
@pytest.mark.parametrize("said", [[2], [9, 2], [5, 6, 5, 6, 8, 2], [*range(20, 31), 25, 2]])
def test_it_is_read_in_order(size: str, said: list[int]) -> None:
    found = read_recovered(leaked(recogniser(size, CLASSES, seed=2), said))
    assert found.tokens == said
    assert found.status == "unique", found.reason
    assert found.steps == len(said)
    assert found.misses[0] < 1e-4


def test_its_text() -> None:
    words = Vocabulary(("<unk>", "<s>", "</s>", *(f"▁w{n}" for n in range(CLASSES - 3))))
    found = read_recovered(leaked(recogniser("small", CLASSES, seed=2), [5, 9, 2]), vocabulary=words)
    assert found.text == "w2 w6"


def test_another_start_does_not_fit() -> None:
    found = read_recovered(leaked(recogniser("small", CLASSES, seed=2), [5, 9, 7, 2]), start=8)
    assert (found.tokens, found.status) == ([], "failed")
    assert "0 of 4 steps follow" in found.reason


def test_what_is_not_recovered_is_said() -> None:
    leak = leaked(recogniser("small", CLASSES, seed=2), [5, 9, 7, 2])
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: value + 1e-3 * value.std() * torch.randn(value.shape, generator=generator)
        for name, value in leak.gradients.items()
    }
    with pytest.raises(InputError, match="RLG needs fewer samples"):
        read_recovered(replace(leak, gradients=noisy))
    nothing = {name: torch.zeros_like(value) for name, value in leak.gradients.items()}
    assert read_recovered(replace(leak, gradients=nothing)).reason == "the gradient is zero"


def test_other_networks_are_refused() -> None:
    leak = leaked(recogniser("small", CLASSES, seed=2), [5, 2])
    with pytest.raises(InputError, match="Recogniser's last layer; got Linear"):
        read_recovered(replace(leak, model=nn.Linear(3, 4)))
