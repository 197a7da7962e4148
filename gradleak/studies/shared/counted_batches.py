"""Batches whose labels are counted: how they are drawn, and how right the counts are."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak import augment, data, metrics
from gradleak.studies import Row


class Accuracy(Row):
    """How right one attack's counts are: its class and its instance accuracy, Jaccard indices, on average.

    `spread`: the standard deviation of the instance accuracy over `count` batches.
    """

    attack: str
    classes: float
    instances: float
    spread: float
    count: int


def skewed(private: data.Dataset, size: int, share: float, generator: torch.Generator) -> Tensor:
    """Return a batch's indices (B,): classes at random, or this share of one class and the rest of the others."""
    wanted = torch.randint(private.classes, (size,), generator=generator)
    if share:
        few = round(share * size)
        others = wanted[few:] % (private.classes - 1)
        first = int(torch.randint(private.classes, (1,), generator=generator))
        wanted = torch.cat([torch.full((few,), first), others + (others >= first)])
    return augment.samples_of(private.labels, wanted, generator)


def accuracies(counts: Tensor, truth: Tensor) -> Tensor:
    """Return the class and the instance accuracy of every batch, (N, 2), by counts and true counts (N, C)."""
    return torch.stack([metrics.class_jaccard(counts, truth), metrics.count_jaccard(counts, truth)], dim=1)


def accuracy(attack: str, batches: list[Tensor]) -> Accuracy:
    """Return an attack's accuracy over batches, by the `accuracies` of some at a time."""
    results = torch.cat(batches)
    classes, instances = results.unbind(dim=1)
    return Accuracy(
        attack=attack,
        classes=float(classes.mean()),
        instances=float(instances.mean()),
        spread=float(instances.std()) if len(results) > 1 else 0.0,
        count=len(results),
    )
