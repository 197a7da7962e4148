"""A real cluster of three worker processes, and the recipe for Slurm: the same record as without, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import distributed
import pytest

from gradleak.runs import records, runner
from tests.checkout import PAUSE, WAITING, Toy
from tests.patience import wait_until
from tests.test_cli import call

pytestmark = pytest.mark.slow


Process = subprocess.Popen[bytes]


@contextlib.contextmanager
def started(checkout: Toy) -> Iterator[tuple[str, list[Process]]]:
    """Start a scheduler and workers that import this checkout's code; yield its address and all processes; end them."""
    file = checkout.root / "scheduler.json"
    environment = os.environ | {"PYTHONPATH": str(checkout.root)}

    def start(what: str, *words: str) -> Process:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--scheduler-file", str(file), *words]
        command += ["--host", "127.0.0.1", "--no-dashboard"]
        with (checkout.root / f"{what}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=checkout.root, env=environment, stdout=log, stderr=log)

    processes = [start("scheduler", "--port", "0")]
    try:
        wait_until(lambda: processes[0].poll() is not None or (file.is_file() and file.read_text().strip()))
        assert processes[0].poll() is None, (checkout.root / "scheduler.log").read_text()
        processes += [start("worker", "--no-nanny", "--nthreads", "1") for _ in range(3)]
        yield json.loads(file.read_text())["address"], processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def alone(checkout: Toy) -> str:
    """Run the toy in this process, with a cache of its own, and return its record's digest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADLEAK_CACHE", str(checkout.root / "other"))
        return runner.run_study("toy", checkout.parameters(), jobs=1).digest()


def test_a_worker_may_be_killed_and_a_scheduler_that_goes_away_is_one_line(
    checkout: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.edit(PAUSE, WAITING)
    command, kept = ("record", "toy", "--profile", "quick"), records.file_of("toy")

    def kill_a_worker() -> None:
        wait_until(checkout.kept)
        processes[1].kill()
        checkout.go.touch()

    def kill_the_scheduler() -> None:
        wait_until(lambda: len(checkout.kept()) >= 2)
        processes[0].kill()

    async def give_up(client: distributed.Client) -> None:
        client._timeout = 0  # for a scheduler that went away to come back
        await reconnect(client)

    reconnect = distributed.Client._reconnect
    monkeypatch.setattr(distributed.Client, "_reconnect", give_up)
    with started(checkout) as (address, processes):
        killing = threading.Thread(target=kill_a_worker, daemon=True)
        killing.start()
        assert call(capsys, *command, "--cluster", address)[0] == 0
        killing.join()
        assert records.read(kept).digest() == alone(checkout)
        for file in (*checkout.kept(), kept, checkout.go):
            file.unlink()
        killing = threading.Thread(target=kill_the_scheduler, daemon=True)
        killing.start()
        code, _, said = call(capsys, *command, "--cluster", address)
        killing.join()
    told = "finished trials are kept, and the same command goes on from there"
    line = f"gradleak: the Dask scheduler at '{address}' went away; {told}\n"
    assert (code, said) == (2, line)
    assert records.read(kept).size == "2 of 4 trials"
    checkout.go.touch()
    checkout.trace.unlink()
    assert call(capsys, *command, "--jobs", "1")[0] == 0
    assert checkout.traced == [2, 3], "what was kept does not run again"
    assert records.read(kept).digest() == alone(checkout)


def test_the_job_for_slurm_is_a_worker_of_one_core_and_may_have_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADLEAK_CACHE")
    monkeypatch.setenv("GRADLEAK_DATA", "/shared/data sets")
    jobs = []
    for words in ([], ["gpu"]):
        # Without a number nothing is submitted, and this needs no Slurm.
        monkeypatch.setattr(sys, "argv", ["slurm.py", *words])
        runpy.run_path(str(Path(__file__).parents[2] / "book" / "slurm.py"), run_name="__main__")
        jobs.append(capsys.readouterr().out)
    assert {
        "#SBATCH -n 1", "#SBATCH --cpus-per-task=1", "export OMP_NUM_THREADS=1",
        "export GRADLEAK_DATA='/shared/data sets'",
    } <= set(jobs[0].splitlines())  # fmt: skip
    assert "--nthreads 1 " in jobs[0]
    assert not [word for word in ("--gres", "GRADLEAK_CACHE", "--cluster") if word in jobs[0]]
    assert "#SBATCH --gres=gpu:1" in jobs[1].splitlines()
