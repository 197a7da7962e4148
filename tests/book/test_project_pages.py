"""The pages about the project are notebooks that show what their files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from gradleak import paths

RESULTS = json.loads((paths.root() / "benchmarks" / "results.json").read_text("utf-8"))
CHECK = json.loads((paths.root() / "benchmarks" / "gpu-check.json").read_text("utf-8"))
ROUNDING = json.loads((paths.results() / "rounding.json").read_text("utf-8"))
STATUS = {
    "page": "toy", "record": "current", "file": "JSON", "date": "2026-01-02", "trials": "1,234",
    "time of all trials": "2 min", "quick run": "3 s",
    "at": "doc:executed/toy2020/toy", "record at": "bookfile:records/toy2020/toy.json",
}  # fmt: skip
# The texts that a page must contain, the number of its tables, and the number of its figures.
PAGES: dict[str, tuple[list[str], int, int]] = {
    "performance": (
        [
            f"torch {RESULTS['versions']['torch']}",
            f"takes {RESULTS['alone']['ms']:.2g} ms at ten classes",
            f"costs {RESULTS['matching'][0]['times a training step']:.2g} times a step of training",
            f"{sum(not one['trouble'] for one in CHECK['tries'])} of {len(CHECK['tries'])} parts ran without trouble",
            f"- `{RESULTS['starts'][0]['what']}`: {RESULTS['starts'][0]['seconds']:.2g} s",
            f"1 worker took {RESULTS['scaling'][0]['seconds']:.1f} s",
            "| 100 workers |",
        ],
        5,
        3,
    ),
    "architecture": (
        [
            "| {doc}`toy <executed/toy2020/toy>` | [current]{.badge .badge-current} | "
            "{bookfile}`JSON <records/toy2020/toy.json>` | 2026-01-02 | 1,234 | 2 min | 3 s |",
            "| verdicts that change |",
            ROUNDING["runs"][0]["machine"],
        ],
        2,
        1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_files_say(name: str, tmp_path: Path) -> None:
    for folder in ("benchmarks", "results"):
        (tmp_path / folder).symlink_to(paths.root() / folder)
    (tmp_path / "book" / "generated").mkdir(parents=True)
    (tmp_path / "book" / "generated" / "status.json").write_text(json.dumps([STATUS]))
    notebook = nbformat.read(paths.book() / f"{name}.ipynb", 4)
    assert notebook.metadata["mystnb"]["execution_mode"] == "force", "jupyter-book executes it"
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path / "book")}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output["output_type"] == "stream"] == []
    text = "\n".join(output["data"].get("text/markdown", "") for output in outputs)
    words, tables, pictures = PAGES[name]
    for word in words:
        assert word in text
    assert text.count("{table}") == tables
    assert sum("image/png" in output["data"] for output in outputs) == pictures
