"""Run RLG as dang2021's code does, for speech and for images: with a given rank, raw rows, and single precision."""

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

LARGEST = 5000  # classes that enter the linear program
# The code takes the number of singular values above this as the number of tokens.
COUNTED = 1e-5
TOLERANCE = 1e-7  # of the code's solver
SECONDS = 5.0  # time limit for one linear program; no answer counts as no
# Rows on the wrong side of a plane that are added to the program at a time.
MORE = 200
# Candidates that are tested at most, since each needs a linear program.
MOST = 200
# For speech, the screening: the number of other classes that a class is separated from, and the perceptron's epochs. It
# stops after the fifth epoch without a gain in its loss, and the loss is too small for a gain after the first.
SCREENED_FROM, EPOCHS = 1000, 6
# For images: the number of largest points that a class is separated from, and the distance that these may lie behind a
# plane that has the class at −1.
LARGEST_OF_IMAGES, LOOSE = 199, 1e-2


def rlg_as_coded(weight_gradient: Tensor, rank: int) -> tuple[set[int], int]:
    """Return the classes of a batch with this gradient (C, I) and rank, and the number of tokens that the code counts.

    The linear program is solved as r·q_c = −1, r·q_j ≥ 0, which has a solution where the code's program is unbounded.
    The code's screening by a perceptron is not exact, and is replaced by an exact one.
    """
    q, counted = _decomposed(weight_gradient, rank)
    sizes = np.linalg.norm(q, axis=1)
    largest = np.argsort(-sizes, kind="stable")[: min(LARGEST, len(q))]
    nonzero = largest[sizes[largest] > 0]
    rows = candidates(q[nonzero] / sizes[nonzero, None], time.monotonic() + SCREENED)
    if len(rows) > MOST:
        rows = rows[:MOST]
    classes = {int(nonzero[row]) for row in rows if _separated(q[nonzero], int(row))}
    return classes, counted


def rlg_screened(weight_gradient: Tensor, rank: int) -> tuple[set[int], int]:
    """Return the classes that pass the code's screening of a gradient (C, I) with given rank, and its count of tokens.

    This is for a compressed gradient, whose linear program mostly has no solution. The code's solver then stops at some
    point, and a class is accepted if more than half of the conditions hold there. All classes that had passed the
    screening were accepted when this was tried, so that the program is left out. `rlg_as_coded` computes exactly what
    remains if there is a solution.

    The screening trains a perceptron with intercept to separate a class from a thousand random others, the same ones
    for every class here. A class passes if all of them end on the right side.
    """
    q, counted = _decomposed(weight_gradient, rank)
    generator = np.random.default_rng(0)
    drawn = generator.choice(len(q), min(SCREENED_FROM, len(q)), replace=False)
    normals, intercepts, sides = np.zeros_like(q), np.zeros(len(q)), np.empty(len(q))
    for _ in range(EPOCHS):
        for place in generator.permutation(len(drawn) + 1):
            if place == len(drawn):
                missed = np.einsum("cs,cs->c", normals, q) + intercepts <= 0
                normals[missed] += q[missed]
                intercepts[missed] += 1
                continue
            other = drawn[place]
            np.matmul(normals, q[other], out=sides)
            sides += intercepts
            sides[other] = -1  # a class is not separated from itself
            missed = np.flatnonzero(sides >= 0)
            normals[missed] -= q[other]
            intercepts[missed] -= 1
    right = np.einsum("cs,cs->c", normals, q) + intercepts > 0
    for other in drawn:
        wrong = normals @ q[other] + intercepts > 0
        wrong[other] = False
        right &= ~wrong
    return set(np.flatnonzero(right).tolist()), counted


def _decomposed(weight_gradient: Tensor, rank: int) -> tuple[Array, int]:
    """Return the leading left singular vectors (C, S), and the number of tokens that the code counts."""
    if weight_gradient.ndim != 2 or not 1 <= rank < min(weight_gradient.shape):
        raise InputError(f"a rank of {rank} does not go with a gradient of shape {tuple(weight_gradient.shape)}")
    vectors, singular = leading(weight_gradient.float(), rank, rounds=2)
    return vectors.cpu().numpy(), int((singular > COUNTED).sum())


def _separated(q: Array, row: int) -> bool:
    """Return whether a plane has only this row behind it; other rows enter the linear program as needed."""
    others = np.arange(len(q)) != row
    examined = np.zeros(len(q), dtype=bool)
    examined[np.argsort(-(q @ q[row]) / np.linalg.norm(q, axis=1))[: MORE + 1]] = True
    examined[row] = False
    while True:
        normal = _feasible(q, row, examined)
        if normal is None:
            return False
        projections = q @ normal
        violated = others & ~examined & (projections < -TOLERANCE)
        if not violated.any():
            return True
        examined[np.argsort(np.where(violated, projections, np.inf))[: min(MORE, int(violated.sum()))]] = True


def _feasible(q: Array, row: int, examined: Rows) -> Array | None:
    """Return a vector r with r·q_c = −1 and r·q_j ≥ 0 for the rows that are examined, or None."""
    answer = linprog(
        np.zeros(q.shape[1]),
        A_ub=-q[examined],
        b_ub=np.zeros(int(examined.sum())),
        A_eq=q[row][None],
        b_eq=[-1.0],
        bounds=(None, None),
        method="highs-ds",
        options={"time_limit": SECONDS},
    )
    return None if answer.status != 0 else answer.x


def rlg_as_coded_on_images(weight_gradient: Tensor, rank: int) -> set[int]:
    """Return the classes that the code accepts in a gradient (C, I) with given rank.

    A class is accepted if some plane has it at −1 and none of the 199 largest points further behind than 0.01. The
    code's screening before that, with 90 % of all points on the right side, accepts every class and is left out.
    """
    q: Array = torch.linalg.svd(weight_gradient.float(), full_matrices=False)[0][:, :rank].double().cpu().numpy()
    sizes = np.linalg.norm(q, axis=1)
    largest = np.argsort(-sizes, kind="stable")[:LARGEST_OF_IMAGES]
    return {row for row in range(len(q)) if sizes[row] > 0 and _accepted(q[largest[largest != row]], q[row])}


def _accepted(others: Array, point: Array) -> bool:
    """Return whether a plane has `point` at −1 and none of the others further behind than allowed."""
    # A point outside the others' span is separated by a plane that contains all of them.
    remainder = point - others.T @ np.linalg.lstsq(others.T, point, rcond=None)[0]
    if np.linalg.norm(remainder) > 1e-6 * np.linalg.norm(point):
        return True
    # By duality, weights λ ≥ 0 for which the others sum to the point must not have a sum of 1 / LOOSE or less.
    options = {"time_limit": SECONDS}
    answer = linprog(
        np.ones(len(others)), A_eq=others.T, b_eq=point, bounds=(0, None), method="highs-ds", options=options
    )
    return bool(answer.status == 2 or (answer.status == 0 and answer.fun > 1 / LOOSE))
