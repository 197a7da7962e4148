"""How a transcript that was read differs from what was said."""

from __future__ import annotations

from collections.abc import Sequence


def edits(found: Sequence[str], truth: Sequence[str]) -> int:
    """Return the fewest words to put in, leave out or change that make one text the other."""
    row = list(range(len(truth) + 1))
    for place, word in enumerate(found, 1):
        left = row
        row = [place]
        for column, other in enumerate(truth, 1):
            row.append(min(row[-1] + 1, left[column] + 1, left[column - 1] + (word != other)))
    return row[-1]


def word_error_rate(found: str, truth: str) -> float:
    """Return the words in error, as a share of those that were said."""
    return edits(found.split(), truth.split()) / max(1, len(truth.split()))
