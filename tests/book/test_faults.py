"""Killed, out of space, or twice at once: what is resumed comes to the same, and every file is whole.

`make faults` kills a recording twenty times; the tests' own share is small.
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

import pytest
import torch

from gradleak import claims, data
from gradleak.errors import GradleakError
from gradleak.runs import recording, records
from tests.checkout import Toy

KILLS = int(os.environ.get("GRADLEAK_FAULTS", "2"))


def recorded(toy: Toy) -> Callable[[], object]:
    """Return the recording that is killed, with all modules loaded."""
    study, parameters = toy.load(), toy.parameters(samples=12)
    return lambda: recording.record(study, parameters, rules=claims.rules("toy"), jobs=1)


def result() -> str:
    """Return the record without what the clock decides."""
    return records.read(records.file_of("toy")).digest()


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
def toy(checkout: Toy) -> Toy:
    """A checkout in which everything is imported and loaded that the work will ask for."""
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
    files = [*toy.kept(), *toy.root.glob("results/**/*.json")]
    assert all(isinstance(json.loads(file.read_text()), dict) for file in files)
    return len(files)


def test_what_is_killed_at_any_moment_goes_on_and_comes_to_the_same(toy: Toy) -> None:
    work = recorded(toy)
    assert Child(work, counting()).code() == 0
    draws, last, wanted, killed = random.Random("record"), operations.value, result(), 0
    while killed < KILLS:
        # From the beginning, or there would be nothing left to kill.
        for file in (*toy.kept(), *toy.root.glob("results/**/*.json")):
            file.unlink()
        # A run may need fewer operations than the first, and then ends by itself.
        killed += Child(work, counting(draws.randint(1, last))).code() == -signal.SIGKILL
        whole_files(toy)
        assert Child(work).code() == 0
        assert result() == wanted


def test_a_full_disk_is_one_line_and_two_runs_at_once_come_to_the_same(toy: Toy) -> None:
    work = recorded(toy)
    both = [Child(work) for _ in range(2)]
    assert [one.code() for one in both] == [0, 0]
    assert whole_files(toy)
    wanted = result()
    records.file_of("toy").unlink()
    # A file may not grow beyond so many bytes: writing fails in the middle, as on a full disk.
    assert Child(work, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))).code() == 2
    whole_files(toy)
    assert not list(toy.root.rglob(".*.json.*")), "what was begun is not left lying about"
    toy.forget_trials()
    assert Child(work).code() == 0
    assert result() == wanted
