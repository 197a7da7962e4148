"""Choose the trials for a spot check: first the cheapest of every part, then enough to touch every claim."""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradleak.runs.records import Record, part_of


@dataclass
class Budget:
    """The time budget of a spot check.

    Attributes:
        seconds: The budget (s).
        planned: The recorded run time (s) of the trials that were chosen.
        spent: The run time (s) of the trials in this check.
        begun: The start of the check on the monotonic clock.
    """

    seconds: float
    planned: float = 0.0
    spent: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    def plan(self, seconds: float) -> bool:
        """Reserve the seconds of a trial if enough are left, and return whether they were reserved."""
        if max(self.planned, self.spent) + seconds > self.seconds:
            return False
        self.planned = max(self.planned, self.spent) + seconds
        return True

    @property
    def text(self) -> str:
        """The used part of the budget, as a text."""
        return f"{self.spent / 60:.1f} of {self.seconds / 60:.1f} minutes used"

    @property
    def over(self) -> bool:
        """Whether the budget is used up, by trials or on the clock."""
        return self.spent >= self.seconds or time.monotonic() - self.begun >= self.seconds


def for_parts(record: Record, done: Collection[int]) -> list[int]:
    """Return the index of the cheapest trial of each part that contains none of the trials `done`, cheapest first."""
    touched = {part_of(record.trials[index]) for index in done}
    cheapest: dict[str, int] = {}
    for index in cheapest_first(record, range(len(record.trials))):
        if (part := part_of(record.trials[index])) not in touched:
            cheapest.setdefault(part, index)
    return list(cheapest.values())


def for_claims(record: Record, behind: Mapping[str, frozenset[int]], done: Collection[int]) -> list[tuple[float, int]]:
    """Return trials that together touch all claims without a finished trial.

    The choice is greedy: the next trial has the least run time per claim that no earlier trial touches.

    Args:
        record: The record.
        behind: The indices of the trials whose rows a claim selects, by the claim's id.
        done: The indices of the finished trials.

    Returns:
        Pairs of the seconds per new claim and the index of the trial, in the order of the choice.
    """
    missing = {name for name, places in behind.items() if not places & set(done)}
    touches: dict[int, set[str]] = {}
    for name in missing:
        for index in behind[name]:
            touches.setdefault(index, set()).add(name)
    chosen = []
    while missing:
        price, index = min((record.trials[index].seconds / len(names), index) for index, names in touches.items())
        chosen.append((price, index))
        missing -= touches[index]
        touches = {other: remaining for other, names in touches.items() if (remaining := names & missing)}
    return chosen


def within(budget: Budget, wanted: Iterable[tuple[int, int]], records: Sequence[Record]) -> dict[int, list[int]]:
    """Return the wanted trials for which the budget suffices, by the index of their record.

    Args:
        budget: The budget, in which the chosen trials are reserved.
        wanted: Pairs of the index of a record and the index of a trial in that record.
        records: The records.
    """
    chosen: dict[int, list[int]] = {}
    for number, index in wanted:
        if budget.plan(records[number].trials[index].seconds):
            chosen.setdefault(number, []).append(index)
    return chosen


def merged(lists: Iterable[Iterable[tuple[float, int, int]]]) -> list[tuple[int, int]]:
    """Merge sorted lists of (price, index of the record, index of the trial) into one list, cheapest first."""
    return [(number, index) for _, number, index in heapq.merge(*lists)]


def cheapest_first(record: Record, places: Iterable[int]) -> list[int]:
    """Sort the indices of a record's trials by their recorded run time."""
    return sorted(places, key=lambda index: (record.trials[index].seconds, index))
