"""The package alone, as a wheel holds it, without a checkout: its promises hold, and pages say where the book is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gradleak

MODEL = """
from torch import nn


def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""


@pytest.mark.slow
def test_the_package_works_without_its_book(tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    shutil.copytree(Path(gradleak.__file__).parent, site / "gradleak", ignore=shutil.ignore_patterns("__pycache__"))
    work.mkdir()
    (work / "mine.py").write_text(MODEL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADLEAK")}
    environment |= {"PYTHONPATH": str(site), "HOME": str(tmp_path / "home")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gradleak", *words]
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)

    audit = run("audit", "mine:make_model", "--data", "digits", "--batch-size", "2", "--steps", "2", "--out", "report")
    assert audit.returncode == 0, audit.stderr
    assert json.loads((work / "report" / "report.json").read_text())["version"] == gradleak.__version__
    assert "photos" in run("data").stdout
    assert "theorem1-sum-bound" in run("claims").stdout
    page = run("run", "theorem1")
    assert page.returncode == 2
    assert "runs its pages from a checkout" in page.stderr
    assert page.stderr.count("\n") == 1
