"""A forecast: which trials are finished, the time of the others from the record, and the memory of the processes."""

from __future__ import annotations

import pytest

from gradleak.runs import forecast, recording, records, runner
from gradleak.runs.forecast import GIB
from gradleak.runs.records import Record
from tests.checkout import PARTS, Toy


def keep(record: Record, seconds: list[float], peak: float | None = None) -> None:
    """Record a run with these times."""
    trials = [
        trial.model_copy(update={"seconds": time, "peak": peak})
        for trial, time in zip(record.trials, seconds, strict=True)
    ]
    records.write(record.model_copy(update={"trials": trials}), records.file_of("toy"))


def test_nothing_recorded_and_nothing_finished(checkout: Toy) -> None:
    assert forecast.forecast(checkout.load(), checkout.parameters(), jobs=1) == (
        "4 trials: 0 are finished already, 4 have to run. Expected time and memory: unknown, because no trial is "
        "recorded."
    )
    assert checkout.traced == []


def test_recorded_times_are_added_and_shared_among_processes(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(runner.run_study("toy", checkout.parameters()), [100, 200, 300, 400], peak=2 * GIB)
    monkeypatch.setattr(runner, "processes", lambda *_: 2)
    # Another scale is another trial: its time is the mean.
    expected = forecast.forecast(checkout.load(), checkout.parameters(scale=2))
    assert "Expected: 8 min and 4.0 GiB of memory in 2 processes, if this machine is as fast" in expected


def test_finished_trials_take_no_time(checkout: Toy) -> None:
    keep(runner.run_study("toy", checkout.parameters(samples=6)), [100, 100, 100, 100, 100, 100])
    for file in checkout.kept()[:2]:
        file.unlink()
    expected = forecast.forecast(checkout.load(), checkout.parameters(samples=6), jobs=1)
    assert expected.startswith("6 trials: 4 are finished already, 2 have to run. Expected: 3 min in 1 processes")
    everything = forecast.forecast(checkout.load(), checkout.parameters(samples=6), todo=[])
    assert everything == "6 trials: 6 are finished already, 0 have to run."


def test_the_longest_trial_bounds_the_time(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(runner.run_study("toy", checkout.parameters()), [1, 1, 1, 80])
    for file in checkout.kept():
        file.unlink()
    monkeypatch.setattr(runner, "processes", lambda *_: 4)
    assert "Expected: 80 s in 4 processes" in forecast.forecast(checkout.load(), checkout.parameters())


def test_a_record_reuses_its_trials(checkout: Toy) -> None:
    checkout.rewrite(*PARTS)
    study, parameters = checkout.load(), checkout.parameters()
    recording.record(study, parameters)
    for file in checkout.kept():
        file.unlink()
    growing = recording.Recording(study, parameters)
    assert "0 have to run" in forecast.forecast(study, parameters, todo=growing.missing(), jobs=1)
    assert "2 have to run" in forecast.forecast(study, parameters, todo=growing.missing("a"), jobs=1)
    assert all(trial.peak and trial.peak > 2**20 for trial in records.read(records.file_of("toy")).trials)
