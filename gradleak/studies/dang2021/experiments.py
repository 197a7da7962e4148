"""What the experiments on dang2021 share: the paper's defences, and the comparison of a found set with the true set."""

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
