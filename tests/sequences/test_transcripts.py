"""Transcripts are read exactly, alone and together, with one layer of decoder and two; what is not sure says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import Recogniser, recogniser
from gradleak.sequences import Transcripts, observe_speech, read_sharing, read_transcripts
from gradleak.sequences.observed import FIRST
from gradleak.sequences.transcripts import step_misses

CLASSES = 400


def leaked(model: Recogniser, tokens: list[list[int]]) -> Leak:
    sounds = [pseudo_speech("".join(chr(97 + token % 26) for token in one)) for one in tokens]
    return observe_speech(model, sounds, tokens)


def read(model: Recogniser, *tokens: list[int]) -> Transcripts:
    return read_transcripts(leaked(model, [[*one, 2] for one in tokens]))


@pytest.fixture(scope="module")
def model() -> Recogniser:
    return recogniser("small", CLASSES, seed=1)


@pytest.mark.parametrize("size", ["small", "small-2"])
def test_texts_of_all_lengths_and_words_again_and_again(size: str) -> None:
    model = recogniser(size, CLASSES, seed=2)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, CLASSES, (length,), generator=generator).tolist() for length in (1, 2, 9, 40)]
    for said in [*texts, [], [7, 7, 7, 7, 7, 7], [5, 6, 5, 6, 5, 6, 5]]:
        found = read(model, said)
        assert found.tokens == [said]
        assert found.status == ["unique"]
        assert found.inputs == len(said) + 1


def test_words_outside_the_vocabulary_and_another_start() -> None:
    words = text.vocabulary("sentences")
    model = recogniser("small", len(words), seed=3)
    said = [*words.encode("a ñandú"), words.end]
    found = read_transcripts(observe_speech(model, [pseudo_speech("abc")], [said]), vocabulary=words)
    assert (found.status, found.texts) == (["unique"], ["a <unk>and<unk>"])
    leak = observe_speech(model, [pseudo_speech("abc")], [said], start=9)
    found = read_transcripts(leak, start=9)
    assert (found.status, found.tokens) == (["unique"], [said[:-1]])
    assert read_transcripts(leak).status == ["failed"]


def test_several_utterances_that_begin_with_other_words(model: Recogniser) -> None:
    said = [[10, 20, 30, 40], [11, 20, 30], [12], [13, 10, 11, 12, 13], [14, 14]]
    found = read(model, *said)
    assert found.tokens == sorted(said)
    assert found.status == ["unique"] * 5
    assert found.counts == [1] * 5


def test_words_that_other_steps_add_up_to_are_left_out(model: Recogniser) -> None:
    # Behind 10, words 10 and 11 both fit: (11, behind 10) = (11, first) − (10, first) + (10, behind 10).
    leak = leaked(model, [[10, 10, 50, 2], [11, 60, 2]])
    for gradients, status in (
        (leak.gradients, "unique"),
        ({name: leak.gradients[name] for name in FIRST}, "ambiguous"),
    ):
        found = read_transcripts(replace(leak, gradients=gradients))
        assert found.tokens == [[10, 10, 50], [11, 60]]
        assert found.status == [status] * 2


@pytest.mark.parametrize("size", ["small", "small-2"])
def test_words_of_which_it_is_sure_are_missed_and_not_denied(size: str) -> None:
    model, sound = recogniser(size, CLASSES, seed=1), pseudo_speech("abcdefgh")
    before, told = torch.tensor([[1, 11, 20, 30, 40]]), torch.tensor([10, 20, 30, 40, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(sound[None], before)[0], told).backward()
        optimizer.step()
    said = [11, 20, 30, 40]
    learned = read_transcripts(observe_speech(model, [sound], [[*said, 2]]))
    assert (learned.tokens, learned.status) == ([said], ["unique"])
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter *= 10
    # Now it is sure of all but the first word, and only that step leaves a trace.
    leak = observe_speech(model, [sound], [[*said, 2]])
    for found in (read_transcripts(leak), read_sharing(leak)):
        assert found.tokens == [said[: found.inputs - 1]] != [said]
        assert found.status == ["ambiguous"]
        assert found.reasons == ["words may follow of which the recogniser is sure"]


def test_several_utterances_and_layers_are_read_and_not_promised() -> None:
    found = read(recogniser("small-2", CLASSES, seed=1), [10, 20], [11, 20, 30])
    assert found.tokens == [[10, 20], [11, 20, 30]]
    assert found.status == ["ambiguous"] * 2


@pytest.mark.parametrize("said", [[[10, 20], [10, 20], [30]], [[10, 20], [10, 20]], [[10, 20], []]])
def test_what_is_said_twice_or_not_at_all_is_not_called_unique(model: Recogniser, said: list[list[int]]) -> None:
    found = read(model, *said)
    assert sum(found.counts) == len(found.tokens) < len(said)
    assert "unique" not in found.status
    assert all("different things" in reason for reason in found.reasons)


def test_utterances_that_begin_alike_are_not_called_unique(model: Recogniser) -> None:
    found = read(model, [10, 20, 30], [10, 40], [11, 50])
    assert "unique" not in found.status
    assert all("begin with one word" in reason for reason in found.reasons)


def test_noise_is_not_called_unique_where_it_is_wrong(model: Recogniser) -> None:
    said = [10, 20, 30, 40, 50]
    generator = torch.Generator().manual_seed(0)
    for size in (1e-6, 1e-3, 1e-1, 10):

        def noisy(gradients: dict[str, torch.Tensor], size: float = size) -> dict[str, torch.Tensor]:
            return {
                name: value + size * value.abs().max() * torch.randn(value.shape, generator=generator)
                for name, value in gradients.items()
            }

        sounds = [pseudo_speech("abcde")]
        found = read_transcripts(observe_speech(model, sounds, [[*said, 2]], defense=noisy))
        assert found.status != ["unique"] or found.tokens == [said]


def test_what_it_is_not_made_for_is_refused(model: Recogniser) -> None:
    wrong = Leak(nn.Linear(3, 4), {"weight": torch.ones(4, 3)}, "", 1)
    with pytest.raises(InputError, match="a Recogniser's decoder; got Linear"):
        read_transcripts(wrong)
    nothing = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    assert read_transcripts(Leak(model, nothing, "head", 1)).tokens == []
    assert read_transcripts(leaked(model, [[5, 6, 2]]), start=9).status == ["failed"]
    for tokens, options, message in (
        ([], {}, "each needs its own"),
        ([[]], {}, "each needs its own"),
        ([[5]], {"local_steps": 2}, "local steps"),
        ([[5]], {"only": ["tail"]}, "no parameter 'tail'"),
    ):
        with pytest.raises(InputError, match=message):
            observe_speech(model, [torch.zeros(8, 80)], tokens, **options)  # type: ignore[arg-type]


def test_the_figures_misses_are_those_that_were_read_by(model: Recogniser) -> None:
    leak = leaked(model, [[10, 20, 2]])
    misses = step_misses(leak, [10, 20])
    assert [int(one.argmin()) for one in misses[:2]] == [10, 20]
    assert len(misses) == 3
    assert float(misses[2].min()) > 1e-3
    assert all(float(one.min()) < 1e-5 for one in misses[:2])


def test_utterances_of_several_local_steps_are_not_called_unique(model: Recogniser) -> None:
    for said in ([[10, 20, 2]] * 2, [[10, 20, 2], [11, 30, 2]]):
        sounds = [pseudo_speech("".join(chr(97 + token % 26) for token in one)) for one in said]
        leak = observe_speech(model, sounds, said, local_steps=2, rate=1e-9)
        for found in (read_transcripts(leak), read_sharing(leak)):
            assert found.tokens == [list(one[:-1]) for one in sorted({tuple(one) for one in said})]
            assert "unique" not in found.status


def test_local_steps_are_gradient_descent(model: Recogniser) -> None:
    sounds = [pseudo_speech("yes"), pseudo_speech("no")]
    tokens = [[10, 2], [11, 12, 2]]
    twice = observe_speech(model, sounds, tokens, local_steps=2, rate=0.5)
    first = observe_speech(model, sounds[:1], tokens[:1])
    later = recogniser("small", CLASSES, seed=1)
    with torch.no_grad():
        for name, value in later.named_parameters():
            value -= 0.5 * first.gradients[name]
    second = observe_speech(later, sounds[1:], tokens[1:])
    sent = observe_speech(model, sounds, tokens, local_steps=2, rate=0.5, difference=True, only=["head.weight"])
    total = first.gradients["head.weight"] + second.gradients["head.weight"]
    torch.testing.assert_close(twice.gradients["head.weight"], total)
    torch.testing.assert_close(sent.weight_gradient, total, atol=1e-7, rtol=1e-3)
    assert not torch.equal(sent.weight_gradient, total)
