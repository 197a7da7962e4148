"""The package alone, as a wheel holds it, without a checkout: its promises hold, and pages say where the book is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gradleak
from tests.acceptance.wheel import promises


@pytest.mark.slow
def test_the_package_works_without_its_book(tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    shutil.copytree(Path(gradleak.__file__).parent, site / "gradleak", ignore=shutil.ignore_patterns("__pycache__"))
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADLEAK")}
    environment |= {"PYTHONPATH": str(site), "HOME": str(tmp_path / "home")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gradleak", *words]
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)

    audit = {"an MLP": ("mine:make_model", "--batch-size", "2", "--steps", "2")}
    assert [(promise, seen) for promise, holds, seen in promises(run, work, audit) if not holds] == []
