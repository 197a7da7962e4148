"""Runs: every trial in order, the same record however they run, interrupted for good, mistakes in one line."""

from __future__ import annotations

import getpass
import os
import platform
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gradleak import devices
from gradleak.errors import GradleakError, InputError, MissingData, UnknownName
from gradleak.runs import records, runner
from tests.checkout import Toy


def test_record_holds_every_trial_in_order_and_names_no_host_user_or_path(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters())
    assert [trial.inputs["number"] for trial in record.trials] == [0, 1, 2, 3]
    assert [row["word"] for row in record.trials[0].rows] == ["a", "b"]
    assert isinstance(record.trials[0].rows[0]["sum"], float)
    assert record.profile == "quick"
    assert record.data == ["digits: scikit-learn"]
    assert record.planned == 4
    assert record.machines == [records.this_machine("cpu")]
    text = record.model_dump_json()
    for name in (socket.gethostname(), platform.node(), str(Path.home()), str(checkout.root), os.getcwd(), sys.prefix):
        assert name not in text
    assert f'"{getpass.getuser()}"' not in text
    for changes, profile in (({"samples": 8}, "paper"), ({"device": "cpu"}, "quick"), ({"scale": 2}, "custom")):
        assert runner.profile_of(checkout.load(), checkout.parameters(**changes)) == profile
    assert runner.run_study("toy", checkout.parameters(seed=1)).digest() != record.digest()


def test_a_trial_has_its_own_threads_and_ieee_precision(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    found = "word=word, threads=torch.get_num_threads(), precision=torch.backends.cudnn.conv.fp32_precision,"
    checkout.edit("word=word,", found)
    before = torch.get_num_threads(), devices.precision()
    assert before[1] != "IEEE", "torch's own setting for convolutions is TF32"
    monkeypatch.setattr(checkout.load().module.Draws, "threads", 2)
    frame = runner.run_study("toy", checkout.parameters(), jobs=1).frame()
    assert (set(frame["threads"]), set(frame["precision"])) == ({2}, {"ieee"})
    checkout.edit("time.sleep(self.pause)", "raise ValueError('broken')")
    with pytest.raises(ValueError, match="broken"):
        runner.run_study("toy", checkout.parameters(seed=1), jobs=1)
    assert (torch.get_num_threads(), devices.precision()) == before


def test_a_trial_too_large_for_the_gpu_is_one_line_and_the_others_are_kept(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAILS", "2")
    checkout.edit(
        'ValueError("the toy broke\\nand says more")', 'torch.OutOfMemoryError("CUDA out of memory.\\nTried")'
    )
    with pytest.raises(GradleakError, match=r"needs more memory than the GPU has free.*number=2.*device=cpu") as raised:
        runner.run_study("toy", checkout.parameters(), jobs=1)
    assert "\n" not in str(raised.value)
    assert len(checkout.kept()) == 2
    monkeypatch.delenv("TOY_FAILS")
    begun = len(checkout.traced)
    runner.run_study("toy", checkout.parameters(), jobs=1)
    assert checkout.traced[begun:] == [2, 3], "finished trials do not run again"


def test_jobs(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLEAK_JOBS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    wanted = [(None, 100, "cpu"), (None, 3, "cpu"), (None, 100, "cuda"), (5, 100, "cuda"), (None, 100, "cpu", 4)]
    assert [runner.processes(*words) for words in wanted] == [8, 3, 1, 5, 2]
    assert runner.processes(50, 100, "cpu", threads=16) == 1
    monkeypatch.setenv("GRADLEAK_JOBS", "4")
    assert [runner.processes(jobs, 100, "cpu") for jobs in (None, 2)] == [4, 2]
    with pytest.raises(InputError, match=r"positive number; got 0"):
        runner.run_study("toy", checkout.parameters(), jobs=0)


def test_a_missing_dataset_is_said_before_any_trial(checkout: Toy) -> None:
    checkout.edit('return ["digits"]', 'return ["imagenet-sample"]')
    with pytest.raises(MissingData, match=r"'imagenet-sample'.*GRADLEAK_DATA"):
        runner.run_study("toy", checkout.parameters())
    checkout.edit('return ["digits"]', 'return ["digit"]')
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        runner.run_study("toy", checkout.parameters())
    assert checkout.traced == []


def test_no_trials_and_rows_that_no_record_holds(checkout: Toy) -> None:
    checkout.edit("range(self.samples)", "()")
    with pytest.raises(InputError, match="study 'toy' has no trials"):
        runner.run_study("toy", checkout.parameters())
    checkout.edit("sum=values.sum()", "sum=object()")
    with pytest.raises(InputError, match=r"rows of 'toy'\[0\]\.sum is a object"):
        runner.run_study("toy", checkout.parameters(), jobs=1)


def refusing(address: str) -> None:
    raise OSError("nobody is there")


# `match` catches Ctrl-C and comes back with the best so far.
MATCHING = """        from gradleak.images import Adam, match
        from gradleak.leak import observe
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        leak = observe(model, torch.ones(1, 1, 2, 2), torch.tensor([0]))
        def interrupt(*_):
            if os.environ.pop("TOY_INTERRUPTED", None):
                os.kill(os.getpid(), 2)
        found = match(leak, torch.tensor([0]), optimizer=Adam(steps=2), watch=interrupt)
        with open(os.environ["TOY_TRACE"] + " status", "a") as file:
            file.write(found.status[0][0] + " ")
"""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, r"pip install 'gradleak\[cluster\]'"),
        (SimpleNamespace(Client=refusing), "no Dask scheduler answers at 'tcp://a:1': nobody is there"),
    ],
)
def test_a_cluster_that_does_not_answer(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, module: object, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", module)
    with pytest.raises(InputError, match=message):
        runner.run_study("toy", checkout.parameters(), cluster="tcp://a:1")


@pytest.mark.usefixtures("listening")
def test_an_interrupted_trial_is_never_kept(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.edit("        time.sleep(self.pause)\n", MATCHING)
    monkeypatch.setenv("TOY_INTERRUPTED", "yes")
    small = checkout.parameters(samples=1)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        runner.run_study("toy", small, jobs=1)
    status = checkout.root / "trace status"
    assert status.read_text().split() == ["interrupted"], "the attack came back, as whoever calls it wants"
    assert signal.getsignal(signal.SIGINT) is before
    assert checkout.kept() == []
    runner.run_study("toy", small, jobs=1)
    assert status.read_text().split() == ["interrupted", "stopped"]
    assert checkout.traced == [0, 0]
    assert len(checkout.kept()) == 1
