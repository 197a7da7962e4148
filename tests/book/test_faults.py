"""Killed, out of space, shut out, or twice at once: what is resumed comes to the same, and every file is whole.

`make faults` kills twenty times; the tests' own share is small.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawValue
from pathlib import Path

import pytest
import torch

from gradleak import claims, data, paths
from gradleak.auditing import Report, options
from gradleak.book import build, pages
from gradleak.errors import GradleakError, GradleakWarning, StorageError
from gradleak.runs import recording, records
from tests.checkout import Toy

KILLS = int(os.environ.get("GRADLEAK_FAULTS", "2"))
# A page in a kernel of its own takes seconds to start: `make faults` alone kills these.
COMMANDS = ("record", "audit", "run", "book") if KILLS >= 20 else ("record", "audit")
CHANGES = {"samples": 12}
MODULE = """
import torch
from torch import nn
def make():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)).double()
def batches():
    return torch.randn(12, 20, generator=torch.Generator().manual_seed(0)).double(), torch.arange(12) % 8
"""


def audited(out: Path) -> None:
    """Do what `gradleak audit` does, on a network and a batch of little work."""
    words = options.Options(
        "brought:make", "brought:batches", None, "1,2", None, "none,clip/1", "cross-entropy", 60.0, None, True, None,
        None, 0.1, 1, 0.0, 0.0, None, 0, (), 2,
    )  # fmt: skip
    options.report(words).write(out)


def works(toy: Toy) -> dict[str, Callable[[], object]]:
    """Return what is killed, by its command."""
    study, parameters = toy.load(), toy.parameters(**CHANGES)
    return {
        "record": lambda: recording.record(study, parameters, rules=claims.rules("toy"), jobs=1),
        "audit": lambda: audited(toy.root / "report"),
        "run": lambda: pages.run_page(study, parameters, paths.runs() / "toy", jobs=1),
        "book": lambda: build._run_pages([study], "quick", 1),
    }


def results(toy: Toy) -> dict[str, Callable[[], object]]:
    """Return how what a command leaves is read, without what the clock decides."""

    def report() -> object:
        # The page states the seconds, and its SHA-256 differs with them.
        told = Report.from_json((toy.root / "report/report.json").read_bytes())
        return told.model_copy(update={"seconds": 0.0, "files": [one.name for one in told.files]})

    return {
        "record": lambda: records.read(records.file_of("toy")).digest(),
        "audit": report,
        "run": lambda: records.read(paths.runs() / "toy" / "toy.json").digest(),
        "book": lambda: records.read(paths.executed() / "toy2020" / "toy.json").digest(),
    }


class Child:
    """A process that was forked from this one, so that a kill meets the work and not its imports."""

    def __init__(self, work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads, which sleep here
            self.number = os.fork()
        if self.number == 0:
            os.setsid()
            code = 3
            try:
                prepare()
                work()
                code = 0
            except GradleakError as error:
                code = 2 if "\n" not in str(error) else 4
            finally:
                os._exit(code)

    def code(self) -> int:
        """Wait for its end."""
        return os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])


@pytest.fixture
def toy(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A checkout in which everything is imported and loaded that the work will ask for."""
    (checkout.root / "brought.py").write_text(MODULE)
    monkeypatch.chdir(checkout.root)
    torch.set_num_threads(1)
    data.load("digits", "test")
    return checkout


class FileOperations:
    """Counts the file operations of a child, and kills it and all that it started just before one of them."""

    def __init__(self) -> None:
        self.count = RawValue("L")

    def killing(self, at: int | None = None) -> Callable[[], None]:
        """Return what prepares a child that is killed before its operation of this number, or not at all."""
        self.count.value = 0

        def counted(event: str, arguments: object) -> None:
            if event == "open" or event.startswith(("os.", "shutil.")):
                self.count.value += 1
                if self.count.value == at:
                    os.killpg(0, signal.SIGKILL)

        return lambda: sys.addaudithook(counted)


def whole_files(toy: Toy) -> int:
    """Return how many files of results there are; each of them is whole."""
    files = [*toy.kept(), *toy.root.glob("results/**/*.json"), *toy.root.glob("report/*.json")]
    files += [*toy.root.glob("runs/**/*.json"), *toy.root.glob("book/executed/**/*.json")]
    assert all(isinstance(json.loads(file.read_text()), dict) for file in files)
    return len(files)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_killed_at_any_moment_goes_on_and_comes_to_the_same(toy: Toy, command: str) -> None:
    work, result = works(toy)[command], results(toy)[command]
    operations = FileOperations()
    assert Child(work, operations.killing()).code() == 0
    draws, last, wanted, killed = random.Random(command), operations.count.value, result(), 0
    while killed < KILLS:
        # From the beginning, or there would be nothing left to kill.
        for file in (*toy.kept(), *toy.root.glob("results/**/*.json"), *paths.executed().rglob("toy.*")):
            file.unlink()
        # A run may need fewer operations than the first, and then ends by itself.
        killed += Child(work, operations.killing(draws.randint(1, last))).code() == -signal.SIGKILL
        whole_files(toy)
        assert Child(work).code() == 0
        assert result() == wanted


@contextmanager
def disk(place: Path, size: str) -> Iterator[None]:
    """Have a small disk of its own at a folder, where that is allowed."""
    place.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_one_line_and_what_is_run_again_is_whole(toy: Toy) -> None:
    record, audit = works(toy)["record"], works(toy)["audit"]
    assert Child(record).code() == 0
    wanted = results(toy)["record"]()
    records.file_of("toy").unlink()
    for folder, work, name in (("results", record, "record"), ("report", audit, "audit")):
        # A file may not grow beyond so many bytes: writing fails in the middle, as on a full disk.
        limited = Child(work, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)))
        assert limited.code() == 2, folder
        whole_files(toy)
        assert Child(work).code() == 0
        assert results(toy)[name]()
    assert results(toy)["record"]() == wanted
    assert not list(toy.root.rglob(".*.json.*")), "what was begun is not left lying about"


@pytest.mark.skipif(KILLS < 20, reason="mounts disks: make faults")
def test_small_disks_fill_and_are_freed(toy: Toy) -> None:
    for name, place in (
        ("record", toy.root / "cache"),
        ("record", toy.root / "results"),
        ("audit", toy.root / "report"),
    ):
        work = works(toy)[name]
        with disk(place, "16k"):
            full = place / "ballast"
            with pytest.raises(OSError, match="No space"):
                full.write_bytes(bytes(2**20))
            # A cache that is full only warns, for the record is worth more; here every warning is an error.
            warned = Child(work, lambda: warnings.simplefilter("ignore", GradleakWarning))
            assert warned.code() == (0 if place.name == "cache" else 2), place.name
        assert Child(work).code() == 0
        assert results(toy)[name]()


def test_a_cache_that_is_read_only_is_one_line(toy: Toy, unprivileged: None) -> None:
    folder = toy.root / "cache" / "trials" / "toy"
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    try:
        with pytest.raises(StorageError, match=r"^cannot write trials into the folder 'trials': Permission denied$"):
            works(toy)["record"]()
    finally:
        folder.chmod(0o700)
    assert Child(works(toy)["record"]).code() == 0


def test_two_runs_of_one_page_at_once_come_to_the_same(toy: Toy) -> None:
    work, result = works(toy)["record"], results(toy)["record"]
    both = [Child(work) for _ in range(2)]
    assert [one.code() for one in both] == [0, 0]
    twice = result()
    whole_files(toy)
    for file in toy.kept():
        file.unlink()
    assert Child(work).code() == 0
    assert result() == twice
