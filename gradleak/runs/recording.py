"""Make records grow: each finished trial is added at once, a run can be stopped and continued, and trials made
elsewhere are merged.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from gradleak.errors import InputError, StorageError, first_line, unknown
from gradleak.runs import golden, records, runner, studies
from gradleak.runs.experiments import Parameters
from gradleak.runs.plain import Columns, restored, worded
from gradleak.runs.records import Record, Trial
from gradleak.runs.studies import Study
from gradleak.runs.trials import known, without_device
from gradleak.storage import parsed, storage_error

# `record` writes the record after a trial if at least this time (s) has passed since the last time. Until then the
# finished trials are in the cache.
SECONDS_A_WRITE = 5.0


class OutOfTime(BaseException):
    """The time of a recording is over. It is no Exception, so that no attack takes it for a failure of its own."""


def slot(study: Study, inputs: Columns) -> str:
    """Return what a trial measures: the inputs of the trial without the device and the effort."""
    kind = study.experiments.get(str(inputs.get("part", "")))
    effort = kind.effort_fields if kind else frozenset()
    return without_device({name: value for name, value in inputs.items() if name not in effort})


class Recording:
    """The record of a study while it grows towards a run with some parameters.

    A finished trial takes the place of the recorded trial that measured the same: one of older code, or one with less
    effort. Until then the older trial stays. Recorded trials that measure something else than the run are dropped.

    Attributes:
        study: The study.
        parameters: The parameters of the run.
        planned: The inputs of all trials of the run, by what each measures.
        record: The record as it is now.
    """

    def __init__(self, study: Study, parameters: Parameters, rules: Columns | None = None) -> None:
        self.study, self.parameters = study, parameters
        inputs = study.trials(parameters)
        self.planned = {slot(study, one): one for one in inputs}
        if len(self.planned) < len(inputs):
            raise InputError(f"trials of '{study.name}' differ in their `effort_fields` alone")
        before = records.recorded(study.name) or Record(study=study.name, profile="custom", parameters={}, trials=[])
        trials = ((slot(study, trial.inputs), trial) for trial in before.trials)
        self._trials = {own: self._under(trial, own, before) for own, trial in trials if own in self.planned}
        self._golden, self._accepted = golden.digest(study.name), before.accepted
        self._rules = (rules or {}) | ((before.rules or {}) if self._trials else {})

    def _under(self, trial: Trial, own: str, before: Record) -> Trial:
        """Return a trial of the record `before` with the parameters in which its run differed from this run."""
        run, present = before.parameters | trial.under, self.parameters.model_dump()
        changed = {name: value for name, value in run.items() if value != present.get(name)}
        return trial.model_copy(update={"under": {} if self._is_planned(trial, own) else changed})

    def _is_planned(self, trial: Trial, own: str) -> bool:
        return own in self.planned and without_device(trial.inputs) == without_device(self.planned[own])

    @property
    def record(self) -> Record:
        """The record of all trials so far, in the order of the run."""
        return runner.record_of(
            self.study,
            self.parameters,
            planned=len(self.planned),
            accepted=self._accepted,
            rules=self._rules or None,
            waiting=[inputs for own, inputs in self.planned.items() if own not in self._trials],
            trials=[self._trials[own] for own in self.planned if own in self._trials],
        )

    def missing(self, part: str | None = None) -> list[Columns]:
        """Return the inputs of the trials that have to run: those of the run that no current recorded trial covers.

        Args:
            part: Only the trials of this part, which all run again.
        """
        if part is None:
            return [inputs for own, inputs in self.planned.items() if not self._covers(own)]
        parts = dict.fromkeys(str(inputs["part"]) for inputs in self.planned.values() if "part" in inputs)
        if part not in parts:
            raise unknown("part", part, parts)
        return [inputs for inputs in self.planned.values() if inputs.get("part") == part]

    def _covers(self, own: str) -> bool:
        trial, accepted = self._trials.get(own), self._accepted and self._accepted.golden
        return trial is not None and self._is_planned(trial, own) and self._golden in (trial.golden, accepted)

    def add(self, trial: Trial) -> bool:
        """Put a finished trial into the record; return False if it is no trial of the run."""
        own = slot(self.study, trial.inputs)
        if not self._is_planned(trial, own):
            return False
        self._trials[own] = trial
        return True

    def write(self) -> None:
        """Write the record to its file."""
        records.write(self.record, records.file_of(self.study.name))


def record(
    study: Study,
    parameters: Parameters,
    *,
    rules: Columns | None = None,
    part: str | None = None,
    minutes: float | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
) -> Record:
    """Run the trials of a run that the study's record lacks, and add each to the record when it ends.

    Args:
        study: The study.
        parameters: The parameters of the run.
        rules: The present rules of the study's claims, which the record keeps.
        part: Run all trials of this part, and no others.
        minutes: The time after which the recording stops; trials that have not ended by then are lost, except
            for runs of matching that ended.
        jobs: The number of processes, as in `run_study`.
        cluster: The address of a Dask scheduler.
    """
    growing = Recording(study, parameters, rules)
    todo, written = growing.missing(part), time.monotonic()
    try:
        with (
            in_time(minutes),
            contextlib.closing(runner.finished(study, parameters, todo, jobs=jobs, cluster=cluster)) as finished,
        ):
            for trial in finished:
                growing.add(trial)
                if time.monotonic() - written > SECONDS_A_WRITE:
                    growing.write()
                    written = time.monotonic()
    finally:
        if growing.record.trials:
            growing.write()
    return growing.record


@contextlib.contextmanager
def in_time(minutes: float | None) -> Iterator[list[str]]:
    """End the block when a time is over, and give a list that then has a message.

    Without a time, or outside the main thread, the block runs to its end.
    """
    if minutes is not None and not minutes > 0:
        raise InputError(f"the minutes of a recording must be positive; got {minutes:g}")
    if minutes is None or threading.current_thread() is not threading.main_thread():
        yield []
        return

    def stop(*_: object) -> None:
        raise OutOfTime

    messages: list[str] = []
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield messages
    except OutOfTime:
        messages.append(
            "The time is over. Trials that were still running are lost, except for runs of matching that ended."
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def append(trial: Trial, study: str, file: Path) -> None:
    """Append a finished trial to a file of trials, one line of JSON each, and make sure that it is on the disk."""
    line = json.dumps({"study": study, "trial": worded(trial.model_dump())}) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab", buffering=0) as stream:
            stream.write(line.encode())
            os.fsync(stream.fileno())
    except OSError as error:
        raise storage_error(file, error) from error


def trials_in(file: Path) -> Iterator[tuple[str, Trial]]:
    """Yield the trials in a file of trials, each with its study; a last line that was cut off is skipped."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise StorageError(f"cannot read the trials in {file.name}: {error.strerror or error}") from error
    for number, line in enumerate(lines, 1):
        try:
            content = restored(parsed(line))
            yield content["study"], Trial.model_validate(content["trial"])
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise InputError(f"{file.name}, line {number}, is no trial: {first_line(error)}") from error


def merge(files: Iterable[Path], rules: Callable[[str], Columns], asked: Callable[[Study], Parameters]) -> list[Record]:
    """Add trials that were made elsewhere to the records of their studies.

    Trials of other code, whose page had other golden rows, and trials that are no part of the run are refused.

    Args:
        files: Files of trials.
        rules: Returns the present rules of a study's claims.
        asked: Returns the parameters of the run for a study.
    """
    by_study: dict[str, list[Trial]] = {}
    for file in files:
        for name, trial in trials_in(file):
            by_study.setdefault(name, []).append(trial)
    grown = []
    for name, trials in by_study.items():
        study, present = studies.load(name), golden.digest(name)
        if old := sum(trial.golden != present for trial in trials):
            raise InputError(f"{old} trials of '{name}' were made by other code: its golden rows were others then")
        growing = Recording(study, asked(study), rules(name))
        foreign = [trial for trial in trials if not growing.add(trial)]
        if foreign:
            raise InputError(
                f"{len(foreign)} trials of '{name}' are no part of the run with these parameters, such as one with "
                f"{known(foreign[0].inputs)[:200]}"
            )
        grown.append(growing)
    for growing in grown:
        growing.write()
    return [growing.record for growing in grown]
