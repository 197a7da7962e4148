"""The pack of the queue runs on a bare machine, leaves what it finished when it is stopped, and is merged."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gradleak import claims
from gradleak.book import queue as waiting
from gradleak.runs import recording
from tests.book.test_queue import EFFORT, undecided
from tests.checkout import Toy
from tests.gpu import queue
from tests.patience import wait_until

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
HANG = ("if os.environ.get", "if self.number == 1: time.sleep(3600)\n        if os.environ.get")


@pytest.fixture
def recorded(checkout: Toy) -> Toy:
    """Give a toy whose claims need ten times the recorded effort."""
    return undecided(checkout)


def bare(folder: Path) -> dict[str, str]:
    """Make a python3 that sees the packages of this environment without this package and those that a pack brings."""
    packages, programs = folder / "packages", folder / "bin"
    packages.mkdir(parents=True)
    programs.mkdir()
    hidden = ("gradleak", "_editable", *(name.replace("-", "_") for name in queue.LACKING))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(hidden):
            (packages / entry.name).symlink_to(entry)
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder)}


def start(pack: Path, folder: Path, out: Path) -> subprocess.Popen[str]:
    """Start the script on the bare machine, with only the pack beside it."""
    for name in (queue.PACK, queue.SCRIPT):
        shutil.copy(pack / name, folder)
    out.mkdir()
    return subprocess.Popen(
        ["bash", queue.SCRIPT],
        cwd=folder,
        env=bare(folder / "machine") | {"OUT": str(out), "PACK": str(folder / queue.PACK)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_bare_machine_runs_the_queue_and_a_stop_loses_only_what_was_running(recorded: Toy, tmp_path: Path) -> None:
    recorded.rewrite(EFFORT, HANG)
    lines = queue.pack(tmp_path / "pack", minutes=30, jobs=1, python=HERE)
    assert lines[0].startswith("3 of 3 trials, 4 claims")
    assert len((tmp_path / "pack" / queue.SCRIPT).read_text()) < queue.LONGEST
    folder, out = tmp_path / "elsewhere", tmp_path / "out"
    folder.mkdir()
    process = start(tmp_path / "pack", folder, out)
    file = out / "trials.jsonl"
    wait_until(lambda: process.poll() is not None or (file.is_file() and file.read_bytes().count(b"\n") == 2))
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert [one.name for one in out.iterdir()] == ["trials.jsonl"]
    (merged,) = recording.merge([file], claims.rules, waiting.asked)
    assert merged.size == "2 of 4 trials"
    assert {trial.commit for trial in merged.trials} == {"unknown"}, "the toy's checkout has no history"
    judged = claims.judgements(merged)
    assert [judged[name].verdict for name in ("cheap", "more", "dear")] == ["reproduced", "reproduced", "trend: agrees"]


def test_a_pack_holds_only_what_the_trials_read(recorded: Toy, tmp_path: Path) -> None:
    queue.pack(tmp_path, lacking=())
    with zipfile.ZipFile(tmp_path / queue.PACK) as archive:
        names = archive.namelist()
    assert "gradleak/studies/toy2020/toy.py" in names
    assert "notebooks/toy2020/toy.ipynb" in names
    assert not [name for name in names if name.startswith(("data/", "results/", "wheels/"))]
