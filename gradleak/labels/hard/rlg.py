"""RLG (dang2021): a class is in the batch if a plane parts its row of the gradient from all others."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from gradleak.errors import InputError

Array = NDArray[np.float64]
# A row is parted from the others if it lies this far behind their plane, all rows of length 1, |r|∞ ≤ 1.
MARGIN = {torch.float32: 1e-4, torch.float64: 1e-8}
# Of the rows that a plane leaves on the wrong side, how many more are looked at.
MORE = 200


def rlg(weight_gradient: Tensor, rank: int | None = None) -> set[int]:
    """Return the classes that occur in the batch whose gradient (C, I) this is.

    Threat model: gradients only. Known: nothing, not the batch size; one-hot labels; fewer samples than features and
    than classes, so that the gradient's rank is the number of samples. Features may have any sign.
    `rank`: the batch's size, if it is known; otherwise how many singular values stand out of the rounding.
    """
    if weight_gradient.ndim != 2:
        raise InputError(f"RLG reads one gradient (C, I); got {tuple(weight_gradient.shape)}")
    rows, singular, _ = torch.linalg.svd(weight_gradient.double(), full_matrices=False)
    rank = numerical_rank(singular, weight_gradient) if rank is None else rank
    if rank < 1:
        return set()
    classes, width = weight_gradient.shape
    # Rows add up to nothing, so that C − 1 is the most; then every row can be parted from the others.
    if rank >= min(classes - 1, width):
        raise InputError(
            f"RLG needs fewer samples than features, and than classes less one; this gradient has rank {rank}, the "
            f"most that {classes} classes and {width} features allow"
        )
    q = rows[:, :rank].cpu().numpy()
    sizes = np.linalg.norm(q, axis=1)
    # A row of nothing says nothing: its class is neither in the batch nor predicted.
    there = np.flatnonzero(sizes > np.finfo(np.float64).eps * sizes.max())
    q = q[there] / sizes[there, None]
    margin = MARGIN.get(weight_gradient.dtype, 1e-2)
    return {int(there[row]) for row in candidates(q) if parted(q, int(row), margin)}


def numerical_rank(singular: Tensor, like: Tensor) -> int:
    """Return how many singular values are above what rounding alone makes of a matrix of this shape and precision."""
    rounding = torch.finfo(like.dtype).eps * max(like.shape) ** 0.5
    return int((singular > rounding * singular[0]).sum()) if singular[0] > 0 else 0


def candidates(q: Array) -> NDArray[np.intp]:
    """Return rows (at most twice their width) among which all that can be parted from the others must be.

    If some rows' cone is the whole space, any other row lies in it, and no plane parts that row from them. Such rows
    are those that carry one direction b, and those that carry −b: each direction is a positive sum of as many rows as
    the space has dimensions. If there is no such sum, every row is a candidate.
    """
    generator = np.random.default_rng(0)
    direction = generator.standard_normal(q.shape[1])
    found = []
    for side in (direction, -direction):
        answer = linprog(np.ones(len(q)), A_eq=q.T, b_eq=side, bounds=(0, None), method="highs-ds")
        if answer.status != 0:
            return np.arange(len(q))
        found.append(np.flatnonzero(answer.x > 0))
    chosen = np.unique(np.concatenate(found))
    # Fewer carry a direction only by chance; then their cone is not the whole space.
    return chosen if min(map(len, found)) == q.shape[1] else np.arange(len(q))


def parted(q: Array, row: int, margin: float) -> bool:
    """Whether a plane r has this row behind it, r·q ≤ −margin, and no other: the linear program, rows as needed."""
    others = np.arange(len(q)) != row
    looked = np.zeros(len(q), dtype=bool)
    looked[np.argsort(-(q @ q[row]))[: MORE + 1]] = True
    looked[row] = False
    while True:
        answer = linprog(q[row], A_ub=-q[looked], b_ub=np.zeros(int(looked.sum())), bounds=(-1, 1), method="highs-ds")
        if answer.status != 0 or answer.fun > -margin:
            return False
        wrong = others & ~looked & (q @ answer.x < -margin / 10)
        if not wrong.any():
            return True
        looked[np.argsort(np.where(wrong, q @ answer.x, np.inf))[: min(MORE, int(wrong.sum()))]] = True
