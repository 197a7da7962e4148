"""RLG (dang2021) for words: of large gradients too, and of those whose small rows tell that a word comes again."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.hard.rlg import MARGIN, candidates, numerical_rank, parted
from gradleak.spans import classes_span

Array = NDArray[np.float64]
# A gradient of more entries is not decomposed whole.
LARGE = 4_000_000
SOME = 2000  # rows of it that the screening looks at first
# Directions beyond the rank that a decomposition by random products carries along.
SPARE = 8


def bag_of(weight_gradient: Tensor, rank: int | None = None) -> set[int]:
    """Return the classes, each once, that occur in the text whose gradient (C, I) this is.

    Threat model: gradients only. Known: nothing, not the batch size; one-hot labels; fewer samples than features and
    than classes, so that the gradient's rank is the number of samples. Features may have any sign.
    `rank`: the batch's size, if it is known; otherwise how many singular values stand out of the rounding, rows divided
    by their size (`gradleak.spans`).
    """
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
    kept = _candidates(q, _heaviest(weight_gradient, there))
    return {int(there[row]) for row in kept if parted(q, int(row), margin)}


def _points(gradient: Tensor, rank: int | None) -> Tensor:
    """Return every class's point (C, S), up to a regular map of the space and a factor a point."""
    if gradient.numel() > LARGE:
        # Too large to be decomposed whole.
        if rank is None:
            return classes_span(gradient).vectors
        return _leading(gradient, rank)
    rows, singular, _ = torch.linalg.svd(gradient.double(), full_matrices=False)
    if rank is None:
        rank = numerical_rank(singular, gradient)
        # Where no class occurs twice, rows of one length span as much, and the gradient is read as it is.
        if (equal := classes_span(gradient)).rank != rank:
            return equal.vectors
    first: Tensor = rows[:, :rank]
    return first


def _leading(gradient: Tensor, rank: int) -> Tensor:
    """Return the leading left singular vectors (C, S) of a large gradient, in its own precision's arithmetic."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vectors: Tensor = torch.svd_lowrank(gradient, rank + SPARE, niter=4)[0]
    return vectors[:, :rank].to(torch.float64)


def _heaviest(gradient: Tensor, there: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return the places, among rows that are there, of a large gradient's largest ones; None, for all, of a small one.

    Those dang2021's screening looks at.
    """
    if gradient.numel() <= LARGE:
        return None
    sizes = np.concatenate([rows.abs().amax(dim=1).cpu().numpy() for rows in gradient.split(256)])[there]
    order: NDArray[np.intp] = np.argsort(-sizes, kind="stable")[:SOME]
    return order


def _candidates(q: Array, some: NDArray[np.intp] | None) -> NDArray[np.intp]:
    """Return the rows that may be parted from all others, looked for among `some` first."""
    if some is not None and len(some) < len(q):
        chosen = candidates(q[some])
        # All of them are returned where no few rows' cone is the whole space.
        if len(chosen) < len(some):
            return np.sort(some[chosen])
    return candidates(q)
