"""List the labels that a sample of a batch may have, grouped by the classes that they name."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError
from gradleak.labels.priors import PRIORS, LabelPrior, prior_of

# Pairs of classes that are tried at most.
MOST_FAMILIES = 20_000


@dataclass(frozen=True)
class Families:
    """Labels y₀ + s y₁ with an unknown share s, one family for each choice of named classes.

    Attributes:
        prior: The shape of the labels.
        count: The number of classes C.
        classes: The named classes of each family, (F, 1), or (F, 2) for mixed labels; for known labels, the row in
            `known`.
        known: The known labels, if any (F, C).
    """

    prior: LabelPrior
    count: int
    classes: Tensor
    known: Tensor | None = None

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def free(self) -> int:
        """The number of unknowns in a label of a given family: 1 or 0."""
        return int(self.known is None and self.prior != PRIORS["onehot"])

    def parts(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return y₀ (P, C) and y₁ (P, C) of the families `which` (P,)."""
        first, *second = self.classes[which].unbind(dim=1)
        base = F.one_hot(first, self.count).double() if self.known is None else self.known[first]
        if not self.free:
            return base, torch.zeros_like(base)
        return base, (F.one_hot(second[0], self.count).double() if second else 1 / self.count) - base


def families_of(prior: str | LabelPrior, labels: Tensor | None, classes: int, device: torch.device) -> Families:
    """Return the families that a prior allows, or one family for each distinct known label (B, C)."""
    label_prior = prior_of(prior) if isinstance(prior, str) else prior
    if labels is not None:
        if labels.ndim != 2 or labels.shape[1] != classes:
            raise InputError(f"known labels must be (B, C) with C = {classes}; got {tuple(labels.shape)}")
        distinct = labels.to(device).double().unique(dim=0)
        return Families(label_prior, classes, torch.arange(len(distinct), device=device)[:, None], distinct)
    if label_prior not in PRIORS.values():
        raise InputError("the labels of a batch are one-hot, smoothed, or mixtures of two classes")
    if label_prior.free == 2 and classes * (classes - 1) // 2 > MOST_FAMILIES:
        raise InputError(f"{classes} classes have {classes * (classes - 1) // 2} pairs: too many to try in a batch")
    return Families(label_prior, classes, torch.combinations(torch.arange(classes, device=device), label_prior.free))
