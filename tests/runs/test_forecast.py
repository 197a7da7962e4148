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
    expected = forecast.forecast(checkout.load(), checkout.parameters(), jobs=1)
    assert (expected.trials, expected.finished, expected.unknown) == (4, 0, 4)
    lines = expected.sentences
    assert lines[0] == "4 trials: 0 are finished already, 4 have to run."
    assert lines[1] == "Expected time: unknown, because none of these trials is recorded."
    assert lines[2].startswith("Expected memory: at least")
    assert checkout.traced == []


def test_recorded_times_are_added_and_shared_among_processes(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(runner.run_study("toy", checkout.parameters()), [100, 200, 300, 400], peak=2 * GIB)
    monkeypatch.setattr(runner, "processes", lambda *_: 2)
    # Another scale is another trial: its time is the mean.
    expected = forecast.forecast(checkout.load(), checkout.parameters(scale=2))
    assert (expected.finished, expected.exact, expected.guessed) == (0, 0, 4)
    assert expected.seconds == pytest.approx(1000)
    assert expected.wall_seconds == pytest.approx(500)
    assert (
        "4 by the mean of their part's recorded trials; this machine may be faster or slower" in expected.sentences[1]
    )
    assert "in 2 processes side by side" in expected.sentences[1]
    assert expected.measured
    assert expected.sentences[2].startswith("Expected memory: about 4.0 GiB for 2 processes (2.0 GiB each")


def test_cached_trials_are_finished_and_tell_the_speed(checkout: Toy) -> None:
    run = runner.run_study("toy", checkout.parameters())
    larger = runner.run_study("toy", checkout.parameters(samples=6))
    keep(larger, [100] * 6)
    for file in checkout.kept()[:2]:
        file.unlink()
    expected = forecast.forecast(checkout.load(), checkout.parameters(samples=6), jobs=1)
    assert (expected.finished, expected.missing, expected.exact) == (4, 2, 2)
    assert expected.speed is not None
    assert expected.speed < 0.1, "the toy takes no 100 s here"
    assert expected.seconds == pytest.approx(200 * expected.speed)
    assert expected.wall_seconds >= expected.longest
    everything = forecast.forecast(checkout.load(), checkout.parameters(samples=6), todo=[])
    assert everything.sentences == ["6 trials: 6 are finished already, 0 have to run."]
    assert run.profile == "quick"


def test_the_longest_trial_bounds_the_time(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(runner.run_study("toy", checkout.parameters()), [1, 1, 1, 400])
    for file in checkout.kept():
        file.unlink()
    monkeypatch.setattr(runner, "processes", lambda *_: 4)
    expected = forecast.forecast(checkout.load(), checkout.parameters())
    assert expected.exact == 4
    assert expected.wall_seconds == pytest.approx(400)


def test_a_record_reuses_its_trials(checkout: Toy) -> None:
    checkout.rewrite(*PARTS)
    study, parameters = checkout.load(), checkout.parameters()
    recording.record(study, parameters)
    for file in checkout.kept():
        file.unlink()
    growing = recording.Recording(study, parameters)
    assert forecast.forecast(study, parameters, todo=growing.missing(), jobs=1).missing == 0
    assert forecast.forecast(study, parameters, todo=growing.missing("a"), jobs=1).missing == 2
    assert all(trial.peak and trial.peak > 2**20 for trial in records.read(records.file_of("toy")).trials)
