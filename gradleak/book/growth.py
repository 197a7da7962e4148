"""Compare how run times grow with what was derived, and compute the time of a run on many workers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

# For each attack and each size that grows: the derived exponent of the dominant cost, with its reason.
DERIVED = {
    ("soft labels", "C"): (1, "each residual has C numbers"),
    ("soft labels", "N"): (1, "samples are independent"),
    ("a batch", "B"): (2, "normal equations of B + 1 unknowns"),
    ("a batch", "C"): (2, "a search for each of C classes, of C numbers each"),
    ("classes by RLG", "C"): (1, "C rows to decompose, linear programs with C rows"),
    ("a step of matching", "attacks"): (1, "attacks are independent"),
    ("a step of matching", "hidden units"): (1, "each parameter is used equally often"),
    ("sentences", "words"): (2, "each word is compared with a span that has a dimension for every word"),
    ("peeling", "B"): (2, "B times as many unknowns, and no more equations"),
    ("gradient and LLG", "B"): (1, "the gradient of B images"),
}
# Exponents are fitted to this number of the largest sizes, because constant costs dominate at small sizes.
LARGEST = 3


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent with which values grow with the size, fitted to the largest sizes; NaN if it is undefined."""
    if len(values) < 2 or min(values[-LARGEST:]) <= 0:
        return math.nan
    logs = np.log(np.asarray(sizes[-LARGEST:], dtype=float)), np.log(np.asarray(values[-LARGEST:], dtype=float))
    return float(np.polyfit(*logs, 1)[0])


def finish(seconds: Sequence[float], workers: int, each: float = 0.0) -> float:
    """Return the time (s) at which the last trial ends, if each goes in order to the worker that is free first.

    Args:
        seconds: The run time of each trial.
        workers: The number of workers.
        each: The overhead (s) of a trial for its worker.

    Examples:
        >>> finish([3.0, 1.0, 1.0], workers=2)
        3.0
    """
    free = [0.0] * min(workers, max(1, len(seconds)))
    for taken in seconds:
        heapq.heapreplace(free, free[0] + taken + each)
    return max(free)
