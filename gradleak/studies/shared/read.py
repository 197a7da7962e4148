"""Sentences that a client holds, and how much of them was read."""

from __future__ import annotations

import torch

from gradleak import data
from gradleak.sequences import Sentences
from gradleak.studies import Row


class Reading(Row):
    """How much of a batch was read, and what the reader says of it.

    `right`: the share of sentences that were read; `unique`: the reader says that no other sentences give this
    gradient; `wrongly_sure`: it says so of wrong ones; `tokens`: those of the batch, end marks included; `prefixes` and
    `rank`: how many prefixes lay in all spans, and the dimensions of these; `misfit`: how far the sentences' gradient
    is from the one that was seen.
    """

    exact: bool
    right: float
    status: str
    unique: bool
    wrongly_sure: bool
    tokens: int
    prefixes: int
    rank: int
    misfit: float


def private_of(text: str, size: int, number: int, seed: int) -> list[list[int]]:
    """Return the sentences of a batch, drawn from all that are attacked; the same one may be drawn again."""
    sentences, pieces = data.texts(text, "test"), data.vocabulary(text)
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * size + number)
    return [pieces.encode(sentences[one]) for one in torch.randint(len(sentences), (size,), generator=generator)]


def reading_of(read: Sentences, private: list[list[int]]) -> Reading:
    """Return how much of a batch was read, and whether the reader promised what is not so."""
    left, right = sorted(private), 0
    for sentence in read.all():
        if sentence in left:
            left.remove(sentence)
            right += 1
    exact = read.all() == sorted(private)
    return Reading(
        exact=exact,
        right=right / len(private),
        status=read.status,
        unique=read.status == "unique",
        wrongly_sure=read.status == "unique" and not exact,
        tokens=sum(map(len, private)) + len(private),
        prefixes=read.prefixes,
        rank=read.rank,
        misfit=read.misfit,
    )
