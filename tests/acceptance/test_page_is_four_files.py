"""A page is four files: a trial page added to a copy of the checkout shows up everywhere; nothing else is touched."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
STUDY = '''
"""A trial page: how often a fair coin falls heads

A page for the tests, of the shape that every page has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pandas as pd
import torch

from gradleak import studies
from gradleak.runs.records import Record
from gradleak.studies import Experiment, Row, setting

PLACE = "Table 1"


class Heads(Row):
    """How often the coin fell heads."""

    share: float


class Coin(Experiment):
    """A coin that is thrown some times."""

    stays_on_cpu: ClassVar[str] = "a coin is small"

    throws: int

    def run(self) -> Iterator[Heads]:
        heads = torch.rand(self.throws, generator=torch.Generator().manual_seed(self.seed)) < 0.5
        yield Heads(share=float(heads.double().mean()))


class Parameters(studies.Parameters):
    """What a rerun may change."""

    throws: int = setting(1000, paper=10_000, smallest=10, ge=1, about="throws")

    def experiments(self) -> Iterator[Coin]:
        yield Coin.of(self)

    def about(self) -> str:
        return f"{self.throws} throws"


def table(record: Record) -> pd.DataFrame:
    return record.frame()
'''
CLAIMS = """
- id: trial-page-fair
  paper: yin2021
  place: Table 1
  statement: A fair coin falls heads half of the time
  study: trial-page
  measure: {column: share, reduce: only, format: ".3f"}
  published: 0.5
  rule: {within: {absolute: 0.1}}
  needs: {throws: 100}
  setting: any
"""
CELLS = [
    ("markdown", "# A trial page\n\nHow often a fair coin falls heads {cite}`yin2021`."),
    (
        "parameters",
        "throws: int = 1000  # throws\ndevice: str = 'auto'  # auto, cpu or cuda\nseed: int = 2023  # every choice",
    ),
    (
        "code",
        """
        from gradleak import claims
        from gradleak.runs import runner
        from gradleak.show import provenance
        from gradleak.studies.yin2021 import trial_page

        parameters = trial_page.Parameters(throws=throws, device=device, seed=seed)
        record = runner.run_study("trial-page", parameters)
        claims.verdicts(record)
        """,
    ),
    ("code", "provenance.table(record)"),
]
TEST = "def test_trial_page() -> None:\n    assert True\n"


def notebook() -> str:
    cells = []
    for index, (kind, source) in enumerate(CELLS):
        text = textwrap.dedent(source).strip()
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        cell = make(text, id=f"cell-{index}")
        if kind == "parameters":
            cell.metadata["tags"] = ["parameters"]
        cells.append(cell)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=kernel)))


def hashes(folder: Path) -> dict[str, str]:
    files = (file for part in ("gradleak", "notebooks", "book", "tests") for file in (folder / part).rglob("*"))
    made = ("__pycache__", "generated", "executed")
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not any(part in made for part in file.parts)
    }


@pytest.mark.slow
def test_a_page_is_four_files_and_nothing_else(tmp_path: Path) -> None:
    # A folder with a space in its name, as a reader's might have.
    copy = tmp_path / "a copy"
    ignored = shutil.ignore_patterns("__pycache__", "executed", "generated")
    for part in ("gradleak", "notebooks", "book", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    shutil.copy(ROOT / "_config.yml", copy / "_config.yml")
    # The other pages would take minutes here, and are built elsewhere.
    for file in [*copy.glob("gradleak/studies/*2*/[!_]*.py"), *copy.glob("gradleak/claims/*/*.yaml")]:
        file.unlink()
    for file in [*copy.glob("notebooks/*/*.ipynb"), *copy.glob("tests/studies/*/test_*.py")]:
        file.unlink()
    before = hashes(copy)
    added = {
        "gradleak/studies/yin2021/trial_page.py": STUDY.lstrip(),
        "gradleak/claims/yin2021/trial-page.yaml": CLAIMS,
        "notebooks/yin2021/trial-page.ipynb": notebook(),
        "tests/studies/yin2021/test_trial_page.py": TEST,
    }
    for name, text in added.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text)

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADLEAK")}
    environment |= {"PYTHONPATH": str(copy), "GRADLEAK_CACHE": str(tmp_path / "cache")}

    def gradleak(*words: str) -> str:
        command = [sys.executable, "-m", "gradleak", *words]
        result = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "trial-page" in gradleak("list")
    assert str(copy / "_build" / "html" / "index.html") in gradleak("book", "--jobs", "1")
    html = copy / "_build" / "html" / "book"
    page = (html / "executed" / "yin2021" / "trial-page.html").read_text()
    assert "A fair coin falls heads half of the time" in page
    assert "executed/yin2021/trial-page.html" in (html / "index.html").read_text(), "in the table of contents"
    for name in ("scoreboard", "yin2021", "status"):
        assert "trial-page.html" in (html / f"{name}.html").read_text()
    assert "A fair coin falls heads half of the time" in (html / "scoreboard.html").read_text()
    assert "reproduced" in gradleak("verify")
    after = hashes(copy)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == set(added)
    # Nothing changed: the second book is there at once, and a page whose files are gone leaves it.
    assert "trial-page: unchanged" in gradleak("book")
