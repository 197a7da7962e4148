"""Pages: run once, their record beside them, silent about the machine; a failing one says where."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import nbformat
import pytest

from gradleak import claims
from gradleak.book import PATIENCE, pages
from gradleak.errors import GradleakError, GradleakWarning, InputError, StorageError
from gradleak.runs import recording, records, runner
from tests.checkout import RUN, Toy, forget
from tests.patience import wait_until

# The last message that a kernel gets before its end asks what it is.
CUT = '{"cells": ['
BUSY_AFTER_ITS_REPLY = """import time
kernel = get_ipython().kernel
reply = kernel.shell_handlers["kernel_info_request"]

async def reply_and_go_on(*message):
    await reply(*message)
    time.sleep(1)

kernel.shell_handlers["kernel_info_request"] = reply_and_go_on"""


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"cells": [', '{"cells": [], "metadata": {}}', "[" * 100_000]
)
def test_a_notebook_that_is_none_is_named(checkout: Toy, text: str) -> None:
    told = r"^notebooks/toy2020/toy\.ipynb is not a notebook, or was cut off$"
    known = checkout.parameters()
    checkout.notebook.write_text(text)
    with pytest.raises(InputError, match=told):
        pages.run_page(checkout.load(), known, checkout.root / "out", jobs=1)
    forget()
    with pytest.raises(InputError, match=told):
        checkout.parameters()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[" * 100_000])
def test_an_executed_page_that_is_none_is_executed_again(checkout: Toy, text: str) -> None:
    out = checkout.root / "out"
    out.mkdir()
    (out / "toy.ipynb").write_text(text)
    assert pages.finished(checkout.load(), "key", out) is None


def test_a_page_and_its_record(checkout: Toy) -> None:
    checkout.write_notebook(
        checkout.study_cell,
        "from gradleak import claims\nclaims.verdicts(record)",
        "import sys, os; print('scale', scale, sys.prefix, os.environ['GRADLEAK_ROOT'], os.getcwd())",
        "import warnings; warnings.warn('look', stacklevel=1)",
    )
    runner.run_study("toy", checkout.parameters(scale=2))
    checkout.kept()[0].write_bytes(b"")
    with pytest.warns(GradleakWarning, match="a cached trial of 'toy' is damaged"):
        run = pages.run_page(checkout.load(), checkout.parameters(scale=2), checkout.root / "o{u}t", jobs=1)
    assert len(checkout.traced) == 5
    assert "damaged" not in run.notebook.read_text(), "said to the person who waits, and not on the page"
    assert (run.notebook, run.record) == (checkout.root / "o{u}t" / "toy.ipynb", checkout.root / "o{u}t" / "toy.json")
    record = records.read(run.record)
    assert record.profile == "custom"
    assert record.parameters["scale"] == 2

    page = nbformat.read(run.notebook, 4)
    nbformat.validate(page)
    facts = page.metadata["gradleak"]
    assert set(facts) == {"study", "key", "seconds", "device", "versions", "date"}
    assert facts["key"] == pages.page_key(checkout.load(), checkout.parameters(scale=2))
    printed = "".join(output.get("text", "") for cell in page.cells for output in cell.get("outputs", ()))
    assert "scale 2.0 python . scratch" in printed
    assert "UserWarning: look" in printed
    (shown,) = [output.data for cell in page.cells for output in cell.get("outputs", ()) if "data" in output]
    assert ":name: tab-toy-verdicts" in shown["text/markdown"]
    assert "<table>" in shown["text/html"]
    text = run.notebook.read_text()
    for name in (str(checkout.root), str(Path.home()), sys.prefix, os.getcwd(), "papermill", "iopub"):
        assert name not in text

    def finished(**changes: float) -> pages.PageRun | None:
        key = pages.page_key(checkout.load(), checkout.parameters(**changes))
        return pages.finished(checkout.load(), key, checkout.root / "o{u}t")

    assert finished(scale=2) == run
    assert finished(scale=3) is None
    run.record.write_text("half a rec")
    assert finished(scale=2) is None


def test_page_key_changes_with_what_the_page_shows(checkout: Toy) -> None:
    study, parameters = checkout.load(), checkout.parameters()
    keys = [pages.page_key(study, parameters)]
    assert pages.page_key(study, parameters) == keys[0]
    keys.append(pages.page_key(study, checkout.parameters(seed=1)))
    tables = checkout.root / "gradleak" / "show" / "tables.py"
    other = checkout.module.with_stem("other")
    other.write_text("OTHER = 1\n")
    assert pages.page_key(study, parameters) == keys[0], "another page's code is no part of this page"
    other.unlink()
    for file in (checkout.module, tables, checkout.claims, checkout.notebook):
        file.write_text(file.read_text() + ("\nCHANGED = 1\n" if file.suffix == ".py" else "\n"))
        keys.append(pages.page_key(study, parameters))
    records.file_of("toy").parent.mkdir()
    records.file_of("toy").write_text("{}")
    keys.append(pages.page_key(study, parameters))
    assert len(set(keys)) == len(keys)


def test_a_failing_page_says_where_and_keeps_what_ran(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "2")
    with pytest.raises(GradleakError) as error:
        pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1)
    assert str(error.value).startswith("page 'toy' failed: ValueError: the toy broke (in a trial of 'toy': number=2")
    monkeypatch.delenv("TOY_FAILS")
    checkout.write_notebook(checkout.study_cell, "raise ValueError('no')")
    with pytest.raises(GradleakError) as error:
        pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1)
    assert str(error.value) == ("page 'toy' failed in cell 3: ValueError: no (the cells up to there are in toy.ipynb)")
    page = nbformat.read(checkout.root / "out" / "toy.ipynb", 4)
    assert any(output.output_type == "error" for cell in page.cells for output in cell.get("outputs", ()))
    assert not (checkout.root / "out" / "toy.json").exists()


def test_our_warnings_in_a_kernel_are_given_to_the_user(checkout: Toy) -> None:
    warn = "from gradleak import reporting; reporting.warn('look out'); reporting.warn('and here')"
    checkout.write_notebook(checkout.study_cell, warn, "import sys; print('plain', file=sys.stderr)")
    with pytest.warns(GradleakWarning) as caught:
        run = pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1)
    assert [str(one.message) for one in caught] == ["look out", "and here"]
    page = nbformat.read(run.notebook, 4)
    assert [output.text for cell in page.cells for output in cell.get("outputs", ())] == ["plain\n"]


def test_a_kernel_that_dies_is_named(checkout: Toy) -> None:
    checkout.write_notebook("import os; os._exit(1)")
    with pytest.raises(GradleakError, match="the kernel of page 'toy' died"):
        pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1)


def test_without_notebooks_it_says_what_to_install(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None if name == "papermill" else name)
    with pytest.raises(GradleakError, match=r"pip install 'gradleak\[book\]'"):
        pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out")


def test_an_interrupted_page_leaves_no_kernel(checkout: Toy) -> None:
    checkout.write_notebook(
        "import os, pathlib; pathlib.Path(os.environ['TOY_TRACE'] + ' kernel').write_text(str(os.getpid()))\n"
        "import threading; threading.Event().wait()"
    )
    process = checkout.start(RUN + "import pathlib; pages.run_page(s, studies.parameters(s), pathlib.Path('out'))")
    trace = checkout.root / "trace kernel"
    wait_until(lambda: process.poll() is not None or (trace.is_file() and trace.read_text()))
    kernel = trace.read_text()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    wait_until(lambda: not Path(f"/proc/{kernel}").exists())


def test_a_finished_kernel_is_not_interrupted(checkout: Toy, capfd: pytest.CaptureFixture[str]) -> None:
    checkout.write_notebook(checkout.study_cell, BUSY_AFTER_ITS_REPLY)
    pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1)
    assert capfd.readouterr() == ("", "")


def test_a_page_overwrites_neither_a_record_nor_another_notebook(checkout: Toy) -> None:
    recording.record(checkout.load(), checkout.parameters(), rules=claims.rules("toy"), jobs=1)
    source = checkout.load().notebook
    for file in (records.file_of("toy"), source):
        before = file.read_bytes()
        with pytest.raises(InputError, match=rf"^{file.name} in '{file.parent.name}' does not come from a run: "):
            pages.run_page(checkout.load(), checkout.parameters(), file.parent, jobs=1)
        assert file.read_bytes() == before


def test_a_page_into_a_file_is_one_clear_line(checkout: Toy) -> None:
    (checkout.root / "file").write_text("")
    with pytest.raises(StorageError, match=r"^cannot write toy.ipynb into the folder 'out': Not a directory$"):
        pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "file" / "out")
