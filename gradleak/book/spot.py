"""Spot checks: some of a record's trials run again with today's code, their rows compared with the recorded ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gradleak import studies
from gradleak.book import records, runner, sources
from gradleak.book.records import Confirmed, Record, Trial
from gradleak.book.trials import short
from gradleak.errors import InputError
from gradleak.studies import Study

# A column is a time if a word of its name is one of these, or if the study names it in TIMES; times are not compared.
TIMES = frozenset({"seconds", "milliseconds", "minutes"})
# Two numbers are the same if they differ by a few units of float32's last digit: other processors round otherwise.
TOLERANCE = 1e-6
# And numbers this small are what float64 rounds off: an error of 3e-16 may as well be one of 4e-16.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Checked:
    """A record after its spot check, and why it is not confirmed: the columns in which its rows differ, say."""

    record: Record
    troubles: tuple[str, ...] = ()


def check(record: Record, trials: int, *, limit: float, seed: int, jobs: int | None = None) -> Checked:
    """Run some of a record's trials again, drawn at random from those that took `limit` seconds at most.

    Where all rows are the same the record comes back with its confirmation. Trials of a GPU's record run on the CPU
    where no GPU is at hand.
    """
    study = studies.load(record.study)
    drawn = draw(record, trials, limit, seed)
    if not drawn:
        return Checked(record, (f"none of its {len(record.trials)} trials can be run here in {limit:g} s or less",))
    differences: list[str] = []
    try:
        for place, again in runner.run_trials(study, [_here(trial.inputs) for trial in drawn], jobs=jobs):
            differences += compare(study, drawn[place], again)
    except Exception as error:  # whatever today's code makes of yesterday's inputs
        differences.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    if differences:
        return Checked(record, tuple(differences))
    seconds = sum(trial.seconds for trial in drawn)
    total = sum(trial.seconds for trial in record.trials)
    confirmed = Confirmed(
        trials=len(drawn),
        of=len(record.trials),
        seconds=round(seconds, 1),
        share=round(seconds / total, 4) if total else 1.0,
        date=records.now(),
        commit=records.commit(),
        sources=sources.of_trials(study).digest,
    )
    return Checked(record.model_copy(update={"confirmed": confirmed}))


def draw(record: Record, trials: int, limit: float, seed: int) -> list[Trial]:
    """Draw trials of a record that took `limit` seconds at most."""
    if trials < 1:
        raise InputError(f"a spot check runs at least 1 trial; got {trials}")
    able = [trial for trial in record.trials if trial.seconds <= limit]
    return random.Random(f"{seed} {record.study}").sample(able, min(trials, len(able)))


def _here(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's inputs with a device that is at hand: the recorded one, else the CPU."""
    return inputs | {"device": studies.resolve_device("auto")} if records.on_gpu(inputs) else inputs


def compare(study: Study, recorded: Trial, again: Trial) -> list[str]:
    """Return how a trial's rows differ from the recorded ones, times aside: the first difference of each column."""
    about = short(recorded.inputs)
    if len(recorded.rows) != len(again.rows):
        return [f"{len(again.rows)} rows where {len(recorded.rows)} are recorded ({about})"]
    found: dict[str, str] = {}
    for number, (before, after) in enumerate(zip(recorded.rows, again.rows, strict=True), 1):
        for column in {**before, **after}:
            if column in found or tells_time(study, column):
                continue
            for place, one, other in unlike(before.get(column, "nothing"), after.get(column, "nothing"), _same):
                told = f"{column}{place} is {other!r} where {one!r} is recorded, row {number} ({about})"
                found.setdefault(column, told)
    return list(found.values())


def tells_time(study: Study, column: str) -> bool:
    """Whether a column of a study's rows is a time, which no second run repeats."""
    return bool(set(column.split("_")) & TIMES) or column in getattr(study.module, "TIMES", ())


def unlike(one: Any, other: Any, same: Callable[[Any, Any], bool], place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Give the places at which two values differ, and what stands there; `same` compares single numbers and texts."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from unlike(*pair, same, f"{place}[{number}]")
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from unlike(one[key], other[key], same, f"{place}.{key}")
    elif not same(one, other):
        yield place, one, other


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=ROUNDING)
    return type(one) is type(other) and bool(one == other)
