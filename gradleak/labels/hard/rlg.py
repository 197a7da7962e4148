"""RLG (dang2021): a class is in the batch if a plane parts its row of the gradient from all others."""

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
# A plane parts a row from the others if it lies this far from their cone, all rows of length 1.
MARGIN = {torch.float32: 1e-4, torch.float64: 1e-8}
# A gradient of more entries is not decomposed whole, and of so many rows of it the screening looks at first.
LARGE, SOME = 4_000_000, 2000
# Directions beyond the rank that a decomposition by random products carries along.
SPARE = 8
# A gradient may take so many seconds: how long a linear program goes on is not known before it ends.
SECONDS = 120.0


def rlg(weight_gradient: Tensor, rank: int | None = None, seconds: float = SECONDS) -> set[int]:
    """Return the classes, each once, that occur in the batch whose gradient (C, I) this is.

    Threat model: gradients only. Known: nothing, not the batch size; one-hot labels; fewer samples than features and
    than classes, so that the gradient's rank is the number of samples. Features may have any sign.
    `rank`: the batch's size, if it is known; otherwise how many singular values stand out of the rounding, rows divided
    by their size (`gradleak.spans`): the small rows tell that a class comes again. What takes longer than `seconds` is
    refused, not guessed.
    """
    until = time.monotonic() + seconds
    if weight_gradient.ndim != 2:
        raise InputError(f"RLG reads one gradient (C, I); got {tuple(weight_gradient.shape)}")
    points = _points(weight_gradient, rank)
    rank = points.shape[1]
    if rank < 1:
        return set()
    classes, width = weight_gradient.shape
    # Rows add up to nothing, so that C − 1 is the most; then every row can be parted from the others.
    if rank >= min(classes - 1, width):
        raise InputError(
            f"RLG needs fewer samples than features, and than classes less one; this gradient has rank {rank}, the "
            f"most that {classes} classes and {width} features allow"
        )
    q = points.cpu().numpy()
    sizes = np.linalg.norm(q, axis=1)
    # A row of nothing says nothing: its class is neither in the batch nor predicted.
    there = np.flatnonzero(sizes > np.finfo(np.float64).eps * sizes.max())
    q = q[there] / sizes[there, None]
    margin = MARGIN.get(weight_gradient.dtype, 1e-2)
    kept = _candidates(q, _heaviest(weight_gradient, there), until)
    return {int(there[row]) for row in kept if _distance(q, int(row), until) > margin}


def _points(gradient: Tensor, rank: int | None) -> Tensor:
    """Return every class's point (C, S), up to a regular map of the space and a factor a point."""
    if rank is None:
        return classes_span(gradient).vectors
    if gradient.numel() > LARGE:
        return leading(gradient, rank, rounds=4)[0]
    rows: Tensor = torch.linalg.svd(gradient.double(), full_matrices=False)[0]
    return rows[:, :rank]


def leading(gradient: Tensor, rank: int, *, rounds: int) -> tuple[Tensor, Tensor]:
    """Return the leading left singular vectors (C, S) of a gradient, and the singular values found with some to spare.

    By random products in its own precision's arithmetic, `rounds` of them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vectors, singular, _ = torch.svd_lowrank(gradient, min(rank + SPARE, *gradient.shape), niter=rounds)
    return vectors[:, :rank].to(torch.float64), singular


def _heaviest(gradient: Tensor, there: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return the places, among rows that are there, of a large gradient's largest ones; None, for all, of a small one.

    Those dang2021's screening looks at.
    """
    if gradient.numel() <= LARGE:
        return None
    sizes = np.concatenate([rows.abs().amax(dim=1).cpu().numpy() for rows in gradient.split(256)])[there]
    order: NDArray[np.intp] = np.argsort(-sizes, kind="stable")[:SOME]
    return order


def _candidates(q: Array, some: NDArray[np.intp] | None, until: float) -> NDArray[np.intp]:
    """Return the rows that may be parted from all others, looked for among `some` first."""
    if some is not None and len(some) < len(q):
        chosen = candidates(q[some], until)
        # All of them are returned where no few rows' cone is the whole space.
        if len(chosen) < len(some):
            return np.sort(some[chosen])
    return candidates(q, until)


def candidates(q: Array, until: float) -> NDArray[np.intp]:
    """Return rows (at most twice their width) among which all that can be parted from the others must be.

    If some rows' cone is the whole space, any other row lies in it, and no plane parts that row from them. Such rows
    are those that carry one direction b, and those that carry −b: each direction is a positive sum of as many rows as
    the space has dimensions. If there is no such sum, every row is a candidate. `until`: the time of `time.monotonic`
    at which it is given up.
    """
    generator = np.random.default_rng(0)
    direction = generator.standard_normal(q.shape[1])
    found = []
    for side in (direction, -direction):
        options = {"time_limit": _left(q, until)}
        answer = linprog(np.ones(len(q)), A_eq=q.T, b_eq=side, bounds=(0, None), method="highs-ds", options=options)
        _left(q, until)
        if answer.status != 0:
            return np.arange(len(q))
        found.append(np.flatnonzero(answer.x > 0))
    chosen = np.unique(np.concatenate(found))
    # Fewer carry a direction only by chance; then their cone is not the whole space.
    return chosen if min(map(len, found)) == q.shape[1] else np.arange(len(q))


def _left(q: Array, until: float) -> float:
    """Return the seconds that are left, and say so where none are."""
    left = until - time.monotonic()
    if left <= 0:
        raise InputError(f"RLG does not part {len(q)} classes in {q.shape[1]} dimensions in the time it is given")
    return left


def _distance(q: Array, row: int, until: float) -> float:
    """Return how far a row lies from the cone of all others: its non-negative least squares' residual."""
    _left(q, until)
    if len(q) == 1:
        # scipy's solver ends the process where there is nothing to combine.
        return float(np.linalg.norm(q[row]))
    return float(nnls(np.delete(q, row, axis=0).T, q[row])[1])
