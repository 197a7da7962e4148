"""A Sphinx extension with a role for pages of the book by their bare name: {page}`noise`."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole
from sphinx.util.nodes import make_refnode


class Page(SphinxRole):
    """A link to the page of this name; its name alone where the book is built without it."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the link."""
        name = nodes.literal(self.text, self.text)
        there = [page for page in self.env.found_docs if "/executed/" in page and page.rpartition("/")[2] == self.text]
        if not there:
            return [name], []
        return [make_refnode(self.env.app.builder, self.env.docname, there[0], "", name)], []


def setup(app: Sphinx) -> dict[str, Any]:
    """Give Sphinx the role."""
    app.add_role("page", Page())
    return {"parallel_read_safe": True}
