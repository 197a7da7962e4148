"""What a page computes in the open runs on a machine with a GPU.

A page's open cells stand before its study and work on one sample or a few: they run on the CPU, where such work is
over before a GPU has begun, and go to the GPU only where a cell asks for the page's `device`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import warnings
from typing import Any

import pytest

from gradleak import studies
from tests.pretended import NAME, pretended_gpu


def opened(name: str) -> list[str]:
    """Return a page's parameters and the code cells before its study."""
    cells = json.loads(studies.load(name).notebook.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    study = next(place for place, text in enumerate(texts) if "run_study(" in text)
    return texts[:study]


@pytest.mark.parametrize("name", studies.names())
def test_a_pages_open_cells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "resolve_device", lambda device: "cpu" if device == "cpu" else NAME)
    page: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with pretended_gpu(), contextlib.redirect_stdout(printed), warnings.catch_warnings():
        for text in opened(name):
            exec(compile(ast.parse(text), name, "exec"), page)
    assert page["device"] == "auto"
