"""A sixth paper with one attack and one page is six files beside its prose; the page is four of them.

They are added to a copy of the checkout, and show up everywhere; nothing else is touched.
"""

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
TEST = "def test_least_bias() -> None:\n    assert True\n"


def notebook(cells: list[tuple[str, str]]) -> str:
    made = []
    for index, (kind, source) in enumerate(cells):
        text = textwrap.dedent(source).strip()
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        cell = make(text, id=f"cell-{index}")
        if kind == "parameters":
            cell.metadata["tags"] = ["parameters"]
        made.append(cell)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=made, metadata=kernel)))


def hashes(folder: Path) -> dict[str, str]:
    files = (file for part in ("gradleak", "notebooks", "book", "tests") for file in (folder / part).rglob("*"))
    made = ("__pycache__", "generated", "executed")
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not any(part in made for part in file.parts)
    }


# A sixth paper with one attack: six files beside its prose, none of which names another paper's.
ATTACK = '''
"""Recover the class of one sample as the made-up paper toy2027 does: from the bias's gradient."""

from __future__ import annotations

from gradleak.answers import Answer
from gradleak.cases import Attack, Case


def least_bias(case: Case) -> Answer:
    """Return the class whose entry of the bias's gradient is negative."""
    assert case.leak.bias_gradient is not None
    return Answer("counted", "the class whose bias would grow", classes={int(case.leak.bias_gradient.argmin())})


def refused(case: Case) -> str:
    """Return why the attack cannot be tried."""
    return "" if case.leak.batch_size == 1 and case.subject.bias_sent else "it needs one sample and a bias's gradient"


ATTACK = Attack(
    "least bias",
    page="least-bias",
    finds=("classes",),
    needs="the gradient of the last layer's bias, for one sample",
    refused=refused,
    run=least_bias,
    remedy="sending no gradient of the bias",
)
'''
ATTACK_TEST = """
import torch
from torch import nn

import gradleak


def test_the_class_is_found() -> None:
    report = gradleak.audit(nn.Linear(6, 4), torch.rand(8, 6), torch.arange(8) % 4, batch_sizes=(1,), minutes=60)
    assert [one.measures["classes"] for one in report.findings if one.attack == "least bias"] == [1.0]
"""
ATTACK_STUDY = '''
"""A class from one entry

toy2027, Table 2: how often the least entry of the bias's gradient is the sample's class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pandas as pd
import torch
from torch import nn

from gradleak import studies
from gradleak.leak import observe
from gradleak.runs.columns import Column, Columns
from gradleak.runs.records import Record
from gradleak.studies import Experiment, setting

PLACE = "Table 2"
COLUMNS = Columns(share=Column("share of samples whose class was found"))


class Samples(Experiment):
    """Random samples of an untrained layer, one at a time."""

    stays_on_cpu: ClassVar[str] = "one layer is small"

    samples: int

    def run(self) -> Iterator[dict[str, float]]:
        """Attack every sample."""
        torch.manual_seed(self.seed)
        layer, inputs, classes = nn.Linear(6, 4), torch.rand(self.samples, 6), torch.arange(self.samples) % 4
        leaks = [observe(layer, inputs[n : n + 1], classes[n : n + 1]) for n in range(self.samples)]
        found = torch.stack([leak.bias_gradient.argmin() for leak in leaks])
        yield {"share": float((found == classes).double().mean())}


class Parameters(studies.Parameters):
    """Parameters of the page: how many samples are attacked."""

    samples: int = setting(paper=200, smallest=2, ge=1)

    def experiments(self) -> Iterator[Samples]:
        """Give the one experiment."""
        yield Samples.of(self)

    def about(self) -> str:
        """Return how large the run is."""
        return f"{self.samples} samples"


def table(record: Record) -> pd.DataFrame:
    """Return the share of samples whose class was found."""
    return record.frame()
'''
ATTACK_CLAIMS = """
- id: least-bias-right
  paper: toy2027
  place: Table 2
  statement: The least entry of the gradient of the bias is the class of the sample
  study: least-bias
  measure: {column: share, reduce: only, format: ".2f"}
  published: 1.0
  rule: {at_least: 1.0}
  needs: {samples: 20}
  setting: any
"""
ATTACK_CELLS = [
    ("markdown", "# A class from one entry\n\n{cite:t}`toy2027` look at one number."),
    (
        "parameters",
        "samples: int = 20  # samples\ndevice: str = 'auto'  # auto, cpu or cuda\nseed: int = 2023  # every choice",
    ),
    (
        "code",
        """
        from gradleak import claims
        from gradleak.runs import runner
        from gradleak.studies.toy2027 import least_bias

        parameters = least_bias.Parameters(samples=samples, device=device, seed=seed)
        claims.verdicts(runner.run_study("least-bias", parameters))
        """,
    ),
]
PROSE = """# A class from one entry

{cite:t}`toy2027` find the class of one sample.

```{include} generated/pages-toy2027.md
```
"""
CONTENTS = """  - caption: A class from one entry (toy2027)
    chapters:
      - file: book/toy2027
        sections:
          - glob: book/executed/toy2027/*
  - caption: About the project
"""
REFERENCE = "@misc{toy2027,\n  author = {Toy, Ann},\n  title = {One Entry},\n  year = {2027}\n}\n"
# Where a line is added: the list of attacks, the contents, the references.
LINES = {
    "gradleak/catalogue.py": (
        ("ATTACKS: tuple[Attack, ...] = (\n", "ATTACKS: tuple[Attack, ...] = (\n    least_bias.ATTACK,\n"),
        ("import counting\n", "import counting, least_bias\n"),
    ),
    "book/_toc.yml": (("  - caption: About the project\n", CONTENTS),),
    "book/references.bib": (("@article{lecun1998,", f"{REFERENCE}@article{{lecun1998,"),),
}


