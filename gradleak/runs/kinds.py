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

Name = Literal["exact", "rounding", "measured"]
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
        name: "exact", "rounding" or "measured".
        relative: The relative tolerance of measured numbers.
        absolute: The absolute tolerance of measured numbers; two numbers below it are rounding errors.
        near: The largest rounding error; if both errors are larger, they are compared as measured numbers.
        decibels: Whether the numbers are signal-to-noise ratios in dB; then the errors behind them are compared.
    """

    name: Name
    relative: float = RELATIVE
    absolute: float = ABSOLUTE
    near: float = NEAR
    decibels: bool = False


EXACT = Kind("exact")


def measured(relative: float = RELATIVE, absolute: float = ABSOLUTE) -> Kind:
    """Return the kind of numbers that may differ up to a relative or an absolute tolerance."""
    return Kind("measured", relative=relative, absolute=absolute)


def rounding(near: float = NEAR, *, decibels: bool = False) -> Kind:
    """Return the kind of numbers of which only the order of magnitude is compared if they are at most `near`."""
    return Kind("rounding", near=near, decibels=decibels)


def kind_of(column: str) -> Kind:
    """Return the kind that the words of a column's name suggest."""
    words = set(column.replace("-", "_").split("_"))
    if words & DECIBELS:
        return rounding(decibels=True)
    return rounding() if words & ERRORS else measured()


@dataclass(frozen=True)
class Compared:
    """The result of comparing two values.

    Attributes:
        outcome: "same", "within" the tolerance, or "differs".
        kind: The kind as which the values were compared.
        apart: The relative difference of measured numbers, or the ratio of two rounding errors; None for other values.
    """

    outcome: Outcome
    kind: Name
    apart: float | None = None


def compared(kind: Kind, recorded: Any, found: Any, *, declared: bool = False) -> Compared:
    """Compare a value that was computed again with the recorded value.

    Args:
        kind: The kind of the column.
        recorded: The recorded value, not a list or a mapping.
        found: The value that was computed again.
        declared: Whether the study declares the column's kind; if not, whole numbers are compared exactly.

    Examples:
        >>> compared(measured(), 20.0, 20.001).outcome
        'within'
        >>> compared(rounding(), 3e-11, 8e-10).outcome
        'differs'
    """
    numbers = isinstance(recorded, float) or (declared and _whole(recorded))
    if kind.name == "exact" or not numbers or not (isinstance(found, float) or _whole(found)):
        equal = type(recorded) is type(found) and (recorded == found or (recorded != recorded and found != found))
        return Compared("same" if equal else "differs", "exact")
    if recorded == found or (math.isnan(recorded) and math.isnan(found)):
        return Compared("same", kind.name)
    if math.isnan(recorded) or math.isnan(found):
        return Compared("differs", "exact")
    errors = [_error(value) if kind.decibels else abs(value) for value in (recorded, found)]
    if kind.name == "rounding" and min(errors) <= kind.near:
        low, high = sorted(max(error, FLOOR) for error in errors)
        near = high == FLOOR or (high / low <= FACTOR and (kind.decibels or recorded * found >= 0))
        return Compared("within" if near else "differs", "rounding", high / low)
    if math.isinf(recorded) or math.isinf(found):
        return Compared("differs", "measured", math.inf)
    if max(abs(recorded), abs(found)) <= kind.absolute:
        return Compared("within", "rounding", 1.0)
    apart = abs(found - recorded)
    near = apart <= max(kind.relative * max(abs(recorded), abs(found)), kind.absolute)
    return Compared("within" if near else "differs", "measured", apart / abs(recorded) if recorded else math.inf)


def _error(decibels: float) -> float:
    """Return the relative error that a signal-to-noise ratio in dB stands for."""
    return math.inf if decibels < -1000 else 10.0 ** (-min(decibels, 10_000) / 20)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
