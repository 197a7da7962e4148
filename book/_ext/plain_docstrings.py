"""A Sphinx extension that reads our docstrings as they are written: `names` between backticks, formulas indented."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx


def _marked(line: str) -> str:
    """Return a line as reStructuredText: what stands between backticks as code, all else as plain text."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(f"`{part}`" if part[:1] == "`" else re.sub(r"([\\*|_])", r"\\\1", part) for part in parts)


def read(lines: list[str]) -> list[str]:
    """Return a docstring's lines as reStructuredText."""
    found: list[str] = []
    for blank, group in groupby(lines, key=lambda line: not line.strip()):
        own = list(group)
        if blank:
            found += own
        elif own[0].startswith(" "):
            # A block of its own: a formula, a table.
            found += ["::", "", *(f"    {line}" for line in own)]
        else:
            found += [_marked(line) for line in own]
    return found


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = read(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
