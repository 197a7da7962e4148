"""Recovered labels of a study: the published searches as published, and the accuracy of any attack."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak import metrics
from gradleak.labels import SoftLabels, recover_soft_labels
from gradleak.labels.soft.single import Solver
from gradleak.studies import Columns

# A label whose L1 error is below this counts as recovered.
KNOWN = 1e-3


@dataclass(frozen=True)
class Search:
    """The result of a published search for N samples.

    Attributes:
        scalars: The scalars (N,), NaN where the search found none.
        labels: The labels (N, C).
        seconds: The time (s) for all samples.
    """

    scalars: Tensor
    labels: Tensor
    seconds: float

    @property
    def ended(self) -> Tensor:
        """Whether the search converged, (N,)."""
        return ~self.scalars.isnan()


def search(gradients: Tensor, weight: Tensor, prior: str, solver: Solver) -> Search:
    """Run one of the paper's algorithms on the CPU, as it was published."""
    started = time.perf_counter()
    found = recover_soft_labels(gradients.cpu(), weight.cpu(), prior=prior, solver=solver)
    return Search(found.scalars, found.labels, time.perf_counter() - started)


def search_both(gradients: Tensor, weight: Tensor, prior: str) -> tuple[Search, Search]:
    """Return the results of Algorithm 1 alone, and of Algorithm 1 followed by Algorithm 2 where it found nothing."""
    first = search(gradients, weight, prior, "lbfgs")
    lost = (~first.ended).nonzero()[:, 0]
    if len(lost) == 0:
        return first, first
    second = search(gradients.cpu()[lost], weight, prior, "pso")
    scalars, labels = first.scalars.clone(), first.labels.clone()
    scalars[lost], labels[lost] = second.scalars, second.labels
    return first, Search(scalars, labels, first.seconds + second.seconds)


def judged(labels: Tensor, status: Sequence[str], targets: Tensor) -> Columns:
    """Compare the labels that an exact solver found with the true ones; errors are those of labels called unique."""
    errors = metrics.label_error(labels, targets.to(labels))
    right, unique = errors < KNOWN, torch.tensor([one == "unique" for one in status], device=labels.device)
    known = errors[unique] if unique.any() else errors.new_full((1,), torch.nan)
    return statuses(status) | {
        "count": len(labels),
        "accuracy": percentage(right),
        "silent": int((unique & ~right).sum()),
        "mean_error": float(known.mean()),
        "spread_error": float(known.std()) if len(known) > 1 else None,
        "median_error": float(known.median()),
        "largest_error": float(known.max()),
    }


def truth_among(found: SoftLabels, targets: Tensor) -> float:
    """Return the percentage of samples whose true label (N, C) is among the candidates that an exact solver found."""
    pairs = zip(found.candidates, targets, strict=True)
    errors = [metrics.label_error(own.cpu(), true.expand_as(own)) for own, true in pairs]
    return percentage(torch.tensor([bool((error < 0.01).any()) for error in errors]))


def statuses(status: Sequence[str]) -> Columns:
    """Return the share of each status of an exact solver, in percent."""
    return {name: 100 * status.count(name) / len(status) for name in ("unique", "ambiguous", "failed")}


def percentage(values: Tensor) -> float:
    """Return the mean of shares, or the frequency of true values, in percent."""
    return 100 * float(values.double().mean())
