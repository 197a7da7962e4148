"""A sixth paper with one attack and one page is six files beside its prose; the page is four of them.

They are added to a copy of the checkout, and show up everywhere.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest

from gradleak.book import build
from tests.checkout import STUDY_CELL, Toy

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
# The page audits a model with the new attack.
AUDIT = """import torch
import gradleak
report = gradleak.audit(torch.nn.Linear(6, 4), torch.rand(8, 6), torch.arange(8) % 4, batch_sizes=(1,), minutes=60)
assert [one.measures["classes"] for one in report.findings if one.attack == "least bias"] == [1.0]"""
TITLE = "# A toy: draws and their sum\n\n{cite:t}`toy2020` look at one number."
PROSE = """# A class from one entry

{cite:t}`toy2020` find the class of one sample.

```{include} generated/pages-toy2020.md
```
"""
# What is added to the list of attacks, the contents and the references, in place of what.
HEADING, LAST = "ATTACKS: tuple[Attack, ...] = (\n", "  - caption: About the project\n"
CONTENTS = f"""  - caption: A class from one entry (toy2020)
    chapters:
      - file: book/toy2020
        sections:
          - glob: book/executed/toy2020/*
{LAST}"""
REFERENCE = "@misc{toy2020, author = {Toy, Ann}, title = {One Entry}, year = {2020}}\n"
LINES = [
    ("gradleak/catalogue.py", HEADING, f"{HEADING}    least_bias.ATTACK,\n"),
    ("gradleak/catalogue.py", "import counting\n", "import counting, least_bias\n"),
    ("book/_toc.yml", LAST, CONTENTS),
    ("book/references.bib", "@article{lecun1998,", f"{REFERENCE}@article{{lecun1998,"),
]
# Pages that have nothing of a single paper, and whose code takes its time.
OTHERS = ("start", "attacks", "explorer", "performance")


def write_page(file: Path, *cells: nbformat.NotebookNode) -> None:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells), metadata=kernel), file)


@pytest.mark.slow
def test_a_paper_is_six_files_beside_its_prose(checkout: Toy) -> None:
    # The copy has the page's study, claims and parameters already, and no other page.
    copy, text = checkout.root, nbformat.v4.new_markdown_cell
    shutil.rmtree(copy / "book")
    for part in ("book", "results"):
        ignored = shutil.ignore_patterns("executed", "generated", "*2*")
        shutil.copytree(ROOT / part, copy / part, ignore=ignored, dirs_exist_ok=True)
    shutil.copy(ROOT / "_config.yml", copy)
    for paper in build.papers():
        shutil.copy(ROOT / "book" / f"{paper}.md", copy / "book")
    for name in OTHERS:
        write_page(copy / "book" / f"{name}.ipynb", text(f"# {name}"))
    checkout.write_notebook(STUDY_CELL, AUDIT, "from gradleak import claims\nclaims.verdicts(record)")
    write_page(checkout.notebook, text(TITLE), *nbformat.read(checkout.notebook, 4).cells)
    (copy / "gradleak/labels/hard/least_bias.py").write_text(ATTACK)
    (copy / "book/toy2020.md").write_text(PROSE)
    for name, old, new in LINES:
        before = (copy / name).read_text()
        assert before.count(old) == 1
        (copy / name).write_text(before.replace(old, new))
    checkout.python("from gradleak.book import build; build.build(jobs=1)")
    statement = "The sum of the numbers is six"
    for name, words in {
        "index": "executed/toy2020/toy.html",
        "executed/toy2020/toy": statement,
        "scoreboard": statement,
        "toy2020": "toy.html",
        "architecture": "toy.html",
        "api": "least bias",
    }.items():
        assert words in (copy / "_build" / "html" / "book" / f"{name}.html").read_text()
