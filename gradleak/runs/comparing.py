"""Compare the rows of a trial that was run again with the recorded rows, column by column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from gradleak.runs.kinds import Outcome, compared
from gradleak.runs.records import Trial
from gradleak.runs.studies import Study
from gradleak.runs.trials import short

# A column holds a time if one of these words is part of its name, or if the study lists it in TIMES. Times are not
# compared.
TIMES = frozenset({"seconds", "milliseconds", "minutes"})
# The value that is compared where a row lacks a column.
NOTHING = "nothing"
# The most characters of a value that a difference shows.
LONGEST = 60


@dataclass(frozen=True)
class Difference:
    """The largest difference between the values of a column in two runs of a trial.

    Attributes:
        column: The column, with the place of the value in its lists and mappings.
        outcome: "within" the tolerance, or "differs".
        apart: How far the two values lie apart.
        recorded: The value of the first run.
        found: The value of the second run.
        row: The number of the row in its trial, from 1.
        about: The first inputs of the trial.
        values: The number of values that differ.
    """

    column: str
    outcome: Outcome
    apart: float
    recorded: Any
    found: Any
    row: int
    about: str
    values: int = 1

    @property
    def text(self) -> str:
        """The difference in one line."""
        values = f"{_brief(self.found)} where {_brief(self.recorded)} is recorded"
        count = f"; {self.values} values differ" if self.values > 1 else ""
        return f"{self.column}: {values}, row {self.row} ({self.about}){count}"


def compare(study: Study, recorded: Trial, again: Trial) -> list[Difference]:
    """Return how the rows of a trial that was run again differ from the recorded rows, the largest of each column.

    Columns that hold times are left out.
    """
    about, counts = short(recorded.inputs), (len(recorded.rows), len(again.rows))
    if counts[0] != counts[1]:
        return [Difference("number of rows", "differs", math.inf, *counts, 1, about)]
    differences = []
    for number, (before, after) in enumerate(zip(recorded.rows, again.rows, strict=True), 1):
        for column in (name for name in {**before, **after} if not tells_time(study, name)):
            for place, one, other in pairs(before.get(column, NOTHING), after.get(column, NOTHING)):
                how, apart = compared(study.columns.kind(column), one, other)
                if how != "same":
                    differences.append(Difference(f"{column}{place}", how, apart, one, other, number, about))
    return worst(differences)


def outcome(differences: Iterable[Difference]) -> Outcome:
    """Return the outcome of a trial that was run again: "same", "within" the tolerance, or "differs"."""
    outcomes = {one.outcome for one in differences}
    return "differs" if "differs" in outcomes else "within" if outcomes else "same"


def worst(differences: Iterable[Difference]) -> list[Difference]:
    """Return each column's largest difference within its tolerance and beyond it, with the number of such values."""
    groups: dict[tuple[str, Outcome], list[Difference]] = {}
    for one in differences:
        groups.setdefault((one.column.partition("[")[0], one.outcome), []).append(one)
    return [
        replace(max(group, key=attrgetter("apart")), values=sum(one.values for one in group))
        for group in groups.values()
    ]


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


def _brief(value: Any) -> str:
    """Return a value as text, or the beginning of a long one."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
