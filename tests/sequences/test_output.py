"""The last layer's gradient alone gives a transcript in order, in closed form, or says that it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradleak.data.speech import pseudo_speech
from gradleak.data.text import Vocabulary
from gradleak.leak import Leak
from gradleak.models.recogniser import Recogniser, recogniser
from gradleak.sequences import observe_speech, read_output

CLASSES = 300
HEAD = ["head.weight", "head.bias"]


def leaked(model: Recogniser, tokens: list[int], only: list[str] | None = HEAD) -> Leak:
    sound = pseudo_speech("".join(chr(97 + token % 26) for token in tokens))
    return observe_speech(model, [sound], [tokens], only=only)


@pytest.mark.parametrize("size", ["small", "small-2"])
@pytest.mark.parametrize("said", [[2], [7, 7, 7, 7, 2], [5, 6, 5, 6, 8, 2], [*range(20, 40), 25, 2]])
def test_it_is_read_in_order(size: str, said: list[int]) -> None:
    found = read_output(leaked(recogniser(size, CLASSES, seed=2), said))
    assert found.tokens == [said]
    assert found.status == ["unique"], found.reasons[0]
    assert found.inputs == len(said)
    assert found.misses[0][0] < 1e-4


def test_a_text_is_decoded_and_another_start_does_not_fit() -> None:
    leak = leaked(recogniser("small", CLASSES, seed=2), [5, 9, 7, 2])
    words = Vocabulary(("<unk>", "<s>", "</s>", *(f"▁w{n}" for n in range(CLASSES - 3))))
    assert read_output(leak, vocabulary=words).texts == ["w2 w6 w4"]
    found = read_output(leak, start=8)
    assert (found.tokens, found.status) == ([[]], ["failed"])
    assert "0 of 4 steps follow" in found.reasons[0]


def test_a_gradient_without_separable_words_fails() -> None:
    leak = leaked(recogniser("small", CLASSES, seed=2), [5, 9, 7, 2], only=["head.weight"])
    rows, gradient = leak.weight_gradient[[5, 9, 7, 2]], torch.zeros_like(leak.weight_gradient)
    # The span is that of the four steps, and every row occurs twice, so it lies in the cone of the others.
    gradient[:16] = torch.cat([rows, rows, -rows, -rows])
    found = read_output(replace(leak, gradients={"head.weight": gradient}))
    assert (found.tokens, found.status) == ([[]], ["failed"])


def test_two_utterances_are_not_called_unique() -> None:
    sounds = [pseudo_speech("a parrot"), pseudo_speech("a hare")]
    model = recogniser("small", CLASSES, seed=2)
    for said in ([[5, 9, 2], [6, 7, 2]], [[5, 9, 2], [5, 9, 2]]):
        assert read_output(observe_speech(model, sounds, said, only=HEAD)).status != ["unique"]
    same = observe_speech(model, sounds[:1] * 2, [[5, 9, 2]] * 2, only=HEAD)
    steps = observe_speech(model, sounds[:1] * 2, [[5, 9, 2]] * 2, only=HEAD, local_steps=2, rate=1e-9)
    for leak in (same, steps):
        found = read_output(leak)
        assert found.status != ["unique"]


def test_more_steps_than_states_and_noise_are_refused() -> None:
    model, generator = recogniser("small", CLASSES, seed=2), torch.Generator().manual_seed(0)
    leak = leaked(model, [5, 9, 7, 2])
    noise = {name: 1e-4 * torch.randn(value.shape, generator=generator) for name, value in leak.gradients.items()}
    noisy = replace(leak, gradients={name: value + noise[name] for name, value in leak.gradients.items()})
    for refused in (leaked(model, [*range(20, 280), 2]), noisy):
        found = read_output(refused)
        assert (found.tokens, found.status) == ([[]], ["failed"])
        assert "leaves no state outside its span" in found.reasons[0]
