"""Measures of a recovered transcript: its errors, its certificate, and the time of the attack."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gradleak.errors import InputError
from gradleak.studies import Columns

Found = TypeVar("Found")


def timed(
    attack: Callable[..., Found], *inputs: Any, clock: Callable[[], float] = time.process_time, **settings: Any
) -> tuple[Found, float]:
    """Return the result of an attack, and its time (s) by a clock: by default the CPU time."""
    started = clock()
    found = attack(*inputs, **settings)
    return found, clock() - started


def unless_refused(attack: Callable[[], Found], nothing: Found) -> Found:
    """Return the result of an attack, or `nothing` if the attack refuses its input instead of guessing."""
    try:
        return attack()
    except InputError:
        return nothing


def certified(read: Sequence[list[int]], truth: Sequence[list[int]], status: Sequence[str]) -> Columns:
    """Return whether all transcripts are exact, and whether an attack called them unique, rightly or wrongly.

    Args:
        read: The recovered transcripts, in any order.
        truth: The true transcripts.
        status: The status of each recovered transcript.
    """
    exact = sorted(read) == sorted(truth)
    unique = set(status) == {"unique"}
    return {"exact": exact, "unique": unique, "wrongly_sure": unique and not exact}


def edits(found: Sequence[str], truth: Sequence[str]) -> int:
    """Return the least number of words to insert, delete or replace to turn one text into the other."""
    row = list(range(len(truth) + 1))
    for place, word in enumerate(found, 1):
        left = row
        row = [place]
        for column, other in enumerate(truth, 1):
            row.append(min(row[-1] + 1, left[column] + 1, left[column - 1] + (word != other)))
    return row[-1]


def word_error_rate(found: str, truth: str) -> float:
    """Return the number of word errors as a share of the true number of words."""
    return edits(found.split(), truth.split()) / max(1, len(truth.split()))
