"""Trials and pages: the same record however they run, resuming, damage, full disks, and what a page keeps."""

from __future__ import annotations

import getpass
import json
import os
import platform
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

from gradleak import studies
from gradleak.book import pages, records, runner
from gradleak.errors import GradleakError, GradleakWarning, InputError, MissingData, StorageError, UnknownName
from gradleak.storage import write_whole

if TYPE_CHECKING:
    from tests.checkout import Toy

RUN = "from gradleak import pages, runner, studies; s = studies.load('toy'); "
DIGEST = RUN + "print(runner.run_study(s, studies.parameters(s, 'quick', {changes!r}), jobs={jobs}).digest())"


# ------------------------------------------------------------------------------------------------------------ records
def test_record_holds_every_trial_in_order(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters())
    assert [trial.inputs["number"] for trial in record.trials] == [0, 1, 2, 3]
    assert [row["word"] for row in record.trials[0].rows] == ["a", "b"]
    assert isinstance(record.trials[0].rows[0]["sum"], float)
    assert record.profile == "quick"
    assert record.provenance.data == ["digits: scikit-learn"]
    assert record.provenance.seed == 2023


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
    text = runner.run_study("toy", checkout.parameters()).provenance.model_dump_json()
    for name in (socket.gethostname(), platform.node(), str(Path.home()), str(checkout.root), os.getcwd(), sys.prefix):
        assert name not in text
    assert f'"{getpass.getuser()}"' not in text


