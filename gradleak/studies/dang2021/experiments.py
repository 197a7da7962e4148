"""What the pages on dang2021 share: the paper's defences, the scores of a set that was found, and number formats."""

from __future__ import annotations

from typing import ClassVar

from gradleak.studies import Columns
from gradleak.studies.shared.defended import Defended

UNDEFENDED = "none/0"


class PaperDefense(Defended):
    """A defence of the paper."""

    words: ClassVar = {name: name for name in ("none", "sign", "grad-drop")}


def set_scores(found: set[int], truth: set[int], exact: str = "exact") -> Columns:
    """Return the precision, recall and F1 of a set of classes, and in the column `exact` whether it is the true set."""
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
