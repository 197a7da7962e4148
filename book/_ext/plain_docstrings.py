"""A Sphinx extension that reads our docstrings as they are written: `names` between backticks, formulas indented.

Sections such as `Args:`, `Returns:` and `Attributes:` are left to Sphinx's napoleon extension. What follows the first
sentence of a function or a class is folded, so that a reader sees a list.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc, desc_content
from sphinx.application import Sphinx

SECTIONS = ("Args:", "Attributes:", "Examples:", "Raises:", "Returns:", "Yields:")
# Before napoleon, which listens with the usual priority of 500.
EARLY = 400


def _marked(line: str) -> str:
    """Return a line as reStructuredText: text between backticks as code, the rest as plain text."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(f"`{part}`" if part[:1] == "`" else re.sub(r"([\\*|_])", r"\\\1", part) for part in parts)


def _section(lines: list[str]) -> list[str]:
    """Return a section, whose heading is its first line; field names and examples stay as they are."""
    if lines[0] == "Examples:":
        return lines
    marked = []
    for line in lines[1:]:
        name, colon, text = line.partition(": ")
        field = bool(colon) and name.strip().isidentifier() and lines[0] != "Returns:"
        marked.append(f"{name}: {_marked(text)}" if field else _marked(line))
    return [lines[0], *marked]


def read(lines: list[str]) -> list[str]:
    """Return a docstring's lines as reStructuredText, its sections in the form that napoleon reads."""
    found: list[str] = []
    for blank, group in groupby(lines, key=lambda line: not line.strip()):
        block = list(group)
        if blank or block[0].lstrip().startswith(">>>"):
            found += block
        elif block[0] in SECTIONS:
            found += _section(block)
        elif block[0].startswith(" ") and any(line in SECTIONS for line in found):
            found += [_marked(line) for line in block]  # a further paragraph of a section
        elif block[0].startswith(" "):
            found += ["::", "", *(f"    {line}" for line in block)]  # a formula or a table
        else:
            found += [_marked(line) for line in block]
    return found


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = read(lines)


def fold(app: Sphinx, tree: nodes.document, name: str) -> None:
    """Fold what follows the first paragraph of every description in a page; methods stay where they are."""
    for content in tree.findall(desc_content):
        rest = [child for child in content.children[1:] if not isinstance(child, desc)]
        if rest:
            start, end = "<details><summary>arguments, examples and more</summary>", "</details>"
            content.insert(content.index(rest[0]), nodes.raw("", start, format="html"))
            content.insert(content.index(rest[-1]) + 1, nodes.raw("", end, format="html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to autodoc, before napoleon, and to finished pages."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("autodoc-process-docstring", _process, priority=EARLY)
    app.connect("doctree-resolved", fold)
    return {"parallel_read_safe": True}
