"""Recovered labels of a study: the published searches, as they were published, and how often any attack is right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak import metrics
from gradleak.labels import recover_soft_labels
from gradleak.labels.soft.single import Solver
from gradleak.studies import Row

# A label within this of the truth (L1) counts as recovered.
KNOWN = 1e-3


@dataclass(frozen=True)
class Search:
    """What a published search found of N samples: scalars (N,), NaN where it found none; labels (N, C); its seconds."""

    scalars: Tensor
    labels: Tensor
    seconds: float

    @property
    def ended(self) -> Tensor:
        """Whether the search stopped by itself, (N,)."""
        return ~self.scalars.isnan()


def search(gradients: Tensor, weight: Tensor, prior: str, solver: Solver) -> Search:
    """Run one of the paper's algorithms on the CPU, as it was published."""
    started = time.perf_counter()
    found = recover_soft_labels(gradients.cpu(), weight.cpu(), prior=prior, solver=solver)
    return Search(found.scalars, found.labels, time.perf_counter() - started)


def search_both(gradients: Tensor, weight: Tensor, prior: str) -> tuple[Search, Search]:
    """Run Algorithm 1; and Algorithm 2 where it found nothing, as the paper does. Return the first alone, and both."""
    first = search(gradients, weight, prior, "lbfgs")
    lost = (~first.ended).nonzero()[:, 0]
    if len(lost) == 0:
        return first, first
    second = search(gradients.cpu()[lost], weight, prior, "pso")
    scalars, labels = first.scalars.clone(), first.labels.clone()
    scalars[lost], labels[lost] = second.scalars, second.labels
    return first, Search(scalars, labels, first.seconds + second.seconds)


class Judged(Row):
    """How many labels an exact solver recovered and what it says of them, in percent.

    Errors (L1) are those of the labels that it calls unique; `silent`: how many of these are wrong.
    """

    count: int
    accuracy: float
    unique: float
    ambiguous: float
    failed: float
    silent: int
    mean_error: float
    spread_error: float | None
    median_error: float
    largest_error: float


def judged(labels: Tensor, status: Sequence[str], targets: Tensor) -> Judged:
    """Compare the labels that an exact solver found with the true ones."""
    errors = metrics.label_error(labels, targets.to(labels))
    right, unique = errors < KNOWN, torch.tensor([one == "unique" for one in status], device=labels.device)
    known = errors[unique] if unique.any() else errors.new_full((1,), torch.nan)
    return Judged(
        count=len(labels),
        accuracy=percentage(right),
        silent=int((unique & ~right).sum()),
        mean_error=float(known.mean()),
        spread_error=float(known.std()) if len(known) > 1 else None,
        median_error=float(known.median()),
        largest_error=float(known.max()),
        **statuses(status),
    )


def statuses(status: Sequence[str]) -> dict[str, float]:
    """Return how often an exact solver says each thing of a label, in percent."""
    return {name: 100 * status.count(name) / len(status) for name in ("unique", "ambiguous", "failed")}


def percentage(values: Tensor) -> float:
    """Return the mean of shares in percent, or how often something is true."""
    return 100 * float(values.double().mean())
