"""The pages about the project are notebooks that show what their files say."""

from __future__ import annotations

import json
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from gradleak import paths

RESULTS = json.loads((paths.root() / "benchmarks" / "results.json").read_text("utf-8"))
CHECK = json.loads((paths.root() / "benchmarks" / "gpu-check.json").read_text("utf-8"))
# What a page must say, its number of tables, and its number of figures.
PAGES: dict[str, tuple[list[str], int, int]] = {
    "performance": (
        [
            f"torch {RESULTS['versions']['torch']}",
            f"takes {RESULTS['alone']['ms']:.2g} ms at ten classes",
            f"costs {RESULTS['matching'][0]['times a training step']:.2g} times a step of training",
            f"{sum(not one['trouble'] for one in CHECK['tries'])} of {len(CHECK['tries'])} parts ran without trouble",
            f"- `{RESULTS['starts'][0]['what']}`: {RESULTS['starts'][0]['seconds']:.2g} s",
        ],
        6,
        2,
    ),
    "clusters": ([f"1 worker took {RESULTS['scaling'][0]['seconds']:.1f} s", "| 100 workers |"], 1, 1),
    "architecture": ([], 0, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_files_say(name: str) -> None:
    notebook = nbformat.read(paths.book() / f"{name}.ipynb", 4)
    assert notebook.metadata["mystnb"]["execution_mode"] == "force", "jupyter-book executes it"
    NotebookClient(notebook, resources={"metadata": {"path": str(paths.book())}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output["output_type"] == "stream"] == []
    text = "\n".join(output["data"].get("text/markdown", "") for output in outputs)
    words, tables, pictures = PAGES[name]
    for word in words:
        assert word in text
    assert text.count("{table}") == tables
    assert sum("image/png" in output["data"] for output in outputs) == pictures
