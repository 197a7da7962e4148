"""Batches whose labels are counted: how they are drawn, and the accuracy of the counts."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak import augment, data, metrics
from gradleak.studies import Row


class Accuracy(Row):
    """The accuracy of one attack's label counts, averaged over batches.

    Attributes:
        attack: The attack's name.
        classes: The mean class accuracy, the Jaccard index of found and true sets of classes.
        instances: The mean instance accuracy, the Jaccard index of found and true counts.
        spread: The standard deviation of the instance accuracy.
        count: The number of batches.
    """

    attack: str
    classes: float
    instances: float
    spread: float
    count: int


def skewed(private: data.Dataset, size: int, share: float, generator: torch.Generator) -> Tensor:
    """Return the indices (B,) of a batch in which a share of the samples has the same class.

    The other samples have random other classes. With a share of 0 all classes are drawn at random.
    """
    wanted = torch.randint(private.classes, (size,), generator=generator)
    if share:
        few = round(share * size)
        others = wanted[few:] % (private.classes - 1)
        first = int(torch.randint(private.classes, (1,), generator=generator))
        wanted = torch.cat([torch.full((few,), first), others + (others >= first)])
    return augment.samples_of(private.labels, wanted, generator)


def accuracies(counts: Tensor, truth: Tensor) -> Tensor:
    """Return the class and the instance accuracy (N, 2) of every batch, from found and true counts (N, C)."""
    return torch.stack([metrics.class_jaccard(counts, truth), metrics.count_jaccard(counts, truth)], dim=1)


def accuracy(attack: str, batches: list[Tensor]) -> Accuracy:
    """Average an attack's results over batches; each tensor (N, 2) holds the `accuracies` of some batches."""
    results = torch.cat(batches)
    classes, instances = results.unbind(dim=1)
    return Accuracy(
        attack=attack,
        classes=float(classes.mean()),
        instances=float(instances.mean()),
        spread=float(instances.std()) if len(results) > 1 else 0.0,
        count=len(results),
    )
