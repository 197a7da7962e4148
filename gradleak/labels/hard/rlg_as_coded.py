"""RLG as dang2021's code runs it: told the rank, raw rows, single precision; on speech, and on images."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.hard.rlg import SECONDS as SCREENED
from gradleak.labels.hard.rlg import Array, candidates, leading

Rows = NDArray[np.bool_]

LARGEST = 5000  # classes that the linear program looks at
# The code counts a gradient's tokens as its singular values above this.
COUNTED = 1e-5
TOLERANCE = 1e-7  # of its solver
SECONDS = 5.0  # that one linear program may take; no answer is a no
# Of the rows that a plane leaves on the wrong side, how many more are looked at.
MORE = 200
# Candidates beyond which no class is asked for: every one costs a linear program.
MOST = 200
# On images: the largest points that a class is to be parted from, and how far behind they may lie where it is at −1.
LARGEST_OF_IMAGES, LOOSE = 199, 1e-2


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
    chosen = candidates(q[there] / sizes[there, None], time.monotonic() + SCREENED)
    if len(chosen) > MOST:
        chosen = chosen[:MOST]
    found = {int(there[row]) for row in chosen if _parted(q[there], int(row))}
    return found, int((singular > COUNTED).sum())


def _parted(q: Array, row: int) -> bool:
    """Whether the linear program has a plane with this row behind it and no other: rows are looked at as needed."""
    others = np.arange(len(q)) != row
    looked = np.zeros(len(q), dtype=bool)
    looked[np.argsort(-(q @ q[row]) / np.linalg.norm(q, axis=1))[: MORE + 1]] = True
    looked[row] = False
    while True:
        found = _feasible(q, row, looked)
        if found is None:
            return False
        sides = q @ found
        wrong = others & ~looked & (sides < -TOLERANCE)
        if not wrong.any():
            return True
        looked[np.argsort(np.where(wrong, sides, np.inf))[: min(MORE, int(wrong.sum()))]] = True


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


def rlg_as_coded_on_images(weight_gradient: Tensor, rank: int) -> set[int]:
    """Return the classes that the code accepts in a gradient (C, I), whose `rank` it is told.

    A class is accepted if some plane that has it at −1 leaves none of the 199 largest points further behind than 0.01.
    The screening before that, 90 % of all points on the right side, accepts every class and is left out.
    """
    q: Array = torch.linalg.svd(weight_gradient.float(), full_matrices=False)[0][:, :rank].double().cpu().numpy()
    sizes = np.linalg.norm(q, axis=1)
    largest = np.argsort(-sizes, kind="stable")[:LARGEST_OF_IMAGES]
    return {row for row in range(len(q)) if sizes[row] > 0 and _accepted(q[largest[largest != row]], q[row])}


def _accepted(others: Array, point: Array) -> bool:
    """Whether a plane has a point at −1 and none of the others further behind than is allowed."""
    # A point outside of the others' span is parted by a plane that holds all of them.
    beside = point - others.T @ np.linalg.lstsq(others.T, point, rcond=None)[0]
    if np.linalg.norm(beside) > 1e-6 * np.linalg.norm(point):
        return True
    # By duality: no weights λ ≥ 0 with which the others add up to the point have a sum of 1 / LOOSE or less.
    options = {"time_limit": SECONDS}
    answer = linprog(
        np.ones(len(others)), A_eq=others.T, b_eq=point, bounds=(0, None), method="highs-ds", options=options
    )
    return bool(answer.status == 2 or (answer.status == 0 and answer.fun > 1 / LOOSE))
