"""Runs are cached, resumed, repeatable, and fail in one clear line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from gradleak import data, paths, studies
from gradleak.book import pages, records, runner
from gradleak.errors import GradleakError, GradleakWarning, InputError, StorageError
from gradleak.studies import Study

DRIVER = """
import sys
from gradleak import claims, studies
from gradleak.book import runner
studies.__path__[:] = [sys.argv[1] + "/studies"]
study = studies.load("toy")
record = runner.run_study(study, study.Parameters(count=8, sleep=0.25, log=sys.argv[2]), jobs=1)
print(record.digest())
"""


def run(study: Study, **changes: object) -> records.Record:
    return runner.run_study(study, studies.parameters(study, "quick", changes), jobs=1)


def test_trials_run_in_order_and_are_not_run_twice(toy: Study, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = run(toy, log=str(log))
    assert first.frame()["value"].tolist() == [0, 1, 2, 3]
    assert first.digest() == run(toy, log=str(log)).digest()
    assert log.read_text().split() == ["0", "1", "2", "3"]
    run(toy, log=str(log), count=5)
    assert log.read_text().split() == ["0", "1", "2", "3", "4"]
    assert run(toy, factor=2.0).digest() != first.digest()


def test_a_killed_run_goes_on_where_it_stopped(toy: Study, tmp_path: Path) -> None:
    log, clean = tmp_path / "log", tmp_path / "clean"
    command = [sys.executable, "-c", DRIVER, os.environ["GRADLEAK_ROOT"], str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not log.is_file() or len(log.read_text().split()) < 4):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = log.read_text().split()
    assert 4 <= len(done) < 8, "the run was not killed halfway"
    resumed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    lines = log.read_text().split()
    # At most the trial that was killed between its end and its storing runs again.
    assert len(lines) <= 9
    assert len(set(lines)) == 8
    assert lines[: len(done) - 1] == [str(n) for n in range(len(done) - 1)]
    environment = os.environ | {"GRADLEAK_CACHE": str(tmp_path / "other")}
    command[-1] = str(clean)
    # The log's path is an input of the trials; what they found is compared through a record of equal inputs.
    whole = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    assert len(whole) == len(resumed) == 64
    log.unlink()
    command[-1] = str(log)
    again = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    assert again == resumed


def test_a_damaged_cache_entry_is_computed_again_with_a_warning(toy: Study, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = run(toy, log=str(log))
    outputs = sorted(paths.cache().rglob("output.pkl"))
    assert len(outputs) == 4
    outputs[0].write_bytes(outputs[0].read_bytes()[: outputs[0].stat().st_size // 2])
    with pytest.warns(GradleakWarning, match="a cached trial of 'toy' is damaged and was computed again") as caught:
        second = run(toy, log=str(log))
    assert len(caught) == 1
    assert second.digest() == first.digest()
    assert len(log.read_text().split()) == 5, "one trial and no other was computed again"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(toy, log=str(log)).digest() == first.digest()


def test_a_cache_that_cannot_be_written_is_one_clear_line(
    toy: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="cannot write trials into the folder 'trials': Not a directory"):
        run(toy)


def test_a_full_disk_loses_no_result(toy: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    import joblib

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(joblib.memory.MemorizedFunc, "_persist_input", full, raising=False)
    monkeypatch.setattr("joblib._store_backends.StoreBackendMixin.dump_item", lambda *_, **__: None)
    monkeypatch.setattr(joblib.memory.MemorizedFunc, "_persist_input", lambda *_, **__: {}, raising=False)
    with pytest.warns(GradleakWarning, match="could not be stored in the cache"):
        assert len(run(toy).trials) == 4


def test_a_full_disk_for_the_record_is_one_clear_line(
    toy: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run(toy)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"cannot write r.json into the folder '.*': No space left on device"):
        records.write(record, tmp_path / "r.json")
    assert list(tmp_path.glob("*r.json*")) == [], "nothing is left half written"


def test_jobs_do_not_change_results() -> None:
    study = studies.load("theorem1")
    small = studies.parameters(study, "quick", study.module.SMALLEST)
    alone = runner.run_study(study, small, jobs=1)
    paths.cache().rename(paths.cache().with_name("used"))
    assert runner.run_study(study, small, jobs=2).digest() == alone.digest()


def test_bad_jobs_and_clusters(toy: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="jobs must be a positive number; got -1"):
        runner.run_study(toy, toy.Parameters(), jobs=-1)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="a cluster needs Dask"):
        runner.run_study(toy, toy.Parameters(), cluster="tcp://127.0.0.1:1")


def test_source_hash_follows_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gradleak"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from gradleak import b\nimport os\n")
    (package / "b.py").write_text("import gradleak.c\n")
    (package / "c.py").write_text("x = 1\n")
    (package / "d.py").write_text("x = 1\n")
    monkeypatch.setattr("gradleak.__file__", str(package / "__init__.py"))
    before = runner.source_hash("gradleak.a")
    (package / "d.py").write_text("x = 2\n")
    assert runner.source_hash("gradleak.a") == before
    (package / "c.py").write_text("x = 2\n")
    assert runner.source_hash("gradleak.a") != before
    assert runner.source_hash("numpy") == runner.source_hash("pandas")


def test_profile_is_told_from_the_parameters(toy: Study) -> None:
    assert run(toy).profile == "quick"
    assert run(toy, count=8).profile == "paper"
    assert run(toy, count=3).profile == "custom"


def test_page_is_executed_with_its_parameters_and_kept(toy: Study, tmp_path: Path) -> None:
    out = tmp_path / "a folder" / "out"
    page = pages.run_page(toy, studies.parameters(toy, "quick", {"count": "3"}), out, jobs=1)
    assert not page.cached
    assert len(records.read(page.record).trials) == 3
    text = page.notebook.read_text()
    assert "3 trials" in text
    assert "papermill" not in json.loads(text)["metadata"]
    assert json.loads(text)["metadata"]["gradleak"]["study"] == "toy"
    again = pages.run_page(toy, studies.parameters(toy, "quick", {"count": "3"}), out, jobs=1)
    assert again.cached
    assert again.seconds == pytest.approx(page.seconds, abs=0.06)
    assert not pages.run_page(toy, toy.Parameters(), out, jobs=1).cached
    assert "GRADLEAK_RECORD" not in os.environ


def test_a_failing_page_is_one_clear_line(toy: Study, tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="page 'toy' failed in cell 3: RuntimeError: thirteen") as caught:
        pages.run_page(toy, studies.parameters(toy, "quick", {"factor": "13"}), tmp_path, jobs=1)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "toy.ipynb").is_file(), "the half-run page is kept to look at"


def test_a_page_into_a_file_is_one_clear_line(toy: Study, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write toy.ipynb into the folder 'out'"):
        pages.run_page(toy, toy.Parameters(), tmp_path / "file" / "out", jobs=1)


def test_provenance_names_no_machine_and_no_user(toy: Study) -> None:
    import getpass
    import socket

    record = run(toy)
    text = record.model_dump_json(exclude={"trials"})
    assert socket.gethostname() not in text
    assert str(Path.cwd()) not in text
    assert getpass.getuser() not in json.dumps(record.provenance.model_dump())
    assert record.provenance.data == [data.source("digits")]
    assert record.provenance.commit == "unknown"
