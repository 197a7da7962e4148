"""Reveal classes by RLG (dang2021): a class is in the batch if a plane separates its row from all others."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls
from torch import Tensor

from gradleak.errors import InputError
from gradleak.spans import classes_span

Array = NDArray[np.float64]
# A row counts as separated if it lies this far from the cone of the others, with all rows scaled to length 1.
MARGIN = {torch.float32: 1e-4, torch.float64: 1e-8}
# A gradient with more than LARGE entries gets a partial decomposition, and the screening begins with its SOME largest
# rows.
LARGE, SOME = 4_000_000, 2000
# Directions beyond the rank that the randomised decomposition computes.
SPARE = 8
# Time limit for a gradient (s), since the duration of a linear program is not known in advance.
SECONDS = 120.0


def rlg(weight_gradient: Tensor, rank: int | None = None, seconds: float = SECONDS) -> set[int]:
    """Return the classes, each once, that occur in the batch with this gradient (C, I).

    Threat model: gradients only. Known: one-hot labels, and fewer samples than features and than classes, so that the
    gradient's rank is the number of samples. The batch size may be unknown, and features may have any sign.

    Args:
        weight_gradient: Gradient of the last layer's weight (C, I).
        rank: The batch size, if known. By default the number of singular values above rounding after division of the
            rows by their length (`gradleak.spans`): small rows distinguish samples of the same class.
        seconds: The time limit; a gradient that takes longer is refused, not guessed.
    """
    until = time.monotonic() + seconds
    if weight_gradient.ndim != 2:
        raise InputError(f"RLG reads one gradient (C, I); got {tuple(weight_gradient.shape)}")
    points = _points(weight_gradient, rank)
    rank = points.shape[1]
    if rank < 1:
        return set()
    classes, width = weight_gradient.shape
    # Rows sum to zero, so the rank is at most C − 1; at that rank every row is separable from the others.
    if rank >= min(classes - 1, width):
        raise InputError(
            f"RLG needs fewer samples than features, and than classes less one; this gradient has rank {rank}, the "
            f"most that {classes} classes and {width} features allow"
        )
    q = points.cpu().numpy()
    sizes = np.linalg.norm(q, axis=1)
    # Skip rows of zeros: their classes are neither in the batch nor predicted.
    present = np.flatnonzero(sizes > np.finfo(np.float64).eps * sizes.max())
    q = q[present] / sizes[present, None]
    margin = MARGIN.get(weight_gradient.dtype, 1e-2)
    possible = _candidates(q, weight_gradient, present, until)
    return {int(present[row]) for row in possible if _distance_from_cone(q, int(row), until) > margin}


def _points(gradient: Tensor, rank: int | None) -> Tensor:
    """Return a point for every class (C, S), up to an invertible linear map and a factor for each point."""
    if rank is None:
        return classes_span(gradient).vectors
    if gradient.numel() > LARGE:
        return leading(gradient, rank, rounds=4)[0]
    rows: Tensor = torch.linalg.svd(gradient.double(), full_matrices=False)[0]
    return rows[:, :rank]


def leading(gradient: Tensor, rank: int, *, rounds: int) -> tuple[Tensor, Tensor]:
    """Return the leading left singular vectors (C, S) of a gradient, and a few more singular values than S.

    A randomised decomposition computes them in the gradient's precision, with `rounds` power iterations.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vectors, singular, _ = torch.svd_lowrank(gradient, min(rank + SPARE, *gradient.shape), niter=rounds)
    return vectors[:, :rank].to(torch.float64), singular


def _candidates(q: Array, gradient: Tensor, present: NDArray[np.intp], until: float) -> NDArray[np.intp]:
    """Return the rows of q that may be separable from all others; `present` are their rows of the gradient.

    For a large gradient the largest rows are examined first, as in dang2021's screening.
    """
    if gradient.numel() > LARGE and len(q) > SOME:
        sizes = np.concatenate([rows.abs().amax(dim=1).cpu().numpy() for rows in gradient.split(256)])[present]
        largest = np.argsort(-sizes, kind="stable")[:SOME]
        chosen = candidates(q[largest], until)
        # `candidates` returns all rows if it finds no few rows whose cone is the whole space.
        if len(chosen) < len(largest):
            return np.sort(largest[chosen])
    return candidates(q, until)


def candidates(q: Array, until: float) -> NDArray[np.intp]:
    """Return rows, at most twice as many as they have entries, that include all rows separable from the others.

    If the cone of some rows is the whole space, every other row lies in this cone and no plane separates it. Such rows
    are found for a direction b and for −b: each is a positive sum of as many rows as the space has dimensions. If there
    is no such sum, every row is a candidate. `until`: the time of `time.monotonic` at which the search gives up.
    """
    generator = np.random.default_rng(0)
    direction = generator.standard_normal(q.shape[1])
    supports = []
    for target in (direction, -direction):
        options = {"time_limit": _seconds_left(q, until)}
        answer = linprog(np.ones(len(q)), A_eq=q.T, b_eq=target, bounds=(0, None), method="highs-ds", options=options)
        _seconds_left(q, until)
        if answer.status != 0:
            return np.arange(len(q))
        supports.append(np.flatnonzero(answer.x > 0))
    rows = np.unique(np.concatenate(supports))
    # Fewer rows suffice for a direction only by chance; their cone is then not the whole space.
    return rows if min(map(len, supports)) == q.shape[1] else np.arange(len(q))


def _seconds_left(q: Array, until: float) -> float:
    """Return the seconds that are left; raise an error if there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise InputError(f"RLG does not part {len(q)} classes in {q.shape[1]} dimensions in the time it is given")
    return left


def _distance_from_cone(q: Array, row: int, until: float) -> float:
    """Return the distance of a row from the cone of all others, by non-negative least squares."""
    _seconds_left(q, until)
    if len(q) == 1:
        # scipy's solver crashes if there are no other rows.
        return float(np.linalg.norm(q[row]))
    return float(nnls(np.delete(q, row, axis=0).T, q[row])[1])
