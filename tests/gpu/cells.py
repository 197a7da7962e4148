"""The open cells of a page: its parameters and the code cells that work on a sample or a few, without the study."""

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
    """Return a page's parameters, its imports, and the code cells that use nothing of the study's run."""
    cells = json.loads(studies.load(name).notebook.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    kept: list[str] = []
    made: set[str] = set()  # variables that only a run of the study gives
    for text in texts:
        tree = ast.parse(text)
        if "run_study(" in text or made & {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
            # A later open cell may use what such a cell imports. IPython only shows results and may not be installed.
            imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            imports = [node for node in imports if "IPython" not in ast.unparse(node)]
            kept += ["\n".join(map(ast.unparse, imports))] if imports else []
            made |= _assigned(tree)
        else:
            kept.append(text)
    return kept


def _assigned(tree: ast.Module) -> set[str]:
    """Return the variables that a cell assigns."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def run(name: str, device: str) -> dict[str, Any]:
    """Run a page's open cells on a machine whose GPU is `device`, and return the page's variables."""
    page: dict[str, Any] = {"__name__": "__main__"}
    there = mock.patch.object(experiments, "resolve_device", lambda asked: "cpu" if asked == "cpu" else device)
    with there, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        for text in opened(name):
            exec(compile(ast.parse(text), name, "exec"), page)
    return page
