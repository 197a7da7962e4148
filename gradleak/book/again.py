"""Run recorded trials again, and say which rows differ and which verdicts would change; nothing is stored."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradleak import claims, studies
from gradleak.errors import GradleakError, InputError, MissingData, first_line
from gradleak.runs import experiments, records, runner
from gradleak.runs.comparing import Difference, compare, outcome, tells_time, worst
from gradleak.runs.records import Record, part_of
from gradleak.wording import counted


@dataclass(frozen=True)
class Again:
    """The outcome of trials of a record that were run again.

    Attributes:
        record: The record.
        compared: How each trial that ended differs from its recorded rows.
        errors: What the trials that failed reported.
        changed: The claims whose verdict changes, each with the recorded and the new verdict.
    """

    record: Record
    compared: Sequence[Sequence[Difference]]
    errors: Sequence[str]
    changed: Mapping[str, tuple[str, str]]

    @property
    def differs(self) -> bool:
        """Whether a trial failed, or a row or a verdict differs."""
        return bool(self.errors or self.changed) or any(outcome(one) == "differs" for one in self.compared)

    @property
    def lines(self) -> list[str]:
        """The outcome in lines: numbers of trials, verdicts, errors, and each column's largest differences."""
        outcomes = Counter(map(outcome, self.compared))
        every = worst(one for differences in self.compared for one in differences)
        return [
            f"{self.record.study}: {len(self.compared)} of {counted(len(self.record.trials), 'trial')} ran again: "
            f"{outcomes['same']} with the same rows, {outcomes['within']} within the tolerance of their columns, "
            f"{outcomes['differs']} different",
            f"verdicts that change: {len(self.changed)}",
            *(f"  {name}: '{after}' where '{before}' is recorded" for name, (before, after) in self.changed.items()),
            *(f"  failed: {message}" for message in dict.fromkeys(self.errors)),
            *(f"  {one.outcome}, {one.text}" for one in every),
        ]


def again(
    study: str, *, minutes: float = 10.0, most: int | None = None, device: str | None = None, jobs: int | None = None
) -> Again:
    """Run trials of a record again, the cheapest of every part first.

    Args:
        study: The name of the study.
        minutes: The time after which no further trial begins.
        most: The largest number of trials.
        device: "cpu" or "cuda"; by default the device on which each trial ran.
        jobs: The number of processes.

    Raises:
        MissingData: The study has no record.
    """
    if not minutes > 0:
        raise InputError(f"the minutes must be positive; got {minutes:g}")
    loaded, record = studies.load(study), records.recorded(study)
    if record is None:
        raise MissingData(f"'{study}' has no record: `gradleak record {study}` makes one")
    places = _in_turn(record)[:most]
    work = []
    for inputs in (record.trials[place].inputs for place in places):
        wanted = device or ("auto" if records.on_gpu(inputs) else "cpu")
        work.append((loaded, loaded.on_device(inputs, experiments.resolve_device(wanted))))
    trials, compared, errors = list(record.trials), list[list[Difference]](), list[str]()
    end = time.monotonic() + 60 * minutes
    with contextlib.closing(runner.run_trials(work, jobs=jobs, caught=True)) as finished:
        for number, result in finished:
            if isinstance(result, GradleakError):
                errors.append(first_line(result))
            else:
                trial = trials[places[number]]
                compared.append(compare(loaded, trial, result))
                trials[places[number]] = trial.model_copy(update={"rows": result.rows})
            if time.monotonic() > end:
                break
    before, after = claims.judgements(record), claims.judgements(record.model_copy(update={"trials": trials}))
    changed = {
        name: (judged.verdict, after[name].verdict)
        for name, judged in before.items()
        # Times differ from run to run.
        if judged.verdict != after[name].verdict and not tells_time(loaded, judged.claim.measure.column)
    }
    return Again(record, compared, errors, changed)


def _in_turn(record: Record) -> list[int]:
    """Return the indices of a record's trials: the cheapest of every part, then the second of every part, and so on."""
    turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    cheapest_first = sorted(range(len(record.trials)), key=lambda place: record.trials[place].seconds)
    return sorted(cheapest_first, key=lambda place: next(turns[part_of(record.trials[place])]))
