"""Finished trials: none runs twice, a killed run goes on, damage and full disks cost no more than they must."""

from __future__ import annotations

import os
import signal

import pytest

from gradleak.errors import GradleakWarning
from gradleak.runs import records, runner
from tests.checkout import DIGEST, PAUSE, WAITING, Toy
from tests.patience import wait_until


def test_finished_trials_are_not_run_again(checkout: Toy) -> None:
    first = runner.run_study("toy", checkout.parameters())
    second = runner.run_study("toy", checkout.parameters())
    assert checkout.traced == [0, 1, 2, 3]
    for before, after in zip(first.trials, second.trials, strict=True):
        assert (after.seconds, after.date, after.commit) == (before.seconds, before.date, before.commit)
        assert repr(after.rows) == repr(before.rows)
    files = [file for file in (checkout.root / "cache" / "trials").rglob("*") if file.is_file()]
    assert sorted(files) == checkout.kept(), "a file a trial, and nothing beside them"
    assert second.digest() == first.digest()
    runner.run_study("toy", checkout.parameters(samples=6))
    assert checkout.traced == [0, 1, 2, 3, 4, 5]


def test_a_cache_file_cut_in_half_is_computed_again(checkout: Toy) -> None:
    first = runner.run_study("toy", checkout.parameters())
    damaged = checkout.kept()[1]
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.warns(
        GradleakWarning, match=r"a cached trial of 'toy' is damaged and was computed again \(number=\d"
    ) as told:
        again = runner.run_study("toy", checkout.parameters())
    assert len(told) == 1
    assert again.digest() == first.digest()
    assert len(checkout.traced) == 5
    runner.run_study("toy", checkout.parameters())
    assert len(checkout.traced) == 5


def test_a_killed_parallel_run_goes_on_where_it_stopped(checkout: Toy) -> None:
    checkout.edit(PAUSE, WAITING)
    changes = {"samples": 8}
    process = checkout.start(DIGEST.format(changes=changes, jobs=2))
    wait_until(lambda: len(checkout.kept()) == 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept, begun = len(checkout.kept()), len(checkout.traced)
    assert kept == 2
    checkout.go.touch()
    resumed = runner.run_study("toy", checkout.parameters(**changes))
    assert len(checkout.traced) - begun == 8 - kept, "finished trials were run again"
    for file in checkout.kept():
        file.unlink()
    whole = runner.run_study("toy", checkout.parameters(**changes))
    assert resumed.digest() == whole.digest(), "with one process or two, in one go or two: equal to the last bit"


def test_finished_trials_survive_a_failing_one(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "2")
    with pytest.raises(ValueError, match="the toy broke") as error:
        runner.run_study("toy", checkout.parameters(), jobs=1)
    assert error.value.__notes__[0].startswith("in a trial of 'toy': number=2, ")
    monkeypatch.delenv("TOY_FAILS")
    runner.run_study("toy", checkout.parameters(), jobs=1)
    assert checkout.traced == [0, 1, 2, 2, 3]


def test_other_data_packages_or_devices_run_again(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    small = checkout.parameters(samples=1)
    runner.run_study("toy", small)
    monkeypatch.setattr(runner.data, "source", lambda name: f"{name}: another file")
    runner.run_study("toy", small)
    monkeypatch.setattr(records, "versions", lambda: {"torch": "3"})
    runner.run_study("toy", small)
    assert checkout.traced == [0, 0, 0]
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "a GPU")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert len({runner.decides(checkout.load(), small, key) for key in ("code", "code", "other")}) == 2
    on_cpu = checkout.parameters(samples=1, device="cpu")
    assert runner.decides(checkout.load(), small, "code") != runner.decides(checkout.load(), on_cpu, "code")
