"""`make test` runs all tests, whatever fails first."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# Stands in for the environment's Python: writes its arguments to a file, and fails with those that $FAILS names.
PYTHON = '#!/bin/sh\necho "$*" >> ran\ncase "$FAILS" in *"<$*>"*) exit 1;; esac\n'
FIRST, SECOND = "-m pytest", "-m pytest tests/gpu --dist worksteal"


@pytest.mark.parametrize("failing", ["", FIRST, SECOND])
def test_both_runs_of_the_tests_run_and_either_can_fail(tmp_path: Path, failing: str) -> None:
    shutil.copy(Path(__file__).parents[2] / "Makefile", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "requirements.lock", ".venv/bin/python", ".venv/.ready"):
        (tmp_path / name).write_text(PYTHON)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "FAILS": f"<{failing}>"}
    result = subprocess.run(["make", "test"], cwd=tmp_path, env=environment, check=False)
    assert (result.returncode == 0) == (not failing)
    assert [line.rstrip() for line in (tmp_path / "ran").read_text().splitlines()] == [FIRST, SECOND]
