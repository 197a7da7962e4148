"""Order the trials that would decide claims, by claims decided per expected second, and run them.

A claim is undecided if it was measured with too few samples or starts, or not at all. The run that would decide it has
the parameters of the record, raised to what the claim needs. Stand-ins need another network or dataset than the page
offers, so no run of the page decides them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak import claims, studies
from gradleak.claims import Judgement
from gradleak.claims.judging import differences, enough, may_measure, selected
from gradleak.errors import GradleakError, first_line
from gradleak.runs import experiments, recording, records, runner
from gradleak.runs.experiments import Parameters
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record, part_of
from gradleak.runs.studies import Study
from gradleak.runs.trials import short
from gradleak.show.tables import duration

# A GPU is expected to run a trial of matching this many times as fast as one thread of a CPU, but each trial takes at
# least so many seconds: an H100 evaluates 450 attacks on LeNet in 2.3 ms, where one thread takes 300 ms.
GPU_SPEED, GPU_LEAST = 100.0, 5.0
# The size (bytes) after which finished trials are appended to a further file.
MOST_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Entry:
    """A trial of the queue.

    Attributes:
        study: The study.
        inputs: The inputs of the trial.
        seconds: The expected time on one thread of a CPU; None if nothing alike is recorded.
        decides: The claims that are decided when this trial and all before it have ended.
    """

    study: str
    inputs: Columns
    seconds: float | None
    decides: tuple[str, ...]

    @property
    def gpu_seconds(self) -> float | None:
        """The expected time on a GPU."""
        return None if self.seconds is None else max(GPU_LEAST, self.seconds / GPU_SPEED)

    @property
    def row(self) -> dict[str, str]:
        """The entry as a row of texts."""
        return {
            "page": self.study,
            "trial": short({name: value for name, value in self.inputs.items() if name not in ("dataset", "stages")}),
            "CPU": "unknown" if self.seconds is None else duration(self.seconds),
            "GPU": "unknown" if self.gpu_seconds is None else duration(self.gpu_seconds),
            "claims decided": f"{len(self.decides)}",
        }


def asked(study: Study) -> Parameters:
    """Return the parameters of the run that would decide a study's claims: the record's, raised to their needs.

    A need is left out if it would make the record's trials useless, or if the study refuses it.
    """
    record = records.recorded(study.name)
    return studies.parameters(study, "paper") if record is None else _raised_for(study, record, _undecided(record))


def _undecided(record: Record) -> list[Judgement]:
    """Return the judgements of the claims that a further measurement could decide."""
    return [judged for judged in claims.judgements(record).values() if judged.undecided]


def _raised_for(study: Study, record: Record, undecided: Sequence[Judgement]) -> Parameters:
    """Return a record's parameters, raised to the needs of the claims that more samples or starts would decide."""
    # A record may lack parameters that its study was given later.
    later = studies.parameters(study, "paper").model_dump() if record.profile == "paper" else {}
    asked_for = study.Parameters.fitting(later | record.parameters)
    slots = {recording.slot(study, trial.inputs) for trial in record.trials}
    for claim in (judged.claim for judged in undecided if not judged.claim.stand_in and not judged.differs):
        values = asked_for.model_dump()
        raised = values | {name: _raised(values.get(name), need) for name, need in claim.needs.items()}
        if raised != values:
            with contextlib.suppress(ValueError):
                parameters = study.Parameters.fitting(raised, asked_for)
                if slots <= {recording.slot(study, inputs) for inputs in study.trials(parameters)}:
                    asked_for = parameters
    return asked_for


def _raised(offered: Any, needed: Any) -> Any:
    """Return a value of a parameter that meets what a claim needs, starting from the value `offered`."""
    values = needed if isinstance(needed, list) else [needed]
    if isinstance(offered, list):
        return offered + [value for value in values if value not in offered]
    return offered if enough(offered, needed) else values[0]


def queue() -> list[Entry]:
    """Return the trials that would decide claims, those first that count for most claims per expected second."""
    entries = [pair for name in studies.names() for pair in _of_study(studies.load(name))]
    return [entry for _, entry in sorted(entries, key=lambda pair: -pair[0])]


