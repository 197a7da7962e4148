"""A command in a child process: its exit code is the command's own, whatever other code does."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradleak import watched
from tests.book.test_faults import Child
from tests.patience import wait_until


def begun(work: Callable[[], object]) -> Child:
    """Run work in a child of a process of its own."""

    def run() -> None:
        try:
            watched.run(work)
        except SystemExit as stop:
            os._exit(int(stop.code or 0))

    return Child(run, lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def ends_later() -> None:
    threading.Timer(0.05, lambda: os._exit(0)).start()
    time.sleep(60)


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda: None, 0),
        (lambda: sys.exit(1), 1),
        (lambda: sys.exit(130), 130),
        (lambda: os._exit(0), 3),
        (lambda: ctypes.CDLL(None)._exit(0), 3),
        (lambda: os.execv("/usr/bin/env", ["env", "true"]), 3),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 3),
        (ends_later, 3),
        (lambda: os.fork() or os._exit(0), 0),  # a process of the model ends
    ],
)
def test_the_exit_code_is_the_command_s_own(
    capfd: pytest.CaptureFixture[str], work: Callable[[], object], code: int
) -> None:
    assert begun(work).code() == code
    err = capfd.readouterr().err
    assert err.count("gradleak: other code ended the process before") == (code == 3)


def waiting() -> None:
    Path("child").write_text(str(os.getpid()))
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    process = begun(waiting)
    wait_until(lambda: Path("child").exists() and Path("child").read_text())
    os.kill(process.number, number)
    assert process.code() == code
    assert capfd.readouterr().err == ""


def test_an_audit_whose_model_ends_the_process_fails(tmp_path: Path) -> None:
    module = "import os\nfrom torch import nn\nclass Gone(nn.Linear):\n    def forward(self, x): os._exit(0)\n"
    (tmp_path / "brought.py").write_text(f"{module}def make(): return Gone(64, 10)\n")
    words = ["audit", "brought:make", "--data", "digits", "--fail-above", "labels=0"]
    done = subprocess.run(
        [sys.executable, "-m", "gradleak", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(watched.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith("gradleak: other code ended the process before the command had come to its end")
    assert not (tmp_path / "report" / "report.json").exists()
