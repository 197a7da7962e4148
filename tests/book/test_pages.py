"""Pages: run once, their record and their HTML beside them, silent about the machine; a failing one says where."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from gradleak import claims
from gradleak.book import pages, rerun
from gradleak.errors import GradleakError, GradleakWarning, InputError, StorageError
from gradleak.runs import recording, records, runner
from tests.checkout import CLAIMS, Toy, forget

MORE = """
- id: toy-ours
  place: Table 1
  statement: Numbers are few
  measure: {where: {word: a}, column: value, reduce: sum}
  rule: {at_most: 3}
  needs: {samples: 4}
  ours: prediction
"""
TEXT = "# A toy\n\nSee {eq}`eq-one`, {cite:t}`wang2024` and {doc}`the next page <noise>`.\n\n$$ a $$ (eq-one)"
FIGURE = """import matplotlib.pyplot as plt
figure, axis = plt.subplots(figsize=(1, 1))
axis.plot([0, len(shown.trials)]);"""
CELLS = (
    "from gradleak import claims\nfrom gradleak.show import provenance\nshown = provenance.shown(record)",
    "claims.verdicts(record)",
    "import sys, os; print('scale', scale, sys.prefix, os.environ['GRADLEAK_ROOT'], os.getcwd())",
    "print('loaded before', 'torchvision' in sys.modules)",
    "import warnings; warnings.warn('look', stacklevel=1)",
    "from gradleak import reporting; reporting.warn('look out')",
)
STATIC = {
    "book/_static/some.css": ".gradleak > b { color: red }",
    "book/_static/some.js": "const some = 1 && 2",
    "_config.yml": "sphinx: {config: {html_css_files: [some.css], html_js_files: [some.js]}}",
}


def run(checkout: Toy, out: str = "out", **changes: Any) -> pages.PageRun:
    return pages.run_page(checkout.load(), checkout.parameters(**changes), checkout.root / out, jobs=1)


@pytest.mark.parametrize("text", ["", "{}", "null", '{"cells": [', '{"cells": [], "metadata": {}}', "[" * 100_000])
def test_a_damaged_notebook_is_named_and_a_damaged_page_runs_again(checkout: Toy, text: str) -> None:
    message = r"^notebooks/toy2020/toy\.ipynb is not a notebook, or was cut off$"
    out = checkout.root / "out"
    out.mkdir()
    (out / "toy.ipynb").write_text(text)
    assert pages.finished(checkout.load(), "key", out) is None
    known = checkout.parameters()
    checkout.notebook.write_text(text)
    with pytest.raises(InputError, match=message):
        pages.run_page(checkout.load(), known, out, jobs=1)
    forget()
    with pytest.raises(InputError, match=message):
        checkout.parameters()


def test_a_page_its_record_and_its_html_without_the_network(checkout: Toy) -> None:
    (checkout.root / "book" / "_static").mkdir()
    for name, text in STATIC.items():
        (checkout.root / name).write_text(text)
    checkout.write_notebook(checkout.study_cell, *CELLS, FIGURE)
    page = nbformat.read(checkout.notebook, 4)
    page.cells.insert(0, nbformat.v4.new_markdown_cell(TEXT))
    page.cells[-1].metadata["tags"] = ["hide-input"]
    nbformat.write(page, checkout.notebook)
    changes = {"samples": 3, "scale": 2}
    runner.run_study("toy", checkout.parameters(**changes))
    checkout.kept()[0].write_bytes(b"")
    with pytest.warns(GradleakWarning) as caught:
        made = run(checkout, "o{u}t", **changes)
    assert [str(one.message)[:33] for one in caught] == ["a cached trial of 'toy' is damage", "look out"]
    assert len(checkout.traced) == 4
    assert (made.notebook, made.record) == (checkout.root / "o{u}t" / "toy.ipynb", checkout.root / "o{u}t" / "toy.json")
    record = records.read(made.record)
    assert (record.profile, record.parameters["scale"]) == ("custom", 2)

    page = nbformat.read(made.notebook, 4)
    nbformat.validate(page)
    assert set(page.metadata["gradleak"]) == {"study", "key", "seconds"}
    outputs = [output for cell in page.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "scale 2.0 python . scratch" in printed
    assert f"loaded before {sys.platform == 'linux'}" in printed, "the kernel was forked"
    assert "UserWarning: look\n" in printed
    assert "look out" not in printed, "our own warnings are given to the user"
    table, figure = [output.data for output in outputs if "data" in output]
    assert ":name: tab-toy-verdicts" in table["text/markdown"]
    assert "image/png" in figure
    for word in (str(checkout.root), str(Path.home()), sys.prefix, os.getcwd(), "papermill", "iopub", "damaged"):
        assert word not in made.notebook.read_text()

    study, parameters = checkout.load(), checkout.parameters(**changes)
    assert pages.finished(study, pages.page_key(study, parameters), made.notebook.parent) == made
    assert pages.finished(study, "another key", made.notebook.parent) is None
    made.record.write_text("half a rec")
    assert pages.finished(study, pages.page_key(study, parameters), made.notebook.parent) is None

    file = rerun.write(*rerun.summary(study, record), made.notebook)
    executed = nbformat.read(made.notebook, 4)
    nbformat.validate(executed)
    assert "Changed parameters: samples = 3" in executed.cells[0].source
    assert file == made.notebook.with_suffix(".html")
    text = file.read_text()
    for part in (
        'src="data:image/png;base64,', rerun.NOT_JUDGED[:40], "wang2024 and the next page", "MathJax = ",
        r"\begin{equation}\label{eq-one} a \end{equation}", r"$\eqref{eq-one}$", *list(STATIC.values())[:2],
    ):  # fmt: skip
        assert part in text
    assert "plt.subplots" not in text, "code with the tag hide-input"
    assert not re.search(r'<(script|link|img)[^>]* (src|href)="http', text)


def test_a_run_says_of_each_claim_in_words_what_it_found(checkout: Toy) -> None:
    checkout.claims.write_text(CLAIMS + MORE)
    (few, unjudged), (rows, sentences) = (
        rerun.summary(checkout.load(), runner.run_study("toy", checkout.parameters(samples=samples)))
        for samples in (3, 4)
    )
    assert [row["verdict of this run"] for row in few] == ["disagrees, not judged", "agrees, not judged"]
    assert rerun.NOT_JUDGED in unjudged
    assert [row["verdict of this run"] for row in rows] == ["holds", "fails"]
    assert rows[-1]["claim"] == "Numbers are few", "the papers' claims come first"
    made = runner.run_study("toy", checkout.parameters())
    assert rerun.numbers(checkout.load(), made) == [[{"word": word, "value, sum": "6"} for word in ("a", "b")]]
    folders = {rerun.folder_of(checkout.load(), checkout.parameters(samples=samples)) for samples in (2, 3, 4)}
    assert "toy" in folders
    assert len(folders) == 3, "each set of parameters has a folder of its own"
    assert sentences[:2] == ["1 claim of the paper: 1 'holds'.", "1 claim of our own: 1 'fails'."]


def test_page_key_changes_with_what_the_page_shows(checkout: Toy) -> None:
    study, parameters = checkout.load(), checkout.parameters()
    keys = [pages.page_key(study, parameters), pages.page_key(study, checkout.parameters(seed=1))]
    checkout.module.with_stem("other").write_text("OTHER = 1\n")
    assert pages.page_key(study, parameters) == keys[0], "another page's code is no part of this page"
    checkout.module.with_stem("other").unlink()
    for file in (checkout.module, checkout.root / "gradleak/show/tables.py", checkout.claims, checkout.notebook):
        file.write_text(file.read_text() + ("\nCHANGED = 1\n" if file.suffix == ".py" else "\n"))
        keys.append(pages.page_key(study, parameters))
    records.file_of("toy").parent.mkdir()
    records.file_of("toy").write_text("{}")
    keys.append(pages.page_key(study, parameters))
    assert len(set(keys)) == len(keys)


def test_a_failing_page_says_where_and_keeps_what_ran(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "2")
    with pytest.raises(GradleakError, match=r"^page 'toy' failed: ValueError: the toy broke \(in a trial .*number=2"):
        run(checkout)
    monkeypatch.delenv("TOY_FAILS")
    checkout.write_notebook(checkout.study_cell, "raise ValueError('no')")
    message = r"^page 'toy' failed in cell 3: ValueError: no \(the cells up to there are in toy.ipynb\)$"
    with pytest.raises(GradleakError, match=message):
        run(checkout)
    assert nbformat.read(checkout.root / "out" / "toy.ipynb", 4).cells[-1].outputs[-1].output_type == "error"
    assert not (checkout.root / "out" / "toy.json").exists()
    checkout.write_notebook("import os; os._exit(1)")
    with pytest.raises(GradleakError, match="the kernel of page 'toy' died"):
        run(checkout)
    monkeypatch.setattr(pages, "find_spec", lambda name: None if name == "papermill" else name)
    with pytest.raises(GradleakError, match=r"pip install 'gradleak\[book\]'"):
        run(checkout)


def test_a_page_overwrites_neither_a_record_nor_another_notebook(checkout: Toy) -> None:
    recording.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    for file in (records.file_of("toy"), checkout.notebook):
        before = file.read_bytes()
        with pytest.raises(InputError, match=rf"^{file.name} in '{file.parent.name}' does not come from a run: "):
            pages.run_page(checkout.load(), checkout.parameters(), file.parent, jobs=1)
        assert file.read_bytes() == before
    (checkout.root / "file").write_text("")
    with pytest.raises(StorageError, match=r"^cannot write files into the folder 'out': Not a directory$"):
        run(checkout, "file/out")
