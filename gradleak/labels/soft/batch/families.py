"""List the labels that a sample of a batch may have, grouped by the classes that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError
from gradleak.labels.priors import LabelPrior, prior_of

# Pairs of classes that are tried at most.
MOST_FAMILIES = 20_000


@dataclass(frozen=True)
class Families:
    """Labels y₀ + s y₁ with an unknown share s, one family for each choice of named classes.

    Attributes:
        classes: The named classes of each family, (F, 1), or (F, 2) for mixed labels; for known labels, the row in
            `known`.
        kind: The shape of the labels.
        count: The number of classes C.
        known: The known labels, if any (F, C).
    """

    classes: Tensor
    kind: Literal["smoothing", "onehot", "mixup", "known"]
    count: int
    known: Tensor | None = None

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def free(self) -> int:
        """The number of unknowns in a label of a given family: 1 or 0."""
        return int(self.kind in ("smoothing", "mixup"))

    def parts(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return y₀ (P, C) and y₁ (P, C) of the families `which` (P,)."""
        if self.known is not None:
            base = self.known[self.classes[which, 0]]
            return base, torch.zeros_like(base)
        base = F.one_hot(self.classes[which, 0], self.count).double()
        if self.kind == "smoothing":
            return base, 1 / self.count - base
        if self.kind == "mixup":
            return base, F.one_hot(self.classes[which, 1], self.count).double() - base
        return base, torch.zeros_like(base)


def families_of(prior: str | LabelPrior, labels: Tensor | None, classes: int, device: torch.device) -> Families:
    """Return the families that a prior allows, or one family for each distinct known label (B, C)."""
    all_classes = torch.arange(classes, device=device)[:, None]
    if labels is not None:
        if labels.ndim != 2 or labels.shape[1] != classes:
            raise InputError(f"known labels must be (B, C) with C = {classes}; got {tuple(labels.shape)}")
        distinct = labels.to(device).double().unique(dim=0)
        return Families(torch.arange(len(distinct), device=device)[:, None], "known", classes, distinct)
    label_prior = prior_of(prior) if isinstance(prior, str) else prior
    if label_prior == LabelPrior(1, "equal"):
        return Families(all_classes, "smoothing", classes)
    if label_prior == LabelPrior(1, "zero"):
        return Families(all_classes, "onehot", classes)
    if label_prior != LabelPrior(2, "zero"):
        raise InputError("the labels of a batch are one-hot, smoothed, or mixtures of two classes")
    if classes * (classes - 1) // 2 > MOST_FAMILIES:
        raise InputError(f"{classes} classes have {classes * (classes - 1) // 2} pairs: too many to try in a batch")
    return Families(torch.combinations(torch.arange(classes, device=device)), "mixup", classes)
