"""Runs: every trial once, the same record however they run, interrupted for good, mistakes in one line.

Also their forecasts, their processes and the graphics cards of these.
"""

from __future__ import annotations

import getpass
import os
import platform
import signal
import socket
import sys
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
import torch

from gradleak import devices
from gradleak.errors import GradleakError, InputError, MissingData, UnknownName
from gradleak.runs import forecast, gpus, records, runner
from tests.checkout import DIGEST, PAUSE, Toy


def test_a_record_holds_every_trial_in_order_names_no_host_user_or_path_and_none_runs_twice(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters())
    assert [trial.inputs["number"] for trial in record.trials] == [0, 1, 2, 3]
    assert [row["word"] for row in record.trials[0].rows] == ["a", "b"]
    assert isinstance(record.trials[0].rows[0]["sum"], float)
    assert (record.profile, record.data, record.planned) == ("quick", ["digits: scikit-learn"], 4)
    assert record.machines == [records.this_machine("cpu")]
    text = record.model_dump_json()
    for name in (socket.gethostname(), platform.node(), str(Path.home()), str(checkout.root), os.getcwd(), sys.prefix):
        assert name not in text
    assert f'"{getpass.getuser()}"' not in text
    for changes, profile in (({"samples": 8}, "paper"), ({"device": "cpu"}, "quick"), ({"scale": 2}, "custom")):
        assert runner.profile_of(checkout.load(), checkout.parameters(**changes)) == profile

    again = runner.run_study("toy", checkout.parameters())
    assert checkout.traced == [0, 1, 2, 3]
    assert again.model_dump_json() == text, "with their times and dates"
    files = [file for file in (checkout.root / "cache" / "trials").rglob("*") if file.is_file()]
    assert sorted(files) == checkout.kept(), "a file a trial, and nothing beside them"
    runner.run_study("toy", checkout.parameters(samples=6))
    assert checkout.traced == [0, 1, 2, 3, 4, 5]
    assert runner.run_study("toy", checkout.parameters(seed=1)).digest() != record.digest()


def test_two_processes_come_to_the_same_as_one(checkout: Toy) -> None:
    parallel = checkout.python(DIGEST.format(changes={}, jobs=2))
    assert sorted(checkout.traced) == [0, 1, 2, 3]
    checkout.forget_trials()
    assert runner.run_study("toy", checkout.parameters()).digest() == parallel, "equal to the last bit"


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ('ValueError("the toy broke\\nand says more")', "the toy broke"),
        (
            'torch.OutOfMemoryError("CUDA out of memory.\\nTried")',
            r"more memory than the GPU has.*number=2.*device=cpu",
        ),
    ],
)
def test_finished_trials_survive_a_failing_one(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, raised: str, message: str
) -> None:
    monkeypatch.setenv("TOY_FAILS", "2")
    checkout.edit('ValueError("the toy broke\\nand says more")', raised)
    with pytest.raises((ValueError, GradleakError), match=message) as error:
        runner.run_study("toy", checkout.parameters(), jobs=1)
    note = getattr(error.value, "__notes__", [str(error.value)])[0]
    assert "\n" not in note
    assert "number=2, " in note
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


