"""What a recovery of labels promises, and what stands behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradleak.answers import LabelStatus
from gradleak.errors import InputError

# A label that is off by at most this much (L1) is known.
KNOWN = 1e-3


@dataclass(frozen=True)
class Verdict:
    """What a method says of one sample, or of one batch.

    `status`: "unique", no other label explains the gradient under the stated assumptions, which are the prior, the
    scale and the precision; "ambiguous", several labels do, or the digits leave one open, and what is known is handed
    back; "failed", no label of the prior's shape explains it; "found", an answer without a certificate: a search ended
    here, or a closed form leaves nothing to check the answer with.
    `residual`: relative error of the gradient that the answer gives. `open`: how far the label may be off (L1), inf
    where nothing bounds it. `reason`: why it is not unique.
    """

    status: LabelStatus
    residual: float
    open: float
    reason: str = ""


def check_scale(scale: float | None) -> None:
    """Refuse a factor on the gradient that is none."""
    if scale is not None and not 0 < scale < math.inf:
        raise InputError(f"a scale is a positive factor, or None where it is not known; got {scale:g}")


def check_noise(noise: float | None) -> None:
    """Refuse a standard deviation that is none."""
    if noise is not None and not 0 <= noise < math.inf:
        raise InputError(f"noise is a standard deviation, finite and not negative, or None; got {noise:g}")
