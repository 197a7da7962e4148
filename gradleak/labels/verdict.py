"""Describe how certain recovered labels are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from gradleak.answers import LabelStatus
from gradleak.errors import InputError

# A label is known if its error is at most this (L1).
KNOWN = 1e-3
# Known labels are refused if the sum of a row's absolute entries differs by so much from 1.
UNLIKE = 0.1


@dataclass(frozen=True)
class Verdict:
    """How certain the labels of a sample or of a batch are.

    Attributes:
        status: "unique": no other label explains the gradient under the stated assumptions, which are the prior, the
            scale and the precision. "ambiguous": several labels do, or rounding leaves the label undetermined; what is
            known is returned. "failed": no label of the prior's shape explains the gradient. "found": an answer without
            a certificate, from a search or from a closed form that no equation checks.
        residual: Relative error of the gradient that the answer gives.
        open: Bound on the label's error (L1), inf if there is none.
        reason: Why the answer is not unique.
    """

    status: LabelStatus
    residual: float
    open: float
    reason: str = ""


def check_scale(scale: float | None) -> None:
    """Refuse a scale that is not a positive, finite factor or None."""
    if scale is not None and not 0 < scale < math.inf:
        raise InputError(f"a scale is a positive factor, or None where it is not known; got {scale:g}")


def check_noise(noise: float | None) -> None:
    """Refuse a standard deviation that is negative or not finite."""
    if noise is not None and not 0 <= noise < math.inf:
        raise InputError(f"noise is a standard deviation, finite and not negative, or None; got {noise:g}")


def check_probabilities(labels: Tensor) -> None:
    """Refuse labels (B, C) that are not probabilities, up to the errors of labels that an attack has found."""
    masses = labels.abs().sum(dim=1)
    worst = float(masses[(masses - 1).abs().argmax()])
    if not abs(worst - 1) < UNLIKE:
        raise InputError(f"labels are not probabilities: the absolute entries of a row sum to {worst:.3g} and not to 1")
