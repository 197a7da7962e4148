"""Which trials of records a check runs: the cheapest of every part, then so many that every claim is touched."""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradleak.runs.records import Record, part_of


@dataclass
class Budget:
    """Seconds that a check may take: those that its trials took when they were recorded, those that they take now, and
    those on the clock."""

    seconds: float
    planned: float = 0.0
    spent: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    def plan(self, seconds: float) -> bool:
        """Set seconds aside for a trial if as many are left."""
        if max(self.planned, self.spent) + seconds > self.seconds:
            return False
        self.planned = max(self.planned, self.spent) + seconds
        return True

    @property
    def text(self) -> str:
        """How much of it is used."""
        return f"{self.spent / 60:.1f} of {self.seconds / 60:.1f} minutes used"

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self.spent >= self.seconds or time.monotonic() - self.begun >= self.seconds


def for_parts(record: Record, done: Collection[int]) -> list[int]:
    """Return the cheapest trial of each part of which none was done, cheapest first."""
    touched = {part_of(record.trials[place]) for place in done}
    cheapest: dict[str, int] = {}
    for place in cheapest_first(record, range(len(record.trials))):
        if (part := part_of(record.trials[place])) not in touched:
            cheapest.setdefault(part, place)
    return list(cheapest.values())


def for_claims(record: Record, behind: Mapping[str, frozenset[int]], done: Collection[int]) -> list[tuple[float, int]]:
    """Return trials that touch the claims behind which none was done, each with its seconds for a claim.

    Greedy: the next trial is the one that takes the least time for each claim that it touches first.
    """
    missing = {name for name, places in behind.items() if not places & set(done)}
    touches: dict[int, set[str]] = {}
    for name in missing:
        for place in behind[name]:
            touches.setdefault(place, set()).add(name)
    drawn = []
    while missing:
        price, place = min((record.trials[place].seconds / len(names), place) for place, names in touches.items())
        drawn.append((price, place))
        missing -= touches[place]
        touches = {other: left for other, names in touches.items() if (left := names & missing)}
    return drawn


def within(budget: Budget, wanted: Iterable[tuple[int, int]], records: Sequence[Record]) -> dict[int, list[int]]:
    """Return the wanted trials for which the budget suffices, by the place of their record.

    A wanted trial is a pair: the place of a record, and the place of a trial in that record.
    """
    chosen: dict[int, list[int]] = {}
    for number, place in wanted:
        if budget.plan(records[number].trials[place].seconds):
            chosen.setdefault(number, []).append(place)
    return chosen


def merged(lists: Iterable[Iterable[tuple[float, int, int]]]) -> list[tuple[int, int]]:
    """Join lists of (price, place of the record, place of the trial), each sorted, cheapest first."""
    return [(number, place) for _, number, place in heapq.merge(*lists)]


def cheapest_first(record: Record, places: Iterable[int]) -> list[int]:
    """Sort places of a record's trials by the seconds that these took."""
    return sorted(places, key=lambda place: (record.trials[place].seconds, place))
