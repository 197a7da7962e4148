"""Texts by name and their word pieces: the embedded ones as promised, the published ones where they are at hand."""

from __future__ import annotations

import pytest

from gradleak import data, paths
from gradleak.data import text


def test_our_own_sentences_and_their_pieces() -> None:
    sentences, vocabulary = data.texts("sentences"), data.vocabulary("sentences")
    assert len(sentences) == len(set(sentences)) >= 150
    assert max(len(sentence.split()) for sentence in sentences) <= 12
    assert len(vocabulary) >= 1000
    assert sorted(data.texts("sentences", "train") + data.texts("sentences", "test")) == sorted(sentences)
    for sentence in sentences:
        tokens = vocabulary.encode(sentence)
        assert vocabulary.decode([vocabulary.start, *tokens, vocabulary.end]) == sentence
        assert vocabulary.unknown not in tokens
    assert vocabulary.encode("") == []
    assert vocabulary.unknown in vocabulary.encode("naïve")


def test_pairs_are_joined_in_the_order_of_the_vocabulary() -> None:
    made = data.build_vocabulary(["aab aab ab", "b"], 50)
    # Of "▁a" (three times) and "ab" (three times) the later in the alphabet is joined; then "▁aa" and so on.
    assert made.pieces == ("<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "▁aa", "▁aab", "▁ab", "▁b")
    assert [made.pieces[token] for token in made.encode("aab abb")] == ["▁aab", "▁ab", "b"]
    assert data.build_vocabulary(["aab aab ab", "b"], 7).pieces == made.pieces[:7]


@pytest.mark.skipif(paths.text_folder() is None, reason="the transcripts are not at hand")
def test_the_published_text() -> None:
    short, vocabulary = data.texts("librispeech", "test"), data.vocabulary("librispeech")
    assert (len(data.texts("librispeech")), len(short), len(vocabulary)) == (902, 402, 16_328)
    pieces = [vocabulary.encode(sentence) for sentence in short]
    assert sum(map(len, pieces)) / len(pieces) == pytest.approx(6.7, abs=0.05)
    assert [vocabulary.decode(tokens) for tokens in pieces] == list(short)
    assert text.source("librispeech").startswith("librispeech: $GRADLEAK_TEXT")
