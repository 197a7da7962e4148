"""A sixth paper with one attack and one page is six files beside its prose; the page is four of them.

They are added to a copy of the checkout, and show up everywhere; nothing else is touched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.checkout import CLAIMS, PARAMETERS, STUDY, STUDY_CELL

ROOT = Path(__file__).parents[2]
ATTACK = '''"""Recover the class of one sample as the made-up paper toy2020 does: from the bias's gradient."""

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
    page="toy",
    finds=("classes",),
    needs="the gradient of the last layer's bias, for one sample",
    refused=refused,
    run=least_bias,
    remedy="sending no gradient of the bias",
)
'''
ATTACK_TEST = """import torch
from torch import nn

import gradleak


def test_the_class_is_found() -> None:
    report = gradleak.audit(nn.Linear(6, 4), torch.rand(8, 6), torch.arange(8) % 4, batch_sizes=(1,), minutes=60)
    assert [one.measures["classes"] for one in report.findings if one.attack == "least bias"] == [1.0]
"""
PROSE = """# A class from one entry

{cite:t}`toy2020` find the class of one sample.

```{include} generated/pages-toy2020.md
```
"""
CONTENTS = """  - caption: A class from one entry (toy2020)
    chapters:
      - file: book/toy2020
        sections:
          - glob: book/executed/toy2020/*
  - caption: About the project
"""
REFERENCE = "@misc{toy2020,\n  author = {Toy, Ann},\n  title = {One Entry},\n  year = {2020}\n}\n"
# Where a line is added: the list of attacks, the contents, the references.
LINES = {
    "gradleak/catalogue.py": (
        ("ATTACKS: tuple[Attack, ...] = (\n", "ATTACKS: tuple[Attack, ...] = (\n    least_bias.ATTACK,\n"),
        ("import counting\n", "import counting, least_bias\n"),
    ),
    "book/_toc.yml": (("  - caption: About the project\n", CONTENTS),),
    "book/references.bib": (("@article{lecun1998,", f"{REFERENCE}@article{{lecun1998,"),),
}


def notebook() -> str:
    """Return the page: a title, the parameters, the run and the verdicts."""
    parameters = nbformat.v4.new_code_cell(PARAMETERS, id="parameters", metadata={"tags": ["parameters"]})
    title = nbformat.v4.new_markdown_cell(
        "# A toy: draws and their sum\n\n{cite:t}`toy2020` look at one number.", id="a"
    )
    run = nbformat.v4.new_code_cell(f"{STUDY_CELL}\nfrom gradleak import claims\nclaims.verdicts(record)", id="run")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=[title, parameters, run], metadata=kernel)))


def hashes(folder: Path) -> dict[str, str]:
    files = (file for part in ("gradleak", "notebooks", "book", "tests") for file in (folder / part).rglob("*"))
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not {"__pycache__", "generated", "executed"} & set(file.parts)
    }


@pytest.mark.slow
def test_a_paper_is_six_files_beside_its_prose(tmp_path: Path) -> None:
    # A folder with a space in its name, as a reader's might have.
    copy = tmp_path / "a copy"
    for part in ("gradleak", "notebooks", "book", "tests", "benchmarks", "results"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "executed", "generated"))
    shutil.copy(ROOT / "_config.yml", copy / "_config.yml")
    # The other pages would take minutes here, and are built elsewhere.
    pages = ("gradleak/studies/*2*/[!_]*.py", "gradleak/claims/*/*.yaml", "notebooks/*/*.ipynb")
    for file in [file for pattern in (*pages, "tests/studies/*/test_*.py") for file in copy.glob(pattern)]:
        file.unlink()
    before = hashes(copy)
    added = {
        "gradleak/labels/hard/least_bias.py": ATTACK,
        "tests/labels/hard/test_least_bias.py": ATTACK_TEST,
        "gradleak/studies/toy2020/toy.py": STUDY,
        "gradleak/claims/toy2020/toy.yaml": CLAIMS,
        "notebooks/toy2020/toy.ipynb": notebook(),
        "tests/studies/toy2020/test_toy.py": "",
        "book/toy2020.md": PROSE,
    }
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

    def python(*words: str) -> str:
        command = [sys.executable, "-m", *words]
        result = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "toy" in python("gradleak", "list")
    assert str(copy / "_build" / "html" / "index.html") in python("gradleak", "book", "--jobs", "1")
    html = copy / "_build" / "html" / "book"
    statement = "The sum of the numbers is six"
    for name, words in {
        "index": "executed/toy2020/toy.html",
        "executed/toy2020/toy": statement,
        "scoreboard": statement,
        "toy2020": "toy.html",
        "architecture": "toy.html",
        "api": "least bias",
    }.items():
        assert words in (html / f"{name}.html").read_text()
    assert "reproduced" in python("gradleak", "verify")
    python("pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/labels/hard/test_least_bias.py")
    after = hashes(copy)
    assert {name: after[name] for name in before if name not in LINES} == {
        name: value for name, value in before.items() if name not in LINES
    }
    assert set(after) - set(before) == set(added)
    # Nothing changed: the second book is there at once, and a page whose files are gone leaves it.
    assert "toy: unchanged" in python("gradleak", "book")
