"""`make test` runs all tests, whatever fails first."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# Stands in for the environment's Python: notes its arguments, and fails with them if they are to fail.
PYTHON = """#!/bin/sh
echo "$*" >> ran
case "$FAILS" in *"<$*>"*) exit 1;; esac
"""
FIRST, SECOND = "-m pytest", "-m pytest tests/gpu"


@pytest.mark.parametrize(
    ("arguments", "failing", "runs", "passes"),
    [
        ("", [], [FIRST, SECOND], True),
        ("", [FIRST], [FIRST, SECOND], False),
        ("", [SECOND], [FIRST, SECOND], False),
        ("tests/claims", [], [f"{FIRST} tests/claims"], True),
        ("tests/claims", [f"{FIRST} tests/claims"], [f"{FIRST} tests/claims"], False),
    ],
)
def test_both_runs_of_the_tests_run_and_either_can_fail(
    tmp_path: Path, arguments: str, failing: list[str], runs: list[str], passes: bool
) -> None:
    shutil.copy(Path(__file__).parents[2] / "Makefile", tmp_path)
    for name in ("pyproject.toml", "requirements.lock", ".venv/bin/python", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(PYTHON)
    (tmp_path / ".venv/bin/python").chmod(0o755)
    command = ["make", "test", f"ARGS={arguments}"]
    fails = "".join(f"<{words}>" for words in failing)
    result = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "FAILS": fails}, check=False)
    assert (result.returncode == 0) == passes
    assert [line.rstrip() for line in (tmp_path / "ran").read_text().splitlines()] == runs
