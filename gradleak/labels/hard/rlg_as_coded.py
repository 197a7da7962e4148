"""RLG as dang2021's code runs it on speech: told the number of tokens, raw rows, single precision."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.hard.rlg import Array, Rows, candidates, leading, parted

LARGEST = 5000  # classes that the linear program looks at
# The code counts a gradient's tokens as its singular values above this.
COUNTED = 1e-5
TOLERANCE = 1e-7  # of its solver
SECONDS = 5.0  # that one linear program may take; no answer is a no
# Candidates beyond which no class is asked for: every one costs a linear program.
MOST = 200


def rlg_as_coded(weight_gradient: Tensor, rank: int) -> tuple[set[int], int]:
    """Return the classes of a batch whose gradient (C, I) this is and whose rank is told, and the rank it counts.

    Its linear program is solved in the form r·q_c = −1, r·q_j ≥ 0, which has a solution where the code's is unbounded.
    The perceptron's screening, which is not exact, is replaced by one that is.
    """
    if weight_gradient.ndim != 2 or not 1 <= rank < min(weight_gradient.shape):
        raise InputError(f"a rank of {rank} does not go with a gradient of shape {tuple(weight_gradient.shape)}")
    vectors, singular = leading(weight_gradient.float(), rank, rounds=2)
    q: Array = vectors.cpu().numpy()
    sizes = np.linalg.norm(q, axis=1)
    largest = np.argsort(-sizes, kind="stable")[: min(LARGEST, len(q))]
    there = largest[sizes[largest] > 0]
    chosen = candidates(q[there] / sizes[there, None])
    if len(chosen) > MOST:
        chosen = chosen[:MOST]
    found = {int(there[row]) for row in chosen if parted(q[there], int(row), _feasible, TOLERANCE)}
    return found, int((singular > COUNTED).sum())


def _feasible(q: Array, row: int, looked: Rows) -> Array | None:
    """Return some r that has r·q_c = −1 and r·q_j ≥ 0 for the rows looked at."""
    answer = linprog(
        np.zeros(q.shape[1]),
        A_ub=-q[looked],
        b_ub=np.zeros(int(looked.sum())),
        A_eq=q[row][None],
        b_eq=[-1.0],
        bounds=(None, None),
        method="highs-ds",
        options={"time_limit": SECONDS},
    )
    return None if answer.status != 0 else answer.x
