"""Killed, out of space, shut out, or twice at once: what is resumed comes to the same, and every file is whole.

`make faults` kills each command twenty times; the tests' own share is small.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.sharedctypes import RawValue
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gradleak import claims, data, paths
from gradleak.auditing import Report, options
from gradleak.book import build
from gradleak.errors import GradleakError, StorageError
from gradleak.runs import recording, records
from tests.checkout import Toy

KILLS = int(os.environ.get("GRADLEAK_FAULTS", "2"))
# A page's kernel takes seconds to start: only `make faults` kills the book.
COMMANDS = ("record", "audit", "book") if KILLS >= 20 else ("record", "audit")
# What `gradleak audit` is asked for: a network and a batch of little work, in the module that is `brought`.
AUDITED = options.Options(
    "brought:make", "brought:batches", None, "1,2", None, "none,clip/1", "cross-entropy", 60.0, None, True, None,
    None, 0.1, 1, 0.0, 0.0, None, 0, (), 2,
)  # fmt: skip
brought = SimpleNamespace(
    make=lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)).double(),
    batches=lambda: (
        torch.randn(12, 20, generator=torch.Generator().manual_seed(0)).double(), torch.arange(12) % 8,
    ),
)  # fmt: skip


def works(toy: Toy) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return what is killed by its command, and how the result is read without what the clock decides."""
    study, parameters = toy.load(), toy.parameters(samples=12)

    def report() -> object:
        # The page states the seconds, and its SHA-256 differs with them.
        told = Report.from_json((toy.root / "report/report.json").read_bytes())
        return told.model_copy(update={"seconds": 0.0, "files": [one.name for one in told.files]})

    return {
        "record": (
            lambda: recording.record(study, parameters, rules=claims.rules("toy"), jobs=1),
            lambda: records.read(records.file_of("toy")).digest(),
        ),
        "audit": (lambda: options.report(AUDITED).write(toy.root / "report"), report),
        "book": (
            lambda: build.run_pages([study], "quick", 1),
            lambda: records.read(paths.executed() / "toy2020" / "toy.json").digest(),
        ),
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
    monkeypatch.setitem(sys.modules, "brought", brought)  # type: ignore[arg-type]
    torch.set_num_threads(1)
    data.load("digits", "test")
    return checkout


# The number of file operations of a child.
operations = RawValue("L")


def counting(last: int | None = None) -> Callable[[], None]:
    """Return code with which a child counts its file operations, and is killed before the last one."""
    operations.value = 0

    def count(event: str, arguments: object) -> None:
        if event == "open" or event.startswith(("os.", "shutil.")):
            operations.value += 1
            if operations.value == last:
                os.killpg(0, signal.SIGKILL)

    return lambda: sys.addaudithook(count)


def whole_files(toy: Toy) -> int:
    """Return how many files of results there are; each of them is whole."""
    files = [*toy.kept(), *toy.root.glob("results/**/*.json"), *toy.root.glob("report/*.json")]
    files += [*toy.root.glob("runs/**/*.json"), *toy.root.glob("book/executed/**/*.json")]
    assert all(isinstance(json.loads(file.read_text()), dict) for file in files)
    return len(files)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_killed_at_any_moment_goes_on_and_comes_to_the_same(toy: Toy, command: str) -> None:
    work, result = works(toy)[command]
    assert Child(work, counting()).code() == 0
    draws, last, wanted, killed = random.Random(command), operations.value, result(), 0
    while killed < KILLS:
        # From the beginning, or there would be nothing left to kill.
        for file in (*toy.kept(), *toy.root.glob("results/**/*.json"), *paths.executed().rglob("toy.*")):
            file.unlink()
        # A run may need fewer operations than the first, and then ends by itself.
        killed += Child(work, counting(draws.randint(1, last))).code() == -signal.SIGKILL
        whole_files(toy)
        assert Child(work).code() == 0
        assert result() == wanted


@pytest.mark.parametrize("command", ["record", "audit"])
def test_a_full_disk_is_one_line_and_what_is_run_again_is_whole(toy: Toy, command: str) -> None:
    work, result = works(toy)[command]
    assert Child(work).code() == 0
    wanted = result()
    for file in (*toy.root.glob("results/**/*.json"), *toy.root.glob("report/**/*.*")):
        file.unlink()
    # A file may not grow beyond so many bytes: writing fails in the middle, as on a full disk.
    assert Child(work, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))).code() == 2
    whole_files(toy)
    assert not list(toy.root.rglob(".*.json.*")), "what was begun is not left lying about"
    assert Child(work).code() == 0
    assert result() == wanted


def test_a_cache_that_is_read_only_is_one_line(toy: Toy, unprivileged: None) -> None:
    folder = toy.root / "cache" / "trials" / "toy"
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    try:
        with pytest.raises(StorageError, match=r"^cannot write files into the folder 'toy': Permission denied$"):
            works(toy)["record"][0]()
    finally:
        folder.chmod(0o700)


def test_two_runs_of_one_page_at_once_come_to_the_same(toy: Toy) -> None:
    work, result = works(toy)["record"]
    both = [Child(work) for _ in range(2)]
    assert [one.code() for one in both] == [0, 0]
    twice = result()
    assert whole_files(toy)
    for file in toy.kept():
        file.unlink()
    assert Child(work).code() == 0
    assert result() == twice
