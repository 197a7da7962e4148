"""Batches whose labels are counted: how they are drawn, and the accuracy of the counts."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak import augment, data, metrics
from gradleak.studies import Columns


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


def accuracy(attack: str, counts: list[Tensor], truth: list[Tensor]) -> Columns:
    """Return a row with an attack's accuracy, averaged over batches, from found and true counts (N, C) of some batches.

    Returns:
        The class accuracy, which is the Jaccard index of found and true sets of classes; the instance accuracy, which
        is the Jaccard index of found and true counts, with its standard deviation; and the number of batches.
    """
    found, true = torch.cat(counts), torch.cat(truth)
    instances = metrics.count_jaccard(found, true)
    return {
        "attack": attack,
        "classes": float(metrics.class_jaccard(found, true).mean()),
        "instances": float(instances.mean()),
        "spread": float(instances.std()) if len(instances) > 1 else 0.0,
        "count": len(instances),
    }