@pytest.mark.slow
def test_a_paper_is_six_files_beside_its_prose(tmp_path: Path) -> None:
    # A folder with a space in its name, as a reader's might have.
    copy = tmp_path / "a copy"
    ignored = shutil.ignore_patterns("__pycache__", "executed", "generated")
    for part in ("gradleak", "notebooks", "book", "tests"):
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    shutil.copy(ROOT / "_config.yml", copy / "_config.yml")
    # What the pages about the project read.
    for part in ("benchmarks", "results"):
        shutil.copytree(ROOT / part, copy / part, ignore=ignored)
    # The other pages would take minutes here, and are built elsewhere.
    for file in [*copy.glob("gradleak/studies/*2*/[!_]*.py"), *copy.glob("gradleak/claims/*/*.yaml")]:
        file.unlink()
    for file in [*copy.glob("notebooks/*/*.ipynb"), *copy.glob("tests/studies/*/test_*.py")]:
        file.unlink()
    before = hashes(copy)
    paper = {
        "gradleak/labels/hard/least_bias.py": ATTACK.lstrip(),
        "tests/labels/hard/test_least_bias.py": ATTACK_TEST.lstrip(),
        "gradleak/studies/toy2027/least_bias.py": ATTACK_STUDY.lstrip(),
        "gradleak/claims/toy2027/least-bias.yaml": ATTACK_CLAIMS,
        "notebooks/toy2027/least-bias.ipynb": notebook(ATTACK_CELLS),
        "tests/studies/toy2027/test_least_bias.py": TEST,
    }
    assert len(paper) == 6
    added = paper | {"book/toy2027.md": PROSE}
    for name, text in added.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text)
    for name, pairs in LINES.items():
        text = (copy / name).read_text()
        for old, new in pairs:
            assert text.count(old) == 1
            text = text.replace(old, new)
        (copy / name).write_text(text)

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADLEAK")}
    environment |= {"PYTHONPATH": str(copy), "GRADLEAK_CACHE": str(tmp_path / "cache")}

    def gradleak(*words: str) -> str:
        command = [sys.executable, "-m", "gradleak", *words]
        result = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "least-bias" in gradleak("list")
    assert str(copy / "_build" / "html" / "index.html") in gradleak("book", "--jobs", "1")
    html = copy / "_build" / "html" / "book"
    assert "executed/toy2027/least-bias.html" in (html / "index.html").read_text(), "in the table of contents"
    statement = "The least entry of the gradient of the bias is the class of the sample"
    assert statement in (html / "executed" / "toy2027" / "least-bias.html").read_text()
    for name in ("scoreboard", "toy2027", "status"):
        assert "least-bias.html" in (html / f"{name}.html").read_text()
    assert statement in (html / "scoreboard.html").read_text()
    assert "reproduced" in gradleak("verify")
    assert "least bias" in (html / "api.html").read_text(), "among all attacks"
    test = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    subprocess.run([*test, "tests/labels/hard/test_least_bias.py"], cwd=copy, env=environment, check=True)
    after = hashes(copy)
    assert {name: after[name] for name in before if name not in LINES} == {
        name: value for name, value in before.items() if name not in LINES
    }
    assert set(after) - set(before) == set(added)
    # Nothing changed: the second book is there at once, and a page whose files are gone leaves it.
    assert "least-bias: unchanged" in gradleak("book")
