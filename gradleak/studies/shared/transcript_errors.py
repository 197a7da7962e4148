"""Measures of the errors in a recovered transcript."""

from __future__ import annotations

from collections.abc import Sequence


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