def test_a_trial_runs_again_only_for_data_that_it_reads(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.edit('return ["digits"]', 'return ["photos" if self.number else "digits"]')
    runner.run_study("toy", checkout.parameters(samples=1), jobs=1)
    runner.run_study("toy", checkout.parameters(samples=2), jobs=1)
    assert checkout.traced == [0, 1]
    source = runner.data.source
    monkeypatch.setattr(runner.data, "source", lambda name: "another file" if name == "photos" else source(name))
    runner.run_study("toy", checkout.parameters(samples=2), jobs=1)
    assert checkout.traced == [0, 1, 1]


def test_a_stopped_trial_continues_behind_its_finished_parts(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = """from gradleak.runs import parts

        def drawn(word: str) -> list[dict[str, Any]]:
            with open(os.environ["TOY_TRACE"] + " parts", "a") as file:
                file.write(word)
            if os.environ.get("TOY_STOPS") == word:
                raise KeyboardInterrupt
            return [dict(word=word, sum=torch.rand(1, generator=generator.manual_seed(0)), nothing=float("nan"))]

        generator = torch.Generator()
        for word in self.words:
            yield from parts.rows(word, lambda: drawn(word))
        return
        time.sleep(self.pause)"""
    checkout.edit("time.sleep(self.pause)", parted)
    one = checkout.parameters(samples=1)
    whole = runner.run_study("toy", one)
    checkout.forget_trials()
    monkeypatch.setenv("TOY_STOPS", "b")
    with pytest.raises(KeyboardInterrupt):
        runner.run_study("toy", one)
    assert len(checkout.kept()) == 1, "the first part"
    monkeypatch.delenv("TOY_STOPS")
    with monkeypatch.context() as other:
        other.setattr(runner.code, "key", lambda *_: "other code")
        assert runner.run_study("toy", one).digest() == whole.digest()
    assert runner.run_study("toy", one).digest() == whole.digest()
    assert Path(f"{checkout.trace} parts").read_text() == "ab" + "ab" + "ab" + "b"
    assert len(checkout.kept()) == 2, "one trial of each code, without parts"


def test_a_trial_has_one_thread_and_ieee_precision(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    found = "word=word, threads=torch.get_num_threads(), precision=torch.backends.cudnn.conv.fp32_precision,"
    checkout.edit("word=word,", found)
    before = torch.get_num_threads(), devices.precision()
    assert before[1] != "IEEE", "torch's own setting for convolutions is TF32"
    frame = runner.run_study("toy", checkout.parameters(), jobs=1).frame()
    assert (set(frame["threads"]), set(frame["precision"])) == ({1}, {"ieee"})
    monkeypatch.setenv("TOY_FAILS", "0")
    with pytest.raises(ValueError, match="broke"):
        runner.run_study("toy", checkout.parameters(seed=1), jobs=1)
    assert (torch.get_num_threads(), devices.precision()) == before


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('return ["digits"]', 'return ["imagenet-sample"]', MissingData, r"'imagenet-sample'.*GRADLEAK_DATA"),
        ('return ["digits"]', 'return ["digit"]', UnknownName, "did you mean 'digits'"),
        ("range(self.samples)", "()", InputError, "study 'toy' has no trials"),
        ("sum=values.sum()", "sum=object()", InputError, r"rows of 'toy'\[0\]\.sum is a object"),
    ],
)
def test_a_mistake_is_one_line(checkout: Toy, old: str, new: str, error: type[Exception], message: str) -> None:
    checkout.edit(old, new)
    with pytest.raises(error, match=message):
        runner.run_study("toy", checkout.parameters(), jobs=1)
    assert checkout.traced == [0] * ("sum" in old), "before any trial, if no trial is needed to see it"


# Of the workers of a cluster that answers.
THREADS = {"Client.return_value.__enter__.return_value": None, "Client.return_value.nthreads.return_value": {"b": 2}}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, r"pip install 'gradleak\[cluster\]'"),
        (Mock(Client=Mock(side_effect=OSError("nobody"))), "no Dask scheduler answers at 'tcp://a:1': nobody"),
        (MagicMock(**THREADS), "a worker of 'tcp://a:1' has 2 threads: start it with `--nthreads 1`"),
    ],
)
def test_a_cluster_that_does_not_answer_or_has_workers_of_several_threads(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, module: object, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", module)
    with pytest.raises(InputError, match=message):
        runner.run_study("toy", checkout.parameters(), cluster="tcp://a:1")


# An attack may catch Ctrl-C and come back with the best so far.
CATCHING = """        with contextlib.suppress(KeyboardInterrupt):
            if os.environ.pop("TOY_INTERRUPTED", None):
                os.kill(os.getpid(), 2)
"""


@pytest.mark.usefixtures("listening")
def test_an_interrupted_trial_is_never_kept(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.rewrite((PAUSE, CATCHING), ("import os\n", "import contextlib\nimport os\n"))
    monkeypatch.setenv("TOY_INTERRUPTED", "yes")
    small = checkout.parameters(samples=1)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        runner.run_study("toy", small, jobs=1)
    assert signal.getsignal(signal.SIGINT) is before
    assert checkout.kept() == []
    runner.run_study("toy", small, jobs=1)
    assert checkout.traced == [0, 0]
    assert len(checkout.kept()) == 1


def test_jobs(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLEAK_JOBS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    wanted = [(None, 100, "cpu"), (None, 3, "cpu"), (None, 100, "cuda"), (5, 100, "cuda")]
    assert [runner.processes(*words) for words in wanted] == [8, 3, 1, 5]
    monkeypatch.setenv("GRADLEAK_JOBS", "4")
    assert [runner.processes(jobs, 100, "cpu") for jobs in (None, 2)] == [4, 2]
    with pytest.raises(InputError, match=r"positive number; got 0"):
        runner.run_study("toy", checkout.parameters(), jobs=0)


def test_every_process_takes_a_card_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.delenv("GRADLEAK_JOBS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpus, "folder", lambda: tmp_path)
    assert gpus.visible() == ["0", "1"]
    assert [runner.processes(None, trials, "cuda") for trials in (100, 1)] == [2, 1]
    taken, locks = [], []
    for _ in range(5):
        monkeypatch.setenv(gpus.VISIBLE, "4,GPU-8d3f,-1,9")  # CUDA counts up to the first name that is not a card
        monkeypatch.setattr(gpus, "_own", None)  # as in a new process
        for _ in range(2):
            gpus.take()
        taken.append(os.environ[gpus.VISIBLE])
        locks.append(gpus._own)
        if len(locks) == 4:
            locks[1].release()  # the process with this lock has ended
    assert taken == ["4", "GPU-8d3f", "4", "GPU-8d3f", "GPU-8d3f"], (
        "a process stays on its card; cards are shared evenly"
    )


def test_a_forecast_shares_the_recorded_times_among_processes(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    study, parameters = checkout.load(), checkout.parameters()
    begin = "4 trials: 0 are finished already, 4 have to run."
    unknown = "Expected time and memory: unknown, because no trial is recorded."
    assert forecast.forecast(study, parameters, jobs=1) == f"{begin} {unknown}"
    record = runner.run_study(study, parameters)
    assert all(trial.peak and trial.peak > 2**20 for trial in record.trials)
    checkout.forget_trials()
    for seconds, jobs, expected in (
        ([100, 200, 300, 400], 2, "8 min and 4.0 GiB of memory in 2 processes, if this machine is as fast"),
        ([1, 1, 1, 80], 4, "80 s and 8.0 GiB of memory in 4 processes"),
    ):
        timed = zip(record.trials, seconds, strict=True)
        trials = [trial.model_copy(update={"seconds": time, "peak": 2 * forecast.GIB}) for trial, time in timed]
        records.write(record.model_copy(update={"trials": trials}), records.file_of("toy"))
        monkeypatch.setattr(runner, "processes", lambda *_, jobs=jobs: jobs)
        assert forecast.forecast(study, parameters).startswith(f"{begin} Expected: {expected}")
