"""What tests share: a cache of their own, and a toy study."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from gradleak import studies

pytest_plugins = ["tests.checkout"]

TOY = '''
"""A toy study for the tests"""
import time
from pathlib import Path
from typing import Any, ClassVar
import pandas as pd
from pydantic import Field
from gradleak import studies

PLACE = "nowhere"
SMALLEST = {}

class Parameters(studies.Parameters):
    count: int = Field(4, ge=1, le=100, description="trials")
    factor: float = Field(1.0, gt=0, description="what numbers are multiplied by")
    names: list[str] = Field(["a"], description="words")
    sleep: float = Field(0.0, ge=0, description="seconds a trial takes")
    log: str = Field("", description="a file that each trial writes a line into")
    paper: ClassVar[dict[str, Any]] = {"count": 8}

def datasets(parameters):
    return ["digits"]

def trials(parameters):
    return [{"n": n, "factor": parameters.factor, "sleep": parameters.sleep, "log": parameters.log,
             "seed": parameters.seed, "device": "cpu"} for n in range(parameters.count)]

def trial(n, factor, sleep, log, seed, device):
    time.sleep(sleep)
    if log:
        with Path(log).open("a") as stream:
            stream.write(f"{n}\\n")
    if factor == 13:
        raise RuntimeError("thirteen")
    return [{"value": n * factor, "good": n % 2 == 0, "odd": float("nan") if n == 1 else 1.0}]

def table(record):
    return record.frame()
'''

TOY_CLAIMS = """
- id: toy-sum
  paper: wang2024
  place: Table 0
  statement: The sum is six
  study: toy
  measure: {column: value, reduce: sum}
  published: 6
  rule: {within: {absolute: 0.5}}
  needs: {count: 4}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests' trials and networks out of the user's cache, and let tests share theirs."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("GRADLEAK_CACHE", str(folder))
    for name in ("GRADLEAK_RECORD", "GRADLEAK_PROGRESS", "GRADLEAK_JOBS", "GRADLEAK_CLUSTER"):
        monkeypatch.delenv(name, raising=False)


def write_toy(root: Path) -> None:
    """Write a toy study, its notebook and its claims into folders laid out like a checkout."""
    for folder in ("studies/toy2020", "notebooks/toy2020", "claims/toy2020", "results", "book"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "studies" / "toy2020" / "toy.py").write_text(TOY.lstrip())
    (root / "claims" / "toy2020" / "toy.yaml").write_text(TOY_CLAIMS)
    globs = ", ".join(f"{{glob: book/executed/{paper}/*}}" for paper in ("toy2020", "empty2020"))
    toc = f"parts: [{{chapters: [{{file: a, sections: [{globs}]}}]}}]"
    (root / "book" / "_toc.yml").write_text(toc)
    stated = """
    count: int = 4  # trials
    factor: float = 1.0  # what numbers are multiplied by
    names: list[str] = ["a"]  # words
    sleep: float = 0.0  # seconds a trial takes
    log: str = ""  # a file
    device: str = "auto"  # device
    seed: int = 2023  # seed
    """
    run = f"""
    from gradleak import claims, studies
    from gradleak.book import runner
    studies.__path__.append({str(root / "studies")!r})
    claims.FOLDER = claims.Path({str(root / "claims")!r})
    from gradleak.studies.toy2020 import toy
    parameters = toy.Parameters(count=count, factor=factor, names=names, sleep=sleep, log=log, device=device, seed=seed)
    record = runner.run_study("toy", parameters)
    print(len(record.trials), "trials")
    """
    cells = [
        nbformat.v4.new_code_cell(textwrap.dedent(text).strip(), id=f"c{i}") for i, text in enumerate((stated, run))
    ]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    (root / "notebooks" / "toy2020" / "toy.ipynb").write_text(nbformat.writes(notebook))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[studies.Study]:
    """A toy study in a root of its own, the only one there is."""
    import sys

    root = tmp_path / "root"
    write_toy(root)
    monkeypatch.setenv("GRADLEAK_ROOT", str(root))
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(studies, "__path__", [str(root / "studies")])
    monkeypatch.setattr("gradleak.claims.FOLDER", root / "claims")
    yield studies.load("toy")
    for name in ("gradleak.studies.toy2020.toy", "gradleak.studies.toy2020"):
        sys.modules.pop(name, None)
    shutil.rmtree(root)
