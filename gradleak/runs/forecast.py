"""Estimate before a long run how much time and memory it takes, from the trials of the record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gradleak.runs import records, runner
from gradleak.runs.experiments import Parameters
from gradleak.runs.plain import Columns
from gradleak.runs.studies import Study
from gradleak.runs.trials import without_device
from gradleak.wording import duration

GIB = 2**30


def forecast(
    study: Study, parameters: Parameters, *, jobs: int | None = None, todo: Sequence[Columns] | None = None
) -> str:
    """Return in one line what a run is expected to take.

    A trial takes its recorded time, or the mean time of the recorded trials if it is not recorded itself.

    Args:
        study: The study.
        parameters: The parameters of the run.
        jobs: The number of processes, as in `run_study`.
        todo: The inputs of the trials that have to run unless they are in the cache; None for all.
    """
    inputs = study.trials(parameters)
    cache = runner.cache_of(study, parameters)
    missing = [one for one in (inputs if todo is None else todo) if cache.get(one) is None]
    known = f"{len(inputs)} trials: {len(inputs) - len(missing)} are finished already, {len(missing)} have to run"
    record = records.recorded(study.name)
    if not missing:
        return f"{known}."
    if record is None or not record.trials:
        return f"{known}. Expected time and memory: unknown, because no trial is recorded."
    recorded = {without_device(trial.inputs): trial.seconds for trial in record.trials}
    mean = statistics.fmean(recorded.values())
    times = [recorded.get(without_device(one), mean) for one in missing]
    device = "cuda" if any(map(records.on_gpu, missing)) else "cpu"
    workers = max(1, runner.processes(jobs, len(missing), device))
    # Trials run side by side, but none is divided.
    seconds = max(sum(times) / workers, *times)
    peak = max((trial.peak for trial in record.trials if trial.peak is not None), default=None)
    memory = "" if peak is None else f" and {workers * peak / GIB:.1f} GiB of memory"
    machines = "; ".join(machine.name for machine in record.machines)
    return (
        f"{known}. Expected: {duration(seconds)}{memory} in {workers} processes, if this machine is as fast as that "
        f"of the record ({machines})."
    )
