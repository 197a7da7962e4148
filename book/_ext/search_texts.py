"""A Sphinx extension that writes the text of all pages into a script, from which the search page takes its excerpts.

A page that was opened from a file cannot fetch the pages that a search finds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

NAME = "searchtexts.js"
BEFORE, AFTER = "window.searchTexts = ", "\n"
SKIPPED = (nodes.math, nodes.math_block, nodes.raw, nodes.comment, nodes.Invisible)

# Parts of the signature of a function.
PARTS = (addnodes.desc_name, addnodes.desc_parameter, addnodes.desc_signature)


class Words(nodes.GenericNodeVisitor):
    """Collects the text of a document, without formulas and the input of code cells."""

    def __init__(self, document: nodes.document) -> None:
        super().__init__(document)
        self.parts: list[str] = []

    def default_visit(self, node: nodes.Node) -> None:
        """Keep a text, and skip what is no text."""
        if isinstance(node, SKIPPED) or (isinstance(node, nodes.Element) and "cell_input" in node.get("classes", ())):
            raise nodes.SkipNode
        if isinstance(node, nodes.Text):
            self.parts.append(node.astext())

    def default_departure(self, node: nodes.Node) -> None:
        """Part the text of a block from the next."""
        if isinstance(node, PARTS) or not isinstance(node, nodes.Text | nodes.Inline):
            self.parts.append(" ")

    unknown_visit, unknown_departure = default_visit, default_departure


def _text(document: nodes.document) -> str:
    words = Words(document)
    document.walkabout(words)
    return " ".join("".join(words.parts).split())


def setup(app: Sphinx) -> dict[str, Any]:
    """Collect the texts of pages as they are written; the search page comes last, and loads them."""
    texts: dict[str, str] = {}

    def page(app: Sphinx, name: str, template: str, context: dict[str, Any], document: nodes.document | None) -> None:
        if document is not None:
            texts[name] = _text(document)
        if name != "search":
            return
        # Pages that have not changed are not written again.
        file = Path(app.outdir) / "_static" / NAME
        known = json.loads(file.read_text("utf-8")[len(BEFORE) :]) if file.is_file() else {}
        every = {one: text for one, text in sorted((known | texts).items()) if one in app.env.found_docs}
        file.write_text(BEFORE + json.dumps(every, ensure_ascii=False) + AFTER, "utf-8")
        app.add_js_file(NAME)
        app.add_js_file("search.js")

    app.connect("html-page-context", page)
    return {"parallel_read_safe": True}
