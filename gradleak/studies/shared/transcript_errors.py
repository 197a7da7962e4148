"""Measures of a recovered transcript: its errors and its certificate."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.studies import Columns


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
