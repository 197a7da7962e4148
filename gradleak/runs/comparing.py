"""Compare the rows of a trial that was run again with the recorded rows, column by column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gradleak.runs import kinds
from gradleak.runs.kinds import Outcome
from gradleak.runs.records import Trial
from gradleak.runs.studies import Study
from gradleak.runs.trials import short

# A column holds a time if one of these words is part of its name, or if the study lists it in TIMES. Times are not
# compared.
TIMES = frozenset({"seconds", "milliseconds", "minutes"})
# The value that is compared where a row lacks a column.
NOTHING = "nothing"
# The first characters of a JPEG file in base64.
JPEG = "/9j/"
# The most characters of a value that a difference shows.
LONGEST = 60


@dataclass(frozen=True)
class Difference:
    """The largest difference between the values of a column in two runs of a trial.

    Attributes:
        column: The column, with the place of the value in its lists and mappings.
        kind: The kind of value as which the two were compared.
        outcome: "within" the tolerance, or "differs".
        values: The number of values that differ.
        apart: The relative difference of measured numbers, or the ratio of two rounding errors; None for other values.
        recorded: The value of the first run.
        found: The value of the second run.
        row: The number of the row in its trial, from 1.
        about: The first inputs of the trial.
    """

    column: str
    kind: kinds.Name
    outcome: Outcome
    values: int
    apart: float | None
    recorded: Any
    found: Any
    row: int
    about: str

    @property
    def text(self) -> str:
        """The difference in one line."""
        apart = ""
        if self.apart is not None and math.isfinite(self.apart):
            apart = f", a factor of {self.apart:.3g}" if self.kind == "rounding" else f", {self.apart:.1e} of it"
        count = f"; {self.values} values differ" if self.values > 1 else ""
        values = f"{self.found!r} where {self.recorded!r} is recorded{apart}"
        return f"{self.column}: {values}, row {self.row} ({self.about}){count}"


@dataclass(frozen=True)
class Comparison:
    """The outcome of a trial that was run again, and how its rows differ.

    Attributes:
        outcome: "same", "within" the tolerance, or "differs".
        differences: The largest difference of each column within its tolerance, and the largest beyond it.
    """

    outcome: Outcome
    differences: tuple[Difference, ...]


def compare(study: Study, recorded: Trial, again: Trial) -> Comparison:
    """Compare the rows of a trial that was run again with the recorded rows; columns that hold times are left out."""
    about = short(recorded.inputs)

    def difference(column: str, how: kinds.Compared, one: Any, other: Any, row: int) -> Difference:
        return Difference(
            column=column,
            kind=how.kind,
            outcome=how.outcome,
            values=1,
            apart=None if how.apart is None else float(f"{how.apart:.3g}"),
            recorded=_brief(one),
            found=_brief(other),
            row=row,
            about=about,
        )

    if len(recorded.rows) != len(again.rows):
        counts = len(recorded.rows), len(again.rows)
        return Comparison("differs", (difference("number of rows", kinds.Compared("differs", "exact"), *counts, 1),))
    differences = []
    for number, (before, after) in enumerate(zip(recorded.rows, again.rows, strict=True), 1):
        for column in {**before, **after}:
            if tells_time(study, column):
                continue
            declared = column in study.columns and study.columns[column].kind is not None
            for place, one, other in pairs(before.get(column, NOTHING), after.get(column, NOTHING)):
                how = kinds.compared(study.columns.kind(column), one, other, declared=declared)
                if how.outcome != "same":
                    differences.append(difference(f"{column}{place}", how, one, other, number))
    outcomes = {one.outcome for one in differences}
    outcome: Outcome = "differs" if "differs" in outcomes else "within" if outcomes else "same"
    return Comparison(outcome, tuple(worst(differences)))


def worst(differences: Iterable[Difference]) -> list[Difference]:
    """Return each column's largest difference within its tolerance and beyond it, with the number of such values."""
    largest: dict[tuple[str, Outcome], Difference] = {}
    for difference in differences:
        key = difference.column.partition("[")[0], difference.outcome
        previous = largest.get(key)
        is_larger = previous is None or _apart(difference) > _apart(previous)
        larger = difference if previous is None or is_larger else previous
        largest[key] = replace(larger, values=difference.values + (previous.values if previous else 0))
    return list(largest.values())


def _apart(difference: Difference) -> float:
    return math.inf if difference.apart is None else difference.apart


def tells_time(study: Study, column: str) -> bool:
    """Whether a column of a study's rows is a time, which differs from run to run."""
    return bool(set(column.split("_")) & TIMES) or column in getattr(study.module, "TIMES", ())


def pairs(one: Any, other: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield pairs of single values from two values of the same structure, each with its place in lists and mappings.

    Where the structures differ, the lists or mappings themselves are a pair.

    Examples:
        >>> list(pairs({"a": [1, 2]}, {"a": [1, 3]}))
        [('.a[0]', 1, 1), ('.a[1]', 2, 3)]
    """
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from pairs(left, right, f"{place}[{number}]")
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from pairs(one[key], other[key], f"{place}.{key}")
    else:
        yield place, one, other


def unlike(one: Any, other: Any, same: Callable[[Any, Any], bool]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the places at which two values differ, with both single values; `same` compares two single values."""
    return ((place, left, right) for place, left, right in pairs(one, other) if not same(left, right))


def is_picture(value: Any) -> bool:
    """Whether a value is a picture, which is recorded as the text of a JPEG file in base64."""
    return isinstance(value, str) and value.startswith(JPEG)


def _brief(value: Any) -> Any:
    """Return a value, or the beginning of its text if that is long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
