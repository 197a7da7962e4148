"""A Sphinx extension with roles for links: {page}`noise`, {claim}`text <id>` and {bookfile}`text <path>`.

{page} leads to a page of the book by its bare name, the others to what lies beside the pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import ReferenceRole, SphinxRole
from sphinx.util.nodes import make_refnode
from sphinx.util.osutil import relative_uri

# The folder whose files are copied to the root of the built book; see `html_extra_path` in _config.yml.
BESIDE = "book/generated/beside"


class BookFile(ReferenceRole):
    """A link to a file or page of the built book, by its path from the root; its text alone where there is none."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the link."""
        path, mark, part = self.target.partition("#")
        is_page = path.removesuffix(".html") in self.env.found_docs
        if not is_page and not (Path(self.env.srcdir) / BESIDE / path).is_file():
            return [nodes.inline(self.rawtext, self.title)], []
        here = self.env.app.builder.get_target_uri(self.env.docname)
        link = nodes.reference(self.rawtext, self.title, internal=True, refuri=relative_uri(here, path) + mark + part)
        return [link], []


class Claim(BookFile):
    """A link to the page of a claim; its text alone where the claim has none."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the link."""
        self.target = f"claims/{self.target}.html"
        return super().run()


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
    """Give Sphinx the roles."""
    for name, role in {"page": Page, "claim": Claim, "bookfile": BookFile}.items():
        app.add_role(name, role())
    return {"parallel_read_safe": True}
