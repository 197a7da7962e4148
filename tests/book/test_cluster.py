"""A real cluster of two worker processes: the same record as without, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gradleak.book import PATIENCE
from gradleak.errors import GradleakError
from gradleak.runs import records, runner
from tests.checkout import PAUSE, WAITING, Toy
from tests.test_cli import call

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Cluster:
    """A Dask scheduler and its workers, processes of their own."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


@contextlib.contextmanager
def started(checkout: Toy, *options: str, workers: int = 2) -> Iterator[Cluster]:
    """Start a cluster whose workers import this checkout's code, and end it."""
    file = checkout.root / "scheduler.json"
    file.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(checkout.root)}

    def start(what: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--scheduler-file", str(file), *words]
        with (checkout.root / f"{what}.log").open("ab") as told:
            options = {"cwd": checkout.root, "env": environment, "stdout": told, "stderr": told}
            return subprocess.Popen([*command, "--no-dashboard"], **options)

    processes = [start("scheduler", "--host", "127.0.0.1", "--port", "0")]
    try:
        while not file.is_file() or not file.read_text().strip():
            assert processes[0].poll() is None, (checkout.root / "scheduler.log").read_text()
            time.sleep(0.05)
        asked = options or ("--nthreads", "1")
        processes += [start("worker", "--no-nanny", "--host", "127.0.0.1", *asked) for _ in range(workers)]
        yield Cluster(json.loads(file.read_text())["address"], processes[0], processes[1:])
    finally:
        for process in processes:
            process.kill()
            process.wait()


# A client that waits long for a scheduler to answer, and not at all for one that went away to come back.
CLIENT = """
import distributed
from gradleak.__main__ import main

reconnect = distributed.Client._reconnect

async def give_up(client):
    client._timeout = 0
    await reconnect(client)

distributed.Client._reconnect = give_up
main()
"""


def gradleak(checkout: Toy, *words: str) -> subprocess.Popen[str]:
    connect = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{PATIENCE}s"}
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, *words], env=os.environ | connect | {"PYTHONPATH": str(checkout.root)},
        cwd=checkout.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def until_kept(running: subprocess.Popen[str], checkout: Toy, count: int) -> None:
    while len(checkout.kept()) < count:
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)


def alone(checkout: Toy, cache: str, **changes: Any) -> str:
    """Run the toy in this process, as far as a cache does not hold it, and return its record's digest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADLEAK_CACHE", str(checkout.root / cache))
        return runner.run_study("toy", checkout.parameters(**changes), jobs=1).digest()


def test_a_worker_may_be_killed(checkout: Toy) -> None:
    checkout.edit(PAUSE, WAITING)
    out = checkout.root / "out"
    with started(checkout) as cluster:
        running = gradleak(checkout, "run", "toy", "--out", str(out), "--cluster", cluster.address)
        until_kept(running, checkout, 1)
        cluster.workers[0].send_signal(signal.SIGKILL)
        checkout.go.touch()
        _, said = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0, said
        assert records.read(out / "toy.json").digest() == alone(checkout, "other")


def test_a_scheduler_that_goes_away_is_one_line_and_the_next_run_goes_on(
    checkout: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.edit(PAUSE, WAITING)
    command = ("record", "toy", "--profile", "quick")
    with started(checkout) as cluster:
        running = gradleak(checkout, *command, "--cluster", cluster.address)
        until_kept(running, checkout, 2)
        cluster.scheduler.send_signal(signal.SIGKILL)
        _, said = running.communicate(timeout=PATIENCE)
    told = "finished trials are kept, and the same command goes on from there"
    line = f"gradleak: the Dask scheduler at '{cluster.address}' went away; {told}\n"
    assert (running.returncode, said) == (2, line)
    kept = records.file_of("toy")
    assert records.read(kept).size == "2 of 4 trials"
    checkout.go.touch()
    checkout.trace.unlink()
    assert call(capsys, *command, "--jobs", "1")[0] == 0
    assert checkout.traced == [2, 3], "what was kept does not run again"
    assert records.read(kept).digest() == alone(checkout, "other")


def test_record_and_book_take_a_cluster(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def far_enough(*_: Any, **options: Any) -> None:
        raise GradleakError(f"on {options['cluster']}")

    monkeypatch.setattr("gradleak.book.pages.run_page", far_enough)
    monkeypatch.setattr("gradleak.runs.runner.run_trials", far_enough)
    assert call(capsys, "record", "toy", "--cluster", "tcp://a:1")[2] == "gradleak: on tcp://a:1\n"
    assert "failed: on tcp://a:1" in call(capsys, "book", "--jobs", "1", "--cluster", "tcp://a:1")[1]


def test_workers_of_several_threads_and_none_at_all_are_refused(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(checkout, "--nthreads", "2", workers=1) as made:
        code, _, said = call(capsys, "record", "toy", "--profile", "quick", "--cluster", made.address)
        assert (code, said) == (
            2, f"gradleak: a worker of '{made.address}' has 2 threads: start it with `--nthreads 1`\n"
        )  # fmt: skip
    monkeypatch.setattr("gradleak.runs.runner.WAIT", 1)
    with started(checkout, workers=0) as made:
        code, _, said = call(capsys, "record", "toy", "--profile", "quick", "--cluster", made.address)
        assert (code, said) == (2, f"gradleak: no worker has come to the Dask scheduler at '{made.address}' in 1 s\n")