def _of_study(study: Study) -> list[tuple[float, Entry]]:
    """Return a study's trials, each with its claims per second; a claim counts evenly for all trials that it needs."""
    record = records.recorded(study.name)
    undecided = [] if record is None else _undecided(record)
    if record is None or not undecided:
        return []
    parameters = _raised_for(study, record, undecided)
    missing = recording.Recording(study, parameters).missing()
    if not missing:
        return []
    behind = _behind(record, parameters, missing, undecided)
    seconds = [_expected(study, record, inputs) for inputs in missing]
    worth = [0.0] * len(missing)
    for places in behind.values():
        for place in places:
            worth[place] += 1 / len(places) / (1e9 if (own := seconds[place]) is None else max(own, 0.1))
    # A claim is decided by the last of its trials.
    last = {claim: min(places, key=lambda place: (worth[place], -place)) for claim, places in behind.items()}
    return [
        (worth[place], Entry(study.name, inputs, seconds[place], tuple(one for one in last if last[one] == place)))
        for place, inputs in enumerate(missing)
        if worth[place] > 0
    ]


def _behind(
    record: Record, parameters: Parameters, missing: Sequence[Columns], undecided: Sequence[Judgement]
) -> dict[str, frozenset[int]]:
    """Return the places of the missing trials that may measure a claim, for each claim that they can decide."""
    values, behind = parameters.model_dump(), {}
    for claim in (judged.claim for judged in undecided):
        # A trial in the paper's setting may take the place of a stand-in.
        if claims.reaches(claim, values):
            parts = {line.get("part", "") for line in selected(claim, record)}
            places = frozenset(
                place
                for place, inputs in enumerate(missing)
                if may_measure(claim, inputs) and (not parts or inputs.get("part", "") in parts)
            )
            if places and not differences(claim, [dict(missing[place]) for place in places], values):
                behind[claim.id] = places
    return behind


def _expected(study: Study, record: Record, inputs: Columns) -> float | None:
    """Return the time that a trial is expected to take: that of the recorded trial of its slot or, failing that, the
    mean of its part, in proportion to the effort.
    """
    own = [trial for trial in record.trials if recording.slot(study, trial.inputs) == recording.slot(study, inputs)]
    part = [trial for trial in record.trials if part_of(trial) == str(inputs.get("part", ""))]
    alike = [trial for trial in own or part if not records.on_gpu(trial.inputs)]
    if not alike:
        return None
    fields = study.experiments[str(inputs.get("part", ""))].effort_fields
    return statistics.fmean(trial.seconds * _effort(inputs, fields) / _effort(trial.inputs, fields) for trial in alike)


def _effort(inputs: Columns, fields: frozenset[str]) -> float:
    values = map(inputs.get, fields)
    return math.prod(value for value in values if isinstance(value, int | float) and value > 0)


def summary(entries: Sequence[Entry]) -> str:
    """Return the size of the queue in one sentence."""
    decided = sum(len(entry.decides) for entry in entries)
    cpu = duration(sum(entry.seconds or 0.0 for entry in entries))
    gpu = duration(sum(entry.gpu_seconds or 0.0 for entry in entries))
    return (
        f"{len(entries)} trials would decide {decided} claims; expected time: {cpu} on one thread of a CPU, {gpu} on a "
        "GPU."
    )


def run(
    entries: Sequence[Entry],
    *,
    minutes: float | None,
    jobs: int | None = None,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Run the trials of a queue until the time is over, and return what happened in sentences.

    Args:
        entries: The queue.
        minutes: The time; None for the whole queue.
        jobs: The number of processes.
        out: The file to which finished trials are appended; by default they are added to the records.
        say: Called with a line after each trial.
    """
    resolved = experiments.resolve_device("auto")
    loaded = {name: studies.load(name) for name in {entry.study for entry in entries}}
    work = [(loaded[entry.study], loaded[entry.study].on_device(entry.inputs, resolved)) for entry in entries]
    recorded = functools.cache(lambda name: recording.Recording(loaded[name], asked(loaded[name]), claims.rules(name)))
    finished, failed = 0, []
    with (
        recording.in_time(minutes) as over,
        contextlib.closing(runner.run_trials(work, jobs=jobs, caught=True)) as results,
    ):
        for place, result in results:
            study, inputs = work[place]
            if isinstance(result, GradleakError):
                failed.append(f"{study.name} failed ({short(inputs)}): {first_line(result)}")
                continue
            finished += 1
            if out is not None:
                recording.append(result, study.name, _with_room(out))
            else:
                growing = recorded(study.name)
                growing.add(result)
                growing.write()
            say(f"{study.name}: {short(inputs)}: {duration(result.seconds)}")
    return [*over, *failed, f"{finished} of {len(entries)} trials ended."]


def _with_room(file: Path) -> Path:
    """Return the file, or the next one with a number in its name if it is so large that it might not travel."""
    further = (file.with_stem(f"{file.stem}-{number}") for number in itertools.count(2))
    files = itertools.chain([file], further)
    return next(one for one in files if not one.is_file() or one.stat().st_size <= MOST_BYTES)
