"""Pages: run once, their record beside them, silent about the machine; a failing one says where."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from gradleak import claims
from gradleak.book import pages
from gradleak.errors import GradleakError, GradleakWarning, InputError, StorageError
from gradleak.runs import recording, records, runner
from tests.checkout import Toy, forget


def run(checkout: Toy, out: str = "out", **changes: Any) -> pages.PageRun:
    return pages.run_page(checkout.load(), checkout.parameters(**changes), checkout.root / out, jobs=1)


def outputs(notebook: Path) -> list[Any]:
    return [output for cell in nbformat.read(notebook, 4).cells for output in cell.get("outputs", ())]


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


def test_a_page_and_its_record(checkout: Toy) -> None:
    checkout.write_notebook(
        checkout.study_cell,
        "from gradleak import claims\nclaims.verdicts(record)",
        "import sys, os; print('scale', scale, sys.prefix, os.environ['GRADLEAK_ROOT'], os.getcwd())",
        "import warnings; warnings.warn('look', stacklevel=1)",
        "from gradleak import reporting; reporting.warn('look out')",
    )
    runner.run_study("toy", checkout.parameters(scale=2))
    checkout.kept()[0].write_bytes(b"")
    with pytest.warns(GradleakWarning) as caught:
        made = run(checkout, "o{u}t", scale=2)
    assert [str(one.message)[:33] for one in caught] == ["a cached trial of 'toy' is damage", "look out"]
    assert len(checkout.traced) == 5
    assert (made.notebook, made.record) == (checkout.root / "o{u}t" / "toy.ipynb", checkout.root / "o{u}t" / "toy.json")
    record = records.read(made.record)
    assert (record.profile, record.parameters["scale"]) == ("custom", 2)

    page = nbformat.read(made.notebook, 4)
    nbformat.validate(page)
    assert set(page.metadata["gradleak"]) == {"study", "key", "seconds", "device", "versions", "date"}
    printed = "".join(output.get("text", "") for output in outputs(made.notebook))
    assert "scale 2.0 python . scratch" in printed
    assert "UserWarning: look\n" in printed
    assert "look out" not in printed, "our own warnings are given to the user"
    (shown,) = [output.data for output in outputs(made.notebook) if "data" in output]
    assert ":name: tab-toy-verdicts" in shown["text/markdown"]
    for word in (str(checkout.root), str(Path.home()), sys.prefix, os.getcwd(), "papermill", "iopub", "damaged"):
        assert word not in made.notebook.read_text()

    key = pages.page_key(checkout.load(), checkout.parameters(scale=2))
    assert pages.finished(checkout.load(), key, made.notebook.parent) == made
    assert pages.finished(checkout.load(), "another key", made.notebook.parent) is None
    made.record.write_text("half a rec")
    assert pages.finished(checkout.load(), key, made.notebook.parent) is None


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
    assert any(output.output_type == "error" for output in outputs(checkout.root / "out" / "toy.ipynb"))
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
