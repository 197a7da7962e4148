"""Sentences as ends of prefixes: weights and missing layers do not hide them, noise does."""

from __future__ import annotations

import pytest
import torch

from gradleak import defenses
from gradleak.errors import InputError
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.sequences import read_prefixes, read_sentences

PRIVATE = [[7, 8, 9, 10], [7, 11, 12], [20, 21, 22, 23, 24]]


def weighted(kind: str, noise: float = 0.0) -> Leak:
    """Return the mean of three sentences' gradients, each clipped by itself, with noise."""
    model = build_language_model(kind, pieces=60, width=32, layers=1, seed=1)
    own = [defenses.clip(0.3)(observe(model, *batch_of([one])).gradients) for one in PRIVATE]
    sent = defenses.gaussian(noise, torch.Generator().manual_seed(0))(defenses.average(own))
    return Leak(model, sent, "head", len(PRIVATE))


def without(leak: Leak, layer: str) -> Leak:
    """Return what is left where a layer's gradient is not sent."""
    kept = {name: value for name, value in leak.gradients.items() if not name.startswith(layer)}
    return Leak(leak.model, kept, leak.head, leak.batch_size)


@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_sentences_that_are_clipped_one_by_one_are_read_without_counts(kind: str) -> None:
    leak = weighted(kind)
    assert read_prefixes(leak) == sorted(PRIVATE)
    assert read_sentences(leak).status != "unique", "weights are no counts"


def test_weights_that_happen_to_be_nearly_whole_are_no_counts() -> None:
    counted = read_sentences(weighted("lstm"))
    assert counted.misfit < 1e-3
    assert "sentences of a batch of 3" in counted.reason


@pytest.mark.parametrize("noise", [1e-7, 1e-6, 1e-5])
def test_a_little_noise_does_not_hide_them(noise: float) -> None:
    found = read_prefixes(weighted("lstm", noise))
    assert all(one in found for one in PRIVATE)


def test_noise_hides_them() -> None:
    found = read_prefixes(weighted("lstm", noise=0.1))
    assert not any(one in found for one in PRIVATE)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_the_last_layer_is_not_needed(kind: str) -> None:
    found = read_prefixes(without(weighted(kind), "head"))
    assert all(one in found for one in PRIVATE)


def test_layers_that_are_needed_are_named() -> None:
    leak = weighted("lstm")
    for read in (read_prefixes, read_sentences):
        with pytest.raises(InputError, match=r"'recurrent\.weight_ih_l0' is not sent"):
            read(without(leak, "recurrent"))
    with pytest.raises(InputError, match=r"'head\.weight' is not sent"):
        read_sentences(without(leak, "head"))


def test_the_embedding_is_needed_by_neither() -> None:
    model = weighted("gru").model
    leak = without(observe(model, *batch_of(PRIVATE)), "embedding")
    assert read_prefixes(leak) == sorted(PRIVATE)
    assert read_sentences(leak).all() == sorted(PRIVATE)


def test_only_some_words_are_tried() -> None:
    assert read_prefixes(weighted("lstm"), words=[7, 8, 9, 10]) == [PRIVATE[0]]
