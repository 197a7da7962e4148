"""Utterances that begin with one word are told apart by the words that fit behind, or it says that they are not."""

from __future__ import annotations

import pytest

from gradleak.data.speech import pseudo_speech
from gradleak.data.text import Vocabulary
from gradleak.leak import Leak
from gradleak.models.recogniser import recogniser
from gradleak.sequences import observe_speech, read_sharing, read_transcripts

CLASSES = 400
MARKS = ("<unk>", "<s>", "</s>")


def leaked(size: str, said: list[list[int]]) -> Leak:
    tokens = [[*one, 2] for one in said]
    # The same words, said twice, sound differently.
    sounds = [pseudo_speech(f"{n}" + "".join(chr(97 + token % 26) for token in one)) for n, one in enumerate(tokens)]
    return observe_speech(recogniser(size, CLASSES, seed=1), sounds, tokens)


@pytest.mark.parametrize("size", ["small", "small-2"])
@pytest.mark.parametrize(
    "said",
    [
        [[10, 20, 30, 40], [10, 21, 31]],
        [[10, 20, 30], [10, 20, 31, 50]],
        [[10, 20, 30], [10, 20, 30]],
        [[10, 20, 30, 40], [10, 21, 31], [12, 13, 9], [7, 20, 30]],
    ],
)
def test_two_that_begin_alike(size: str, said: list[list[int]]) -> None:
    leak = leaked(size, said)
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
        found = read_sharing(leaked("small", said))
        assert "unique" not in found.status
        assert all(found.reasons)


def test_a_false_last_word_does_not_stand_in_for_an_utterance_of_one_word() -> None:
    """(41, p) = (299, p) − (299, q) + (41, q) is as many steps as the one that nothing is said behind."""
    words = [41, 41, 41, 82, 82, 41, 41, 41, 82, 299, 82, 41, 41, *[299] * 4, 82, 299, 82, 299, 82, 41, 299, 299]
    found = read_sharing(leaked("small", [[299, 82], words, [41]]))
    assert [41] not in found.tokens
    assert "unique" not in found.status


def test_where_none_begin_alike_it_is_the_plain_reading() -> None:
    words = Vocabulary((*MARKS, *(f"▁w{n}" for n in range(CLASSES - len(MARKS)))))
    leak = leaked("small", [[10, 20], [11, 20, 30]])
    assert read_sharing(leak, vocabulary=words) == read_transcripts(leak, vocabulary=words)
    alike = read_sharing(leaked("small", [[10, 20], [10, 23]]), vocabulary=words)
    assert alike.texts == ["w7 w17", "w7 w20"]
