"""A Sphinx extension with roles for what lies beside the pages: {claim}`text <id>` and {bookfile}`text <path>`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import ReferenceRole
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


def setup(app: Sphinx) -> dict[str, Any]:
    """Give Sphinx the roles."""
    app.add_role("claim", Claim())
    app.add_role("bookfile", BookFile())
    return {"parallel_read_safe": True}
