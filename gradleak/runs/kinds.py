"""Compare a value that was computed again with the recorded value, by the kind of its column.

Texts, whole numbers, booleans and None are compared exactly. A float is of the kind *measured*: it may differ up to a
relative tolerance. A float that only shows the size of a rounding error, such as 3e-16, is of the kind *rounding*:
processors round differently, so only the order of magnitude is compared. A column's declaration may state its kind:

    accuracy=Column("labels found", ".1%", measured(absolute=0.5))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["same", "within", "differs"]

# The default tolerances of measured numbers. The relative one is the rounding unit of float32, grown by a thousand
# sums; the absolute one covers rounding errors of float64.
RELATIVE, ABSOLUTE = 1e-4, 1e-12
# Two rounding errors agree if their ratio is at most this factor.
FACTOR = 10.0
# Two errors that are both above this threshold are not rounding errors: they are compared as measured numbers.
NEAR = 1e-4
# Rounding errors below this threshold count as equal.
FLOOR = 1e-12
# A column holds errors if one of these words is part of its name.
ERRORS = frozenset(
    {"error", "errors", "residual", "difference", "differs", "deviation", "distance", "misfit", "miss", "worst", "off"}
    | {"claimed", "actual"}
)
DECIBELS = frozenset({"psnr"})


@dataclass(frozen=True)
class Kind:
    """How the numbers of a column are compared.

    Attributes:
        relative: The relative tolerance of measured numbers.
        absolute: The absolute tolerance of measured numbers; two numbers below it are rounding errors.
        near: The largest rounding error; if both errors are larger, they are compared as measured numbers. None where
            no number is a rounding error.
        decibels: Whether the numbers are signal-to-noise ratios in dB; then the errors behind them are compared.
        whole: Whether whole numbers have the tolerances, too; if not, they are compared exactly.
    """

    relative: float = RELATIVE
    absolute: float = ABSOLUTE
    near: float | None = None
    decibels: bool = False
    whole: bool = False


def measured(relative: float = RELATIVE, absolute: float = ABSOLUTE) -> Kind:
    """Return the kind of numbers, also whole ones, that may differ up to a relative or an absolute tolerance."""
    return Kind(relative, absolute, whole=True)


def rounding(near: float = NEAR, *, decibels: bool = False) -> Kind:
    """Return the kind of numbers of which only the order of magnitude is compared if they are at most `near`."""
    return Kind(near=near, decibels=decibels, whole=True)


def kind_of(column: str) -> Kind:
    """Return the kind that the words of a column's name suggest."""
    words = set(column.replace("-", "_").split("_"))
    if words & DECIBELS:
        return Kind(near=NEAR, decibels=True)
    return Kind(near=NEAR if words & ERRORS else None)


def compared(kind: Kind, recorded: Any, found: Any) -> tuple[Outcome, float]:
    """Compare a value that was computed again with the recorded value.

    Args:
        kind: The kind of the column.
        recorded: The recorded value, not a list or a mapping.
        found: The value that was computed again.

    Returns:
        "same", "within" the tolerance or "differs", and the relative difference of measured numbers or the ratio of two
        rounding errors; infinity for other values that differ.

    Examples:
        >>> compared(measured(), 20.0, 20.001)[0]
        'within'
        >>> compared(rounding(), 3e-11, 8e-10)[0]
        'differs'
    """
    numbers = isinstance(recorded, float) or (kind.whole and _whole(recorded))
    if not numbers or not (isinstance(found, float) or _whole(found)):
        equal = type(recorded) is type(found) and (recorded == found or (recorded != recorded and found != found))
        return "same" if equal else "differs", math.inf
    if recorded == found or (math.isnan(recorded) and math.isnan(found)):
        return "same", 0.0
    if math.isnan(recorded) or math.isnan(found):
        return "differs", math.inf
    if (ratio := rounding_ratio(kind, recorded, found)) is not None:
        alike = kind.decibels or recorded * found >= 0 or max(abs(recorded), abs(found)) <= kind.absolute
        return "within" if alike and ratio <= FACTOR else "differs", ratio
    if math.isinf(recorded) or math.isinf(found):
        return "differs", math.inf
    apart = abs(found - recorded)
    near = apart <= max(kind.relative * max(abs(recorded), abs(found)), kind.absolute)
    return "within" if near else "differs", apart / abs(recorded) if recorded else math.inf


def rounding_ratio(kind: Kind, recorded: float, found: float) -> float | None:
    """Return the ratio of two rounding errors, the larger by the smaller; None if the numbers are larger than that."""
    errors = [_error(value) if kind.decibels else abs(value) for value in (recorded, found)]
    if kind.near is not None and min(errors) <= kind.near:
        return max(*errors, FLOOR) / max(min(errors), FLOOR)
    return 1.0 if max(abs(recorded), abs(found)) <= kind.absolute else None


def _error(decibels: float) -> float:
    """Return the relative error that a signal-to-noise ratio in dB stands for."""
    return math.inf if decibels < -1000 else 10.0 ** (-min(decibels, 10_000) / 20)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
