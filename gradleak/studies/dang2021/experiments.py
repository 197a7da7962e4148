"""What the pages on dang2021 share: the defences of the paper, measures of what was recovered, and number formats."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import ClassVar

from gradleak.studies import Columns
from gradleak.studies.shared.defended import Defended

UNDEFENDED = "none/0"


class PaperDefense(Defended):
    """A defence of the paper."""

    words: ClassVar = {name: name for name in ("none", "sign", "grad-drop")}


def set_scores(found: Set[object], truth: Set[object], exact: str = "exact") -> Columns:
    """Return the precision, recall and F1 of a set of words, and in the column `exact` whether it is the true set."""
    both = len(found & truth)
    precision = both / len(found) if found else 0.0
    recall = both / len(truth) if truth else 1.0
    harmonic = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"precision": precision, "recall": recall, "f1": harmonic, exact: found == truth}


def percent(share: float) -> str:
    """Return a share as a percentage with three digits."""
    return f"{100 * share:.3g} %"


def two_digits(value: float) -> str:
    """Return a number with two digits, or as a whole number if it has more."""
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


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
