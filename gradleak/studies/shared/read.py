"""The sentences of a client's batch, and how many of them an attack read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from gradleak import data
from gradleak.sequences import Sentences


def private_of(text: str, size: int, number: int, seed: int) -> list[list[int]]:
    """Return the sentences of a batch, drawn with replacement from the test split."""
    sentences, pieces = data.texts(text, "test"), data.vocabulary(text)
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * size + number)
    return [pieces.encode(sentences[one]) for one in torch.randint(len(sentences), (size,), generator=generator)]


def reading_of(read: Sentences, private: list[list[int]]) -> dict[str, Any]:
    """Compare the sentences that were read with the private ones.

    Returns:
        exact: Whether all sentences were read, and no others.
        right: The share of sentences that were read.
        status: The attack's status.
        unique: Whether the status is "unique": no other sentences give this gradient.
        wrongly_sure: Whether the status is "unique" although the sentences are wrong.
        tokens: The number of tokens of the batch, end marks included.
        prefixes: The number of prefixes that lie in all spans.
        rank: The rank of the gradient that spans the prefixes.
        misfit: The relative distance of the sentences' gradient from the observed one.
    """
    both = Counter(map(tuple, private)) & Counter(map(tuple, read.all()))
    exact = read.all() == sorted(private)
    return {
        "exact": exact,
        "right": both.total() / len(private),
        "status": read.status,
        "unique": read.status == "unique",
        "wrongly_sure": read.status == "unique" and not exact,
        "tokens": sum(map(len, private)) + len(private),
        "prefixes": read.prefixes,
        "rank": read.rank,
        "misfit": read.misfit,
    }
