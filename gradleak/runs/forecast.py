"""Estimate before a long run how much time and memory it takes on this machine, from recorded and cached trials."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.runs import memory, records, runner
from gradleak.runs.experiments import Parameters
from gradleak.runs.plain import Columns
from gradleak.runs.records import Trial
from gradleak.runs.studies import Study
from gradleak.runs.trials import known, without_device

# Cached trials tell how fast this machine is if their recorded times sum up to at least so many seconds.
LEAST = 10.0
GIB = 2**30


@dataclass(frozen=True)
class Forecast:
    """What a run is expected to take.

    Attributes:
        trials: The number of trials of the run.
        finished: The number of them that are in the cache or in the record that they continue.
        seconds: The expected sum of the times of the other trials; trials of unknown time are left out.
        longest: The expected time of the longest of them.
        exact: The number of them whose own time is recorded.
        guessed: The number of them whose time is the mean of the recorded trials of their part.
        unknown: The number of them of which nothing is recorded.
        speed: The time of trials on this machine relative to the recorded time; None if it is not known.
        processes: The number of processes.
        memory: The expected memory of one process in bytes.
        measured: Whether this memory is the largest that recorded trials used, rather than that of the packages alone.
        recorded_on: The processor of the record; "" if it is not known.
    """

    trials: int
    finished: int
    seconds: float
    longest: float
    exact: int
    guessed: int
    unknown: int
    speed: float | None
    processes: int
    memory: float
    measured: bool
    recorded_on: str

    @property
    def missing(self) -> int:
        """The number of trials that have to run."""
        return self.trials - self.finished

    @property
    def wall_seconds(self) -> float:
        """The expected time from start to end: trials run side by side, and none is divided."""
        return max(self.seconds / max(1, self.processes), self.longest)

    @property
    def sentences(self) -> list[str]:
        """The forecast in words, with what it is based on."""
        lines = [f"{self.trials} trials: {self.finished} are finished already, {self.missing} have to run."]
        if not self.missing:
            return lines
        if self.exact + self.guessed:
            shared = f" in {self.processes} processes side by side" if self.processes > 1 else ""
            lines.append(f"Expected time: {_duration(self.wall_seconds)}{shared}. {self._basis}")
        else:
            lines.append("Expected time: unknown, because none of these trials is recorded.")
        kind = (
            "the most that a recorded trial used" if self.measured else "for packages and data alone, trials add to it"
        )
        total = self.memory * self.processes / GIB
        lines.append(
            f"Expected memory: {'about' if self.measured else 'at least'} {total:.1f} GiB for {self.processes} "
            f"processes ({self.memory / GIB:.1f} GiB each, {kind}); {memory.available() / GIB:.1f} GiB are free."
        )
        return lines

    @property
    def _basis(self) -> str:
        where = f" on {self.recorded_on}" if self.recorded_on else ""
        parts = [f"{self.exact} trials by their own recorded times{where}"] if self.exact else []
        parts += [f"{self.guessed} by the mean of their part's recorded trials"] if self.guessed else []
        parts += [f"{self.unknown} without any recorded time are left out"] if self.unknown else []
        if self.speed is None:
            speed = "this machine may be faster or slower"
        else:
            speed = f"multiplied by {self.speed:.2g}, the ratio of this machine's cached trials to their recorded times"
        return f"It is based on {', '.join(parts)}; {speed}."


def forecast(
    study: Study, parameters: Parameters, *, jobs: int | None = None, todo: Sequence[Columns] | None = None
) -> Forecast:
    """Estimate what a run takes.

    Args:
        study: The study.
        parameters: The parameters of the run.
        jobs: The number of processes, as in `run_study`.
        todo: The inputs of the trials that have to run unless they are in the cache; None for all.
    """
    inputs = runner.planned(study, parameters)
    cache = runner.cache_of(study, parameters)
    cached = {known(trial.inputs): trial for trial in map(cache.get, inputs) if trial is not None}
    wanted = inputs if todo is None else todo
    missing = [one for one in wanted if known(one) not in cached]
    record = records.recorded(study.name)
    trials = record.trials if record else []
    recorded = {without_device(trial.inputs): trial.seconds for trial in trials}
    speed = _speed(list(cached.values()), recorded)
    own = [recorded[without_device(one)] for one in missing if without_device(one) in recorded]
    means = _means(trials)
    guessed = [
        means[part]
        for one in missing
        if without_device(one) not in recorded and (part := str(one.get("part", ""))) in means
    ]
    times = [seconds * (speed or 1) for seconds in (*own, *guessed)]
    peaks = [trial.peak for trial in trials if trial.peak is not None]
    accelerated = "cuda" if any(map(records.on_gpu, inputs)) else "cpu"
    return Forecast(
        trials=len(inputs), finished=len(inputs) - len(missing),
        seconds=sum(times), longest=max(times, default=0.0),
        exact=len(own), guessed=len(guessed), unknown=len(missing) - len(own) - len(guessed), speed=speed,
        processes=max(1, runner.processes(jobs, len(missing), accelerated, study.threads)),
        memory=max(peaks, default=0.0) or memory.used(), measured=bool(peaks),
        recorded_on="; ".join(machine.name for machine in record.machines) if record else "",
    )  # fmt: skip


def _means(trials: Sequence[Trial]) -> dict[str, float]:
    """Return the mean time of the trials of each part."""
    by_part: dict[str, list[float]] = {}
    for trial in trials:
        by_part.setdefault(records.part_of(trial), []).append(trial.seconds)
    return {part: statistics.fmean(seconds) for part, seconds in by_part.items()}


def _speed(cached: Sequence[Trial], recorded: dict[str, float]) -> float | None:
    """Return the time of the cached trials relative to their recorded times; None if these are too short."""
    keyed = [(trial.seconds, without_device(trial.inputs)) for trial in cached]
    pairs = [(seconds, recorded[key]) for seconds, key in keyed if key in recorded]
    before = sum(seconds for _, seconds in pairs)
    return sum(seconds for seconds, _ in pairs) / before if before >= LEAST else None


def _duration(seconds: float) -> str:
    """Return a time in words: seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
