"""A small checkout with one toy study, in which a test may do as it likes."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import gradleak
from gradleak import claims, studies

STUDY = '''"""A toy: draws and their sum

toy2020, Table 1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from gradleak import studies
from gradleak.runs.columns import Column, Columns
from gradleak.studies import Experiment, setting

PLACE = "Table 1"


NAMES = ("word", "value", "sum", "product", "careless", "nothing", "threads", "precision")
COLUMNS = Columns({name: Column(name) for name in NAMES})


class Draws(Experiment):
    number: int
    scale: float
    pause: float
    rounded: bool
    words: list[str]

    def reads(self) -> list[str]:
        return ["digits"]

    def run(self) -> Iterator[dict[str, Any]]:
        if trace := os.environ.get("TOY_TRACE"):
            with open(trace, "a") as file:
                file.write(f"{self.number}\\n")
        if os.environ.get("TOY_FAILS") == str(self.number):
            raise ValueError("the toy broke\\nand says more")
        time.sleep(self.pause)
        generator = torch.Generator().manual_seed(self.seed + self.number)
        values = self.scale * torch.rand(100_003, generator=generator)
        if self.rounded:
            values = values.round()
        careless = torch.rand(1)  # from torch's own generator, as a library might
        for word in self.words:
            yield dict(
                word=word,
                value=self.scale * self.number,
                sum=values.sum(),
                product=(values[:90_000].reshape(300, 300) @ values[:90_000].reshape(300, 300)).sum(),
                careless=float(careless),
                nothing=float("nan"),
            )


class Parameters(studies.Parameters):
    samples: int = setting(paper=8, smallest=1, ge=1, le=1000)
    scale: float = setting(gt=0)
    pause: float = setting(ge=0)
    rounded: bool
    words: list[str]

    def experiments(self) -> Iterator[Draws]:
        for number in range(self.samples):
            yield Draws.of(self, number=number)

    def about(self) -> str:
        return f"{self.samples} draws"
