"""The open cells of a page: its parameters and the code cells before its study."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import warnings
from typing import Any
from unittest import mock

from gradleak import studies
from gradleak.runs import experiments


def opened(name: str) -> list[str]:
    """Return a page's parameters and the code cells before its study."""
    cells = json.loads(studies.load(name).notebook.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    study = next(place for place, text in enumerate(texts) if "run_study(" in text)
    return texts[:study]


def run(name: str, device: str) -> dict[str, Any]:
    """Run a page's open cells on a machine whose GPU is `device`, and return the page's variables."""
    page: dict[str, Any] = {"__name__": "__main__"}
    there = mock.patch.object(experiments, "resolve_device", lambda asked: "cpu" if asked == "cpu" else device)
    with there, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        for text in opened(name):
            exec(compile(ast.parse(text), name, "exec"), page)
    return page


def may_use_a_gpu(name: str) -> bool:
    """Whether a page's open cells could work on a GPU: they use the page's `device`, name one, or call a study.

    Elsewhere in the package a function works where its tensors are, and these come from the CPU.
    """
    nodes = [node for text in opened(name) for node in ast.walk(ast.parse(text))]
    asked = any(isinstance(node, ast.Name) and node.id == "device" and isinstance(node.ctx, ast.Load) for node in nodes)
    named = any(isinstance(node, ast.Constant) and "cuda" in str(node.value) for node in nodes)
    moved = any(isinstance(node, ast.Attribute) and node.attr == "cuda" for node in nodes)
    modules = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    names = [one.name for node in nodes if isinstance(node, ast.ImportFrom | ast.Import) for one in node.names]
    return asked or named or moved or any("studies" in one for one in modules + names)
