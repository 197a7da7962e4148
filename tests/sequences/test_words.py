"""Bags of words: from one utterance, from differences of weights, behind signs; and as the paper's code finds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradleak import defenses
from gradleak.auditing.subject import subject_of
from gradleak.cases import Case, Reach
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError
from gradleak.labels.hard.rlg_as_coded import rlg_as_coded, rlg_screened
from gradleak.leak import observe
from gradleak.losses import CrossEntropy
from gradleak.models.recogniser import Recogniser, recogniser
from gradleak.sequences import observe_speech, reveal_words
from gradleak.sequences.observed import last_gradient
from gradleak.sequences.words import EMBEDDING_ROWS, outlying_words, rounded_rank
from gradleak.studies.shared.recognisers import last_inputs

WORDS = text.vocabulary("sentences")
SAID = [one for one in text.texts("sentences", "test") if len(one) > 25][::12]


@pytest.fixture(scope="module")
def model() -> Recogniser:
    return recogniser("small", len(WORDS), seed=0)


def tokens_of(said: str) -> list[int]:
    return [*WORDS.encode(said), WORDS.end]


def test_words_and_their_number(model: Recogniser) -> None:
    for said in SAID:
        tokens = tokens_of(said)
        found = reveal_words(observe_speech(model, [pseudo_speech(said)], [tokens]), vocabulary=WORDS)
        assert found.tokens == [sorted(set(tokens))]
        assert found.count == len(tokens)
        assert found.texts == [" ".join(WORDS.pieces[token] for token in sorted(set(tokens)))]
        assert found.status == ["ambiguous"]


def test_the_last_gradient_of_a_batch_follows_from_the_inputs_of_each_utterance(model: Recogniser) -> None:
    tokens = [tokens_of(said) for said in SAID[:2]]
    whole = observe_speech(model, list(map(pseudo_speech, SAID[:2])), tokens, only=["head.weight"]).weight_gradient
    inputs = [last_inputs("small", "sentences", 0, 0, said) for said in SAID[:2]]
    torch.testing.assert_close(last_gradient(model, torch.cat(inputs), [*tokens[0], *tokens[1]]), whole)


@pytest.mark.parametrize("defense", ["sign", "grad-drop/0.5", "grad-drop/0.9", "quantize/8", "gaussian/0.0001"])
def test_a_gradient_that_was_changed_is_refused(model: Recogniser, defense: str) -> None:
    tokens = tokens_of(SAID[0])
    changed = defenses.named(defense, generator=torch.Generator().manual_seed(0))
    leak = observe_speech(model, [pseudo_speech(SAID[0])], [tokens], only=["head.weight"], defense=changed)
    with pytest.raises(InputError, match="of its norm instead of zero"):
        reveal_words(leak)


def test_as_coded_is_told_the_length(model: Recogniser) -> None:
    tokens = tokens_of(SAID[0])
    gradient = observe_speech(model, [pseudo_speech(SAID[0])], [tokens]).weight_gradient
    found, _ = rlg_as_coded(gradient, len(tokens))
    assert found == set(tokens)
    # The screening passes the same classes, also of a gradient with dropped entries, and few if only signs are sent.
    assert rlg_screened(gradient, len(tokens))[0] == found
    dropped = defenses.named("grad-drop/0.5", generator=None)({"gradient": gradient})["gradient"]
    assert rlg_screened(dropped, len(tokens))[0] == found
    assert len(rlg_screened(gradient.sign(), len(tokens))[0]) < len(found)
    half, _ = rlg_as_coded(gradient, len(tokens) // 2)
    assert half != set(tokens)


def test_the_rank_of_a_difference_of_weights_is_above_their_rounding(model: Recogniser) -> None:
    said = SAID[:2]
    tokens = [tokens_of(one) for one in said]
    sounds = [pseudo_speech(one) for one in said]
    leak = observe_speech(model, sounds, tokens, local_steps=2, difference=True)
    weight, length = model.head.weight.detach(), sum(map(len, tokens))
    assert reveal_words(observe_speech(model, sounds, tokens, local_steps=2)).count == length
    assert length - 2 <= rounded_rank(leak.weight_gradient, weight, 0.1, 2) <= length
    # Rounding alone is of rank nothing.
    noise = ((weight + 1e-9 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))) - weight) / 0.1
    assert rounded_rank(noise, weight, 0.1) == 0


@pytest.mark.parametrize("defense", ["none", "sign", "grad-drop/0.5", "grad-drop/0.9"])
def test_rows_that_point_away_are_words(model: Recogniser, defense: str) -> None:
    for said in SAID[:3]:
        tokens = tokens_of(said)
        leak = observe_speech(model, [pseudo_speech(said)], [tokens], defense=defenses.named(defense))
        assert outlying_words(leak.weight_gradient) == set(tokens)


class Mapped(nn.Module):
    """A classifier of bags of words that changes its tokens before it looks them up."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.embedding, self.head = change, nn.Embedding(50, 32), nn.Linear(32, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(self.change(tokens)).mean(dim=1))


@pytest.mark.parametrize(
    ("change", "tokens"),
    {
        "plain": (lambda own: own, {7, 8, 30}),
        "next": (lambda own: own + 1, {7, 8, 30}),
        "two for one": (lambda own: own // 2, {6, 8, 30}),
        "rare words": (lambda own: own.where(own < 20, 1), {1, 7, 8}),
        "reversed": (lambda own: own.flip(1), {7, 8, 30}),
    }.values(),
)
def test_rows_of_an_embedding_are_read_as_the_tokens_that_move_them(
    change: Callable[[Tensor], Tensor], tokens: set[int]
) -> None:
    torch.manual_seed(0)
    leak = observe(Mapped(change), torch.tensor([[7, 8, 30, 7]]), torch.tensor([2]))
    subject = subject_of(leak, "tokens", sequence=False)
    case = Case(leak, subject, "none", "onehot", CrossEntropy(), 0, 1, Reach((), ""))
    assert EMBEDDING_ROWS.run(case).tokens == tokens
