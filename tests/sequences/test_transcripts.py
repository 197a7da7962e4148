"""Transcripts are read exactly, alone and together, with one layer of decoder and two; what is not sure says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.data.text import Vocabulary
from gradleak.defenses import Each, named
from gradleak.leak import Defense, Leak
from gradleak.models.recogniser import Recogniser, recogniser
from gradleak.sequences import Transcripts, observe_speech, read_defended, read_sharing, read_transcripts
from gradleak.sequences.observed import FIRST

CLASSES = 310


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


def test_words_of_which_it_is_sure_are_missed_and_not_denied() -> None:
    model, sound = recogniser("small", CLASSES, seed=1), pseudo_speech("abcdefgh")
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
    assert len(found.tokens) < len(said)
    assert "unique" not in found.status
    assert all("different things" in reason for reason in found.reasons)


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


# -------------------------------------------------------------------------------- utterances that begin with one word
MARKS = ("<unk>", "<s>", "</s>")


def sharing(size: str, said: list[list[int]]) -> Leak:
    tokens = [[*one, 2] for one in said]
    # The same words, said twice, sound differently.
    sounds = [pseudo_speech(f"{n}" + "".join(chr(97 + token % 26) for token in one)) for n, one in enumerate(tokens)]
    return observe_speech(recogniser(size, CLASSES, seed=1), sounds, tokens)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("small", [[10, 20, 30, 40], [10, 21, 31]]),
        ("small", [[10, 20, 30], [10, 20, 31, 50]]),
        ("small-2", [[10, 20, 30], [10, 20, 30]]),
        ("small", [[10, 20, 30, 40], [10, 21, 31], [12, 13, 9], [7, 20, 30]]),
    ],
)
def test_two_that_begin_alike(size: str, said: list[list[int]]) -> None:
    leak = sharing(size, said)
    assert "unique" not in read_transcripts(leak).status
    found = read_sharing(leak)
    assert found.tokens == sorted(said)
    # Whether more words follow is not told where the last layer is behind another.
    assert found.status == [{"small": "unique", "small-2": "ambiguous"}[size]] * len(said)
    assert found.inputs == sum(map(len, said)) + 1
    for miss, other in found.misses:
        assert miss < 1e-5
        assert other > 1e-3


def test_what_stays_open_is_not_called_unique() -> None:
    for said in ([[10], [10, 21, 31]], [[10, 20], [10, 21], [10, 22]], [[10, 20], [10, 21], [11, 20], [11, 21]]):
        found = read_sharing(sharing("small", said))
        assert "unique" not in found.status
        assert all(found.reasons)


def test_a_false_last_word_does_not_stand_in_for_an_utterance_of_one_word() -> None:
    """(41, p) = (299, p) − (299, q) + (41, q) is as many steps as the one that nothing is said behind."""
    words = [41, 41, 41, 82, 82, 41, 41, 41, 82, 299, 82, 41, 41, *[299] * 4, 82, 299, 82, 299, 82, 41, 299, 299]
    found = read_sharing(sharing("small", [[299, 82], words, [41]]))
    assert [41] not in found.tokens
    assert "unique" not in found.status


def test_where_none_begin_alike_it_is_the_plain_reading() -> None:
    words = Vocabulary((*MARKS, *(f"▁w{n}" for n in range(CLASSES - len(MARKS)))))
    leak = sharing("small", [[10, 20], [11, 20, 30]])
    assert read_sharing(leak, vocabulary=words) == read_transcripts(leak, vocabulary=words)
    alike = read_sharing(sharing("small", [[10, 20], [10, 23]]), vocabulary=words)
    assert alike.texts == ["w7 w17", "w7 w20"]


# --------------------------------------------------------------------------------------------------- behind a defence
SAID = [17, 230, 17, 305, 44]


def noise(level: float) -> Defense:
    generator = torch.Generator().manual_seed(0)
    return Each(
        lambda value: value + level * value.square().mean().sqrt() * torch.randn(value.shape, generator=generator)
    )


def behind(said: list[int], defense: Defense | None = None) -> Leak:
    model = recogniser("small", CLASSES, seed=1)
    return observe_speech(model, [pseudo_speech("a parrot")], [[*said, 2]], only=FIRST, defense=defense)


CASES: dict[str, tuple[list[int], Defense | None]] = {
    "none": (SAID, None),
    "noise": (SAID, noise(0.1)),
    "as much noise as gradient": ([17, 230, 305, 44, 9, 80], noise(1.0)),
    "8 bits, a word again and again": ([7, 7, 7, 8], named("quantize/8", generator=None)),
    "nine tenths dropped": ([17, 230, 17, 305, 44, 9, 17, 80], named("grad-drop/0.9", generator=None)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_read_behind_a_defence(name: str) -> None:
    said, defense = CASES[name]
    leak = behind(said, defense)
    found = read_defended(leak)
    assert found.tokens == [said]
    assert found.inputs == len(said) + 1
    assert found.status == ["ambiguous"]
    assert name == "none" or read_transcripts(leak).status != ["unique"]


def test_how_many_steps_there_are_may_be_told() -> None:
    leak = behind(SAID, named("grad-drop/0.9", generator=None))
    assert read_defended(leak, steps=len(SAID) + 1).tokens == [SAID]
    assert read_defended(leak, steps=3).tokens != [SAID]


def test_what_is_drowned_is_said_to_be() -> None:
    assert read_defended(behind(SAID, noise(30))).status == ["failed"]
