"""The kinds of a record's columns: how a value that was computed again is compared with the recorded one.

Texts, counts, true, false and nothing are compared exactly. A number with a fraction is *measured*: it may differ by a
stated part of itself. A number that only says how large a rounding error is, such as 3e-16, is of the kind *rounding*:
another processor rounds otherwise, so the order of magnitude is compared. A study may state the kind of a column by its
name: `COLUMNS = {"accuracy": measured(absolute=0.5), "claimed": rounding(floor=1e-6)}`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Name = Literal["exact", "rounding", "measured"]
Outcome = Literal["same", "within", "differs"]

# A measured number may differ by a part of ten thousand: float32's last digit, grown by the thousand sums behind it.
# And by what float64 rounds off.
RELATIVE, ABSOLUTE = 1e-4, 1e-12
# Two rounding errors are alike if one is at most this many times the other.
FACTOR = 10.0
# Two errors above this are no rounding errors: they are compared as measured numbers.
NEAR = 1e-4
# Rounding errors below this count as equal.
FLOOR = 1e-12
# A column holds errors if one of these is a word of its name, or signal-to-noise ratios of errors in decibels.
ERRORS = frozenset(
    {"error", "errors", "residual", "difference", "differs", "deviation", "distance", "misfit", "miss", "worst", "off"}
    | {"claimed", "actual"}
)
DECIBELS = frozenset({"psnr"})


@dataclass(frozen=True)
class Kind:
    """How the numbers of a column are compared.

    A measured number may differ by `relative` of the larger one, or by `absolute`; two numbers below `absolute` are
    rounding errors. Rounding errors up to `near` may differ by a factor of ten, and count as equal below `floor`;
    larger ones are compared as measured numbers.
    `decibels`: the numbers are signal-to-noise ratios in dB, and the errors behind them are compared.
    """

    name: Name
    relative: float = RELATIVE
    absolute: float = ABSOLUTE
    near: float = NEAR
    floor: float = FLOOR
    decibels: bool = False


EXACT = Kind("exact")


def measured(relative: float = RELATIVE, absolute: float = ABSOLUTE) -> Kind:
    """Return the kind of numbers that may differ by a part of themselves, or by an absolute amount."""
    return Kind("measured", relative=relative, absolute=absolute)


def rounding(near: float = NEAR, floor: float = FLOOR, *, decibels: bool = False) -> Kind:
    """Return the kind of numbers that are compared by order of magnitude where they are at most `near`."""
    return Kind("rounding", near=near, floor=floor, decibels=decibels)


def kind_of(column: str, declared: Mapping[str, Kind] | None = None) -> Kind:
    """Return the kind of a column: the declared kind, else the kind that the words of the column's name suggest."""
    if declared and column in declared:
        return declared[column]
    words = set(column.replace("-", "_").split("_"))
    if words & DECIBELS:
        return rounding(decibels=True)
    return rounding() if words & ERRORS else measured()


@dataclass(frozen=True)
class Compared:
    """How a value came out, the kind that it was compared as, and how far the two lie apart.

    `apart` is the relative difference of measured numbers, and how many times one rounding error is the other.
    """

    outcome: Outcome
    kind: Name
    apart: float | None = None


def compared(kind: Kind, recorded: Any, found: Any, *, declared: bool = False) -> Compared:
    """Compare a found value with the recorded one; neither is a list or a mapping.

    Whole numbers are compared exactly, unless the column's kind is `declared` by the study.
    """
    numbers = isinstance(recorded, float) or (declared and _whole(recorded))
    if kind.name == "exact" or not numbers or not (isinstance(found, float) or _whole(found)):
        alike = type(recorded) is type(found) and (recorded == found or (recorded != recorded and found != found))
        return Compared("same" if alike else "differs", "exact")
    if recorded == found or (math.isnan(recorded) and math.isnan(found)):
        return Compared("same", kind.name)
    if math.isnan(recorded) or math.isnan(found):
        return Compared("differs", "exact")
    errors = [_error(value) if kind.decibels else abs(value) for value in (recorded, found)]
    if kind.name == "rounding" and min(errors) <= kind.near:
        return _by_magnitude(kind, *errors, same_sign=kind.decibels or recorded * found >= 0)
    if math.isinf(recorded) or math.isinf(found):
        return Compared("differs", "measured", math.inf)
    if max(abs(recorded), abs(found)) <= kind.absolute:
        return Compared("within", "rounding", 1.0)
    apart = abs(found - recorded)
    near = apart <= max(kind.relative * max(abs(recorded), abs(found)), kind.absolute)
    return Compared("within" if near else "differs", "measured", apart / abs(recorded) if recorded else math.inf)


def _by_magnitude(kind: Kind, one: float, other: float, *, same_sign: bool) -> Compared:
    """Compare two rounding errors by their order of magnitude."""
    if max(one, other) <= kind.floor:
        return Compared("within", "rounding", 1.0)
    factor = max(one, other) / max(min(one, other), kind.floor)
    return Compared("within" if same_sign and factor <= FACTOR else "differs", "rounding", factor)


def _error(decibels: float) -> float:
    """Return the error behind a signal-to-noise ratio, as a part of the signal."""
    return math.inf if decibels < -1000 else 10.0 ** (-min(decibels, 10_000) / 20)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