def test_a_trial_uses_as_many_threads_as_its_study_asks(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    checkout.edit('"word": word,', '"word": word, "threads": torch.get_num_threads(),')
    assert set(runner.run_study("toy", checkout.parameters(), jobs=1).frame()["threads"]) == {1}
    monkeypatch.setattr(checkout.load().module, "THREADS", 2, raising=False)
    assert set(runner.run_study("toy", checkout.parameters(seed=1), jobs=1).frame()["threads"]) == {2}
    assert torch.get_num_threads() == before


def test_jobs(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLEAK_JOBS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert runner._jobs(None, 100, "cpu") == 8
    assert runner._jobs(None, 3, "cpu") == 3
    assert runner._jobs(None, 100, "cuda") == 1
    assert runner._jobs(5, 100, "cuda") == 5
    assert runner._jobs(None, 100, "cpu", threads=4) == 2
    assert runner._jobs(50, 100, "cpu", threads=16) == 1
    monkeypatch.setenv("GRADLEAK_JOBS", "4")
    assert runner._jobs(None, 100, "cpu") == 4
    assert runner._jobs(2, 100, "cpu") == 2
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv("GRADLEAK_JOBS", wrong)
        with pytest.raises(InputError, match=r"positive number.*"):
            runner._jobs(None, 100, "cpu")
    with pytest.raises(InputError, match="got 0"):
        runner.run_study("toy", checkout.parameters(), jobs=0)


# ------------------------------------------------------------------------------------------------------------ the cache
def test_finished_trials_are_not_run_again(checkout: Toy) -> None:
    first = runner.run_study("toy", checkout.parameters())
    second = runner.run_study("toy", checkout.parameters())
    assert checkout.traced == [0, 1, 2, 3]
    assert [trial.seconds for trial in second.trials] == [trial.seconds for trial in first.trials]
    assert second.digest() == first.digest()
    runner.run_study("toy", checkout.parameters(samples=6))
    assert checkout.traced == [0, 1, 2, 3, 4, 5]


def test_other_source_or_data_runs_again(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.run_study("toy", checkout.parameters(samples=1))
    helper = checkout.root / "gradleak" / "paths.py"
    helper.write_text(helper.read_text() + "\nADDED = 1\n")
    runner.run_study("toy", checkout.parameters(samples=1))
    assert checkout.traced == [0], "the toy does not import that"
    checkout.edit("PAPER =", "ADDED = 1\nPAPER =")
    runner.run_study("toy", checkout.parameters(samples=1))
    assert checkout.traced == [0, 0]
    monkeypatch.setattr(runner.data, "source", lambda name: f"{name}: another file")
    runner.run_study("toy", checkout.parameters(samples=1))
    assert checkout.traced == [0, 0, 0]


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_cache_file_cut_in_half_is_computed_again(checkout: Toy, share: float) -> None:
    first = runner.run_study("toy", checkout.parameters())
    damaged = checkout.kept()[1]
    damaged.write_bytes(damaged.read_bytes()[: int(share * damaged.stat().st_size)])
    with pytest.warns(
        GradleakWarning, match=r"a cached trial of 'toy' is damaged and was computed again \(number=\d"
    ) as told:
        again = runner.run_study("toy", checkout.parameters())
    assert len(told) == 1
    assert again.digest() == first.digest()
    assert len(checkout.traced) == 5
    runner.run_study("toy", checkout.parameters())
    assert len(checkout.traced) == 5


def test_no_cut_file_costs_more_than_its_own_trial(checkout: Toy) -> None:
    """Every kind of file: joblib's notes about a trial, and its copy of our function, for which it drops everything."""
    first = DIGEST.format(changes={}, jobs=1)
    digest = checkout.python(first)
    others = [
        file for file in (checkout.root / "cache" / "trials").rglob("*") if file.is_file() and file.suffix != ".pkl"
    ]
    assert {"func_code.py", "metadata.json"} <= {file.name for file in others}
    for file in others:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert checkout.python(first) == digest
    assert checkout.traced == [0, 1, 2, 3]


def test_a_killed_parallel_run_goes_on_where_it_stopped(checkout: Toy) -> None:
    changes = {"pause": 0.25, "samples": 8}
    process = checkout.start(DIGEST.format(changes=changes, jobs=2))
    deadline = time.monotonic() + 60
    while len(checkout.kept()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept, begun = len(checkout.kept()), len(checkout.traced)
    assert 3 <= kept < 8
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


# ------------------------------------------------------------------------------------------------------------- mistakes
def test_a_missing_dataset_is_said_before_any_trial(checkout: Toy) -> None:
    checkout.edit('return ["digits"]', 'return ["imagenet-sample"]')
    with pytest.raises(MissingData, match=r"'imagenet-sample'.*GRADLEAK_DATA"):
        runner.run_study("toy", checkout.parameters())
    checkout.edit('return ["digits"]', 'return ["digit"]')
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        runner.run_study("toy", checkout.parameters())
    assert checkout.traced == []


def test_no_trials_and_rows_that_no_record_holds(checkout: Toy) -> None:
    checkout.edit("range(parameters.samples)", "()")
    with pytest.raises(InputError, match="study 'toy' has no trials"):
        runner.run_study("toy", checkout.parameters())
    checkout.edit('"nothing": float("nan")', '"nothing": object()')
    with pytest.raises(InputError, match=r"rows of 'toy'\[0\]\.nothing is a object"):
        runner.run_study("toy", checkout.parameters(), jobs=1)


def test_a_cluster_needs_dask_and_an_address(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'gradleak\[cluster\]'"):
        runner.run_study("toy", checkout.parameters(), cluster="tcp://127.0.0.1:1")


def test_a_cache_that_cannot_be_made(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout.root / "file").write_text("")
    monkeypatch.setenv("GRADLEAK_CACHE", str(checkout.root / "file" / "cache"))
    with pytest.raises(StorageError, match=r"^cannot write trials into the folder 'trials': Not a directory$"):
        runner.run_study("toy", checkout.parameters())


@pytest.mark.usefixtures("unprivileged")
def test_read_only_folders_are_told_before_any_work(checkout: Toy) -> None:
    out, cache = checkout.root / "out", checkout.root / "cache" / "trials"
    for folder in (out, cache):
        folder.mkdir(parents=True)
        folder.chmod(0o555)
    with pytest.raises(StorageError, match=r"^cannot write trials into the folder 'trials': Permission denied$"):
        runner.run_study("toy", checkout.parameters())
    with pytest.raises(StorageError, match=r"^cannot write toy\.ipynb into the folder 'out': Permission denied$"):
        pages.run_page(checkout.load(), checkout.parameters(), out)
    with pytest.raises(StorageError, match=r"^cannot write r\.json into the folder 'out': Permission denied$"):
        write_whole(out / "r.json", lambda stream: stream.write(b""))
    assert checkout.traced == []


def test_a_full_disk(checkout: Toy) -> None:
    """Files may not grow beyond 300 bytes: less than a trial needs. The result is there, and the loss is told."""
    script = (
        "import resource, torch, warnings, gradleak.data\n"
        + RUN
        + "p = studies.parameters(s, 'quick', {'samples': 1})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always'); print(len(runner.run_study(s, p, jobs=1).trials))\n"
        "print(*(one.message for one in told), sep='\\n')"
    )
    count, message = checkout.python(script).splitlines()
    assert count == "1"
    assert message.startswith("a trial of 'toy' could not be stored in the cache (number=0")
    assert message.endswith(": File too large")
    assert checkout.kept() == []


# --------------------------------------------------------------------------------------------------------- source hash
def test_source_hash_follows_imports(checkout: Toy) -> None:
    package = checkout.root / "gradleak"
    (package / "one.py").write_text("from gradleak.deep import two\n")
    (package / "deep").mkdir()
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "two.py").write_text("from . import three\nfrom .four import x\n")
    (package / "deep" / "three.py").write_text("raise RuntimeError('read, not run')\n")
    (package / "deep" / "four.py").write_text("from gradleak import one  # a circle\nx = 1\n")
    (package / "deep" / "five.py").write_text("")
    before = runner.source_hash("gradleak.one")
    assert before == runner.source_hash("gradleak.one")
    for name, counts in (("deep/two", True), ("deep/three", True), ("deep/four", True), ("deep/five", False)):
        file = package / f"{name}.py"
        file.write_text(file.read_text() + "# changed\n")
        after = runner.source_hash("gradleak.one")
        assert (after != before) == counts, name
        before = after


# --------------------------------------------------------------------------------------------------------------- pages
def test_a_page_and_its_record(checkout: Toy) -> None:
    checkout.write_notebook(
        checkout.study_cell,
        "from gradleak import claims\nclaims.verdicts(record)",
        "import sys, os; print('scale', scale, sys.prefix, os.environ['GRADLEAK_ROOT'], os.getcwd())",
        "import warnings; warnings.warn('look', stacklevel=1)",
    )
    run = pages.run_page(checkout.load(), checkout.parameters(scale=2), checkout.root / "o{u}t", jobs=1)
    assert not run.cached
    assert (run.notebook, run.record) == (checkout.root / "o{u}t" / "toy.ipynb", checkout.root / "o{u}t" / "toy.json")
    record = records.read(run.record)
    assert record.profile == "custom"
    assert record.parameters["scale"] == 2

    page = nbformat.read(run.notebook, 4)
    nbformat.validate(page)
    facts = page.metadata["gradleak"]
    assert set(facts) == {"study", "key", "seconds", "device", "versions", "date"}
    assert facts["key"] == pages.page_key(checkout.load(), checkout.parameters(scale=2))
    printed = "".join(output.get("text", "") for cell in page.cells for output in cell.get("outputs", ()))
    assert "scale 2.0 python . scratch" in printed
    assert "UserWarning: look" in printed
    (shown,) = [output.data for cell in page.cells for output in cell.get("outputs", ()) if "data" in output]
    assert ":name: tab-toy-verdicts" in shown["text/markdown"]
    assert "<table>" in shown["text/html"]
    text = run.notebook.read_text()
    for name in (str(checkout.root), str(Path.home()), sys.prefix, os.getcwd(), "papermill", "iopub"):
        assert name not in text

    begun = checkout.traced
    again = pages.run_page(checkout.load(), checkout.parameters(scale=2), checkout.root / "o{u}t")
    assert again.cached
    assert again.seconds == run.seconds
    assert pages._finished(run.notebook, run.record, "another key") is None
    run.record.write_text("half a rec")
    assert pages._finished(run.notebook, run.record, facts["key"]) is None
    assert checkout.traced == begun


def test_page_key_changes_with_what_the_page_shows(checkout: Toy) -> None:
    study, parameters = checkout.load(), checkout.parameters()
    keys = [pages.page_key(study, parameters)]
    assert pages.page_key(study, parameters) == keys[0]
    keys.append(pages.page_key(study, checkout.parameters(seed=1)))
    for file in (checkout.module, checkout.claims, checkout.notebook, checkout.root / "gradleak" / "tables.py"):
        file.write_text(file.read_text() + "\n# changed\n")
        keys.append(pages.page_key(study, parameters))
    (checkout.root / "results" / "toy.json").write_text("{}")
    keys.append(pages.page_key(study, parameters))
    assert len(set(keys)) == len(keys)


def test_a_failing_page_says_where_and_keeps_what_ran(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "2")
    with pytest.raises(GradleakError) as error:
        pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1)
    assert str(error.value) == (
        "page 'toy' failed in cell 2: ValueError: the toy broke (as far as it came it is in toy.ipynb)"
    )
    page = nbformat.read(checkout.root / "out" / "toy.ipynb", 4)
    assert any(output.output_type == "error" for cell in page.cells for output in cell.get("outputs", ()))
    assert not (checkout.root / "out" / "toy.json").exists()


def test_a_page_warns_of_a_damaged_cache_but_does_not_show_it(checkout: Toy) -> None:
    runner.run_study("toy", checkout.parameters())
    checkout.kept()[0].write_bytes(b"")
    with pytest.warns(GradleakWarning, match="a cached trial of 'toy' is damaged"):
        run = pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1)
    assert len(checkout.traced) == 5
    assert "damaged" not in run.notebook.read_text()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("x = 1", "page 'toy' ran, but its notebook made no record"),
        ("import os; os._exit(1)", "page 'toy' ended without a word"),
    ],
)
def test_pages_without_a_record(checkout: Toy, cell: str, message: str) -> None:
    checkout.write_notebook(cell)
    with pytest.raises(GradleakError, match=message):
        pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out")


def test_an_interrupted_page_leaves_no_kernel(checkout: Toy) -> None:
    checkout.write_notebook(
        "import os, pathlib; pathlib.Path(os.environ['TOY_TRACE']).write_text(str(os.getpid()))\n"
        "import time; time.sleep(120)"
    )
    process = checkout.start(RUN + "import pathlib; pages.run_page(s, studies.parameters(s), pathlib.Path('out'))")
    deadline = time.monotonic() + 60
    while not checkout.traced and time.monotonic() < deadline:
        time.sleep(0.05)
    (kernel,) = checkout.traced
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    deadline = time.monotonic() + 10
    while Path(f"/proc/{kernel}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)


def test_records_are_json_without_nan(checkout: Toy) -> None:
    record = runner.run_study("toy", checkout.parameters(samples=1))
    records.write(record, checkout.root / "record.json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads((checkout.root / "record.json").read_text(), parse_constant=refuse)
    assert records.read(checkout.root / "record.json").digest() == record.digest()
