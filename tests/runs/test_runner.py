"""Runs: every trial in order, the same record however they run, interrupted for good, mistakes in one line."""

from __future__ import annotations

import getpass
import os
import platform
import signal
import socket
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gradleak import devices, studies
from gradleak.errors import GradleakError, InputError, MissingData, UnknownName
from gradleak.runs import records, runner
from tests.checkout import DIGEST, Toy


def test_record_holds_every_trial_in_order(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters())
    assert [trial.inputs["number"] for trial in record.trials] == [0, 1, 2, 3]
    assert [row["word"] for row in record.trials[0].rows] == ["a", "b"]
    assert isinstance(record.trials[0].rows[0]["sum"], float)
    assert record.profile == "quick"
    assert record.data == ["digits: scikit-learn"]
    assert record.planned == 4
    assert record.machines == [records.this_machine("cpu")]


@pytest.mark.parametrize(
    ("profile", "changes", "expected"),
    [
        ("quick", {}, "quick"),
        ("paper", {}, "paper"),
        ("quick", {"scale": 2}, "custom"),
        ("quick", {"samples": 8}, "paper"),
        ("quick", {"device": "cpu"}, "quick"),
    ],
)
def test_profile_follows_from_the_parameters(
    checkout: Toy, profile: str, changes: dict[str, object], expected: str
) -> None:
    assert runner.run_study("toy", studies.parameters("toy", profile, changes)).profile == expected


def test_same_seed_same_digest_and_another_seed_another(checkout: Toy) -> None:
    first = runner.run_study("toy", checkout.parameters())
    for kept in checkout.kept():
        kept.unlink()
    again = runner.run_study("toy", checkout.parameters())
    assert checkout.traced == [0, 1, 2, 3] * 2
    assert again.digest() == first.digest()
    assert runner.run_study("toy", checkout.parameters(seed=1)).digest() != first.digest()


def test_provenance_names_no_host_user_or_path(checkout: Toy) -> None:
    text = runner.run_study("toy", checkout.parameters()).model_dump_json()
    for name in (socket.gethostname(), platform.node(), str(Path.home()), str(checkout.root), os.getcwd(), sys.prefix):
        assert name not in text
    assert f'"{getpass.getuser()}"' not in text


def test_a_trial_uses_as_many_threads_as_its_study_asks(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    checkout.edit("word=word,", "word=word, threads=torch.get_num_threads(),")
    assert set(runner.run_study("toy", checkout.parameters(), jobs=1).frame()["threads"]) == {1}
    monkeypatch.setattr(checkout.load().module.Draws, "threads", 2)
    assert set(runner.run_study("toy", checkout.parameters(seed=1), jobs=1).frame()["threads"]) == {2}
    assert torch.get_num_threads() == before


def test_a_trial_computes_float32_in_ieee_precision(checkout: Toy) -> None:
    checkout.edit("word=word,", "word=word, precision=torch.backends.cudnn.conv.fp32_precision,")
    before = devices.precision()
    assert before != "IEEE", "torch's own setting for convolutions is TF32"
    assert set(runner.run_study("toy", checkout.parameters(), jobs=1).frame()["precision"]) == {"ieee"}
    assert devices.precision() == before
    checkout.edit("time.sleep(self.pause)", "raise ValueError('broken')")
    with pytest.raises(ValueError, match="broken"):
        runner.run_study("toy", checkout.parameters(seed=1), jobs=1)
    assert devices.precision() == before


def test_a_trial_on_a_gpu_hides_one_warning_alone() -> None:
    missing = "scatter_add_cuda_kernel does not have a deterministic implementation, but you set it"
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with runner._settled(1, accelerated=True):
            warnings.warn(missing, UserWarning, stacklevel=1)
            warnings.warn("something else", UserWarning, stacklevel=1)
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        warnings.warn(missing, UserWarning, stacklevel=1)
    assert [str(one.message) for one in shown] == ["something else", missing]
    assert not torch.are_deterministic_algorithms_enabled()


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
    assert runner.processes(None, 100, "cpu") == 8
    assert runner.processes(None, 3, "cpu") == 3
    assert runner.processes(None, 100, "cuda") == 1
    assert runner.processes(5, 100, "cuda") == 5
    assert runner.processes(None, 100, "cpu", threads=4) == 2
    assert runner.processes(50, 100, "cpu", threads=16) == 1
    monkeypatch.setenv("GRADLEAK_JOBS", "4")
    assert runner.processes(None, 100, "cpu") == 4
    assert runner.processes(2, 100, "cpu") == 2
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv("GRADLEAK_JOBS", wrong)
        with pytest.raises(InputError, match=r"positive number.*"):
            runner.processes(None, 100, "cpu")
    with pytest.raises(InputError, match="got 0"):
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


def test_a_cluster_needs_dask_and_an_address(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'gradleak\[cluster\]'"):
        runner.run_study("toy", checkout.parameters(), cluster="tcp://127.0.0.1:1")


def test_no_dask_scheduler_at_an_address(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(address: str) -> None:
        raise OSError("nobody is there")

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=refusing))
    with pytest.raises(InputError, match="no Dask scheduler answers at 'tcp://a:1': nobody is there"):
        runner.run_study("toy", checkout.parameters(), cluster="tcp://a:1")


# ---------------------------------------------------------------------------------------------------------- interrupted
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


def test_an_interrupted_trial_of_a_worker_is_never_kept(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.edit("        time.sleep(self.pause)\n", MATCHING)
    monkeypatch.setenv("TOY_INTERRUPTED", "yes")
    script = "try:\n    " + DIGEST.format(changes={"samples": 2}, jobs=2)
    assert checkout.python(f"{script}\nexcept KeyboardInterrupt:\n    print('interrupted')") == "interrupted"
    assert (checkout.root / "trace status").read_text().split()[:1] == ["interrupted"]
    assert checkout.kept() == []