'''

PARAMETERS = """samples: int = 4  # how many draws
scale: float = 1.0  # their size
pause: float = 0.0  # seconds a draw takes
rounded: bool = False  # whole numbers only
words: list[str] = ["a", "b"]  # one row each
device: str = "auto"  # auto, cpu or cuda
seed: int = 2023  # every random choice on this page follows from it"""

STUDY_CELL = """from gradleak import studies
from gradleak.runs import runner
record = runner.run_study("toy", studies.stated("toy", globals()))"""

CLAIMS = """
- id: toy-sum
  paper: toy2020
  place: Table 1, row 1
  statement: The sum of the numbers is six
  study: toy
  measure: {where: {word: a}, column: value, reduce: sum}
  published: 6
  rule: {within: {absolute: 0.5}}
  needs: {samples: 4}
  setting: any
"""


DIGEST = """from gradleak import studies; from gradleak.runs import runner; s = studies.load('toy')
print(runner.run_study(s, studies.parameters(s, 'quick', {changes!r}), jobs={jobs}).digest())"""

KIND = """

class {name}(Draws):
    part: ClassVar[str] = "{part}"

    def run(self) -> Iterator[dict[str, Any]]:
        return super().run()
"""
NEXT = "\n\nclass Parameters(studies.Parameters):"
# An edit that lets all but the first two draws wait until they may go on, so that a run is caught at any speed.
PAUSE = "        time.sleep(self.pause)\n"
WAITING = """        while self.number > 1 and not os.path.exists(os.environ["TOY_TRACE"] + " go"):
            time.sleep(0.05)
"""
# Edits that give the study three more kinds of draws; those of the parts a and b take turns, c is never drawn.
PARTS = (
    (NEXT, "".join(KIND.format(name=part.upper(), part=part) for part in "abc") + NEXT),
    ("yield Draws.of(", "yield (A, B)[number % 2].of("),
)


def forget() -> None:
    """Let the toy study be imported anew, and what lies beside it."""
    for name in [one for one in sys.modules if one.startswith("gradleak.studies.toy2020")]:
        del sys.modules[name]


class Toy:
    """A copy of the package with the study `toy` alone, in a checkout of its own with a space in its path.

    Attributes:
        root: The checkout.
        module: The study.
        claims: Its claims.
        notebook: Its page.
        trace: The file to which each trial writes its number when it begins.
        go: The file for which trials wait that were edited to do so.
    """

    study_cell = STUDY_CELL

    def __init__(self, root: Path) -> None:
        self.root = root
        self.module = root / "gradleak" / "studies" / "toy2020" / "toy.py"
        self.claims = root / "gradleak" / "claims" / "toy2020" / "toy.yaml"
        self.notebook = root / "notebooks" / "toy2020" / "toy.ipynb"
        self.trace, self.go = root / "trace", root / "trace go"

    @property
    def traced(self) -> list[int]:
        """The numbers of the trials that were begun, in order."""
        return [int(line) for line in self.trace.read_text().split()] if self.trace.exists() else []

    def kept(self) -> list[Path]:
        """The results in the cache of trials."""
        return sorted((self.root / "cache" / "trials").rglob("*.json"))

    def forget_trials(self) -> None:
        """Empty the cache of trials."""
        for file in self.kept():
            file.unlink()

    def load(self) -> studies.Study:
        return studies.load("toy")

    def parameters(self, **changes: Any) -> studies.Parameters:
        return studies.parameters(self.load(), "quick", changes)

    def edit(self, old: str, new: str) -> None:
        """Change the study as it was at first, and let it be imported anew."""
        self.rewrite((old, new))

    def rewrite(self, *edits: tuple[str, str]) -> None:
        """Change the study as it was at first in several places, and let it be imported anew."""
        text = STUDY
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        self.module.write_text(text)
        importlib.invalidate_caches()
        forget()

    def write_notebook(self, *cells: str, parameters: str = PARAMETERS) -> None:
        """Write the page: the parameters cell and then these cells."""
        made = [nbformat.v4.new_code_cell(cell, id=f"cell-{place}") for place, cell in enumerate((parameters, *cells))]
        made[0].metadata["tags"] = ["parameters"]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=kernel), self.notebook)

    def python(self, script: str) -> str:
        """Run a Python process in this checkout to its end and return what it printed."""
        process = subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(self.root)}, cwd=self.root,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """Give a checkout with one toy study; this process and those it starts see that study alone."""
    made = Toy(tmp_path / "a checkout")
    package = Path(gradleak.__file__).parent
    # With the compiled modules, which spares each new process the time for compiling them.
    shutil.copytree(package, made.root / "gradleak", ignore=shutil.ignore_patterns("*.pyc.*"))
    # A module elsewhere may have a page's name.
    for name in studies.names():
        paper = made.root / "gradleak" / "studies" / studies.paper_of(name)
        (paper / f"{name.replace('-', '_')}.py").unlink()
        (made.root / "gradleak" / "claims" / paper.name / f"{name}.yaml").unlink()
    for folder in ("notebooks/toy2020", "results", "book", "gradleak/studies/toy2020", "gradleak/claims/toy2020"):
        (made.root / folder).mkdir(parents=True)
    made.module.write_text(STUDY)
    made.claims.write_text(CLAIMS)
    made.write_notebook(STUDY_CELL, "from gradleak import claims\nclaims.verdicts(record)")
    globs = ", ".join(f"{{glob: book/executed/{paper}/*}}" for paper in ("toy2020", "empty2020"))
    (made.root / "book" / "_toc.yml").write_text(f"parts: [{{chapters: [{{file: a, sections: [{globs}]}}]}}]")
    monkeypatch.setattr(studies, "__path__", [str(made.root / "gradleak" / "studies")])
    monkeypatch.setattr(claims, "FOLDER", made.root / "gradleak" / "claims")
    monkeypatch.setattr(gradleak, "__file__", str(made.root / "gradleak" / "__init__.py"))
    monkeypatch.setenv("GRADLEAK_ROOT", str(made.root))
    monkeypatch.setenv("GRADLEAK_CACHE", str(made.root / "cache"))
    monkeypatch.setenv("TOY_TRACE", str(made.trace))
    monkeypatch.setenv("GRADLEAK_JOBS", "1")
    for name in ("DATA", "RUNS"):
        monkeypatch.delenv(f"GRADLEAK_{name}", raising=False)
    yield made
    forget()


@pytest.fixture
def toy(checkout: Toy) -> studies.Study:
    """Give the study of such a checkout, the only one there is."""
    return checkout.load()
