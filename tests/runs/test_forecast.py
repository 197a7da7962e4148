"""A forecast: which trials are finished, the time of the others from the record, and the memory of the processes."""

from __future__ import annotations

import pytest

from gradleak.runs import forecast, recording, records, runner
from gradleak.runs.forecast import GIB
from tests.checkout import PARTS, Toy


def test_recorded_times_are_added_and_shared_among_processes(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    study, parameters = checkout.load(), checkout.parameters()
    begin = "4 trials: 0 are finished already, 4 have to run."
    unknown = "Expected time and memory: unknown, because no trial is recorded."
    assert forecast.forecast(study, parameters, jobs=1) == f"{begin} {unknown}"
    record = runner.run_study(study, parameters)
    for file in checkout.kept():
        file.unlink()
    for seconds, jobs, expected in (
        ([100, 200, 300, 400], 2, "8 min and 4.0 GiB of memory in 2 processes, if this machine is as fast"),
        ([1, 1, 1, 80], 4, "80 s and 8.0 GiB of memory in 4 processes"),
    ):
        timed = zip(record.trials, seconds, strict=True)
        trials = [trial.model_copy(update={"seconds": time, "peak": 2 * GIB}) for trial, time in timed]
        records.write(record.model_copy(update={"trials": trials}), records.file_of("toy"))
        monkeypatch.setattr(runner, "processes", lambda *_, jobs=jobs: jobs)
        assert forecast.forecast(study, parameters).startswith(f"{begin} Expected: {expected}")


def test_a_record_reuses_its_trials(checkout: Toy) -> None:
    checkout.rewrite(*PARTS)
    study, parameters = checkout.load(), checkout.parameters()
    recording.record(study, parameters)
    for file in checkout.kept():
        file.unlink()
    growing = recording.Recording(study, parameters)
    assert "0 have to run" in forecast.forecast(study, parameters, todo=growing.missing(), jobs=1)
    assert "2 have to run" in forecast.forecast(study, parameters, todo=growing.missing("a"), jobs=1)
    assert all(trial.peak and trial.peak > 2**20 for trial in growing.record.trials)
