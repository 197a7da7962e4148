"""A Sphinx extension that offers to run a page on Binder or Colab if `_config.yml` names the repository's address.

The book shows executed copies of the pages; the buttons open the notebooks in the repository, which have no outputs.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

SERVICES = {
    "binderhub_url": "https://mybinder.org",
    "colab_url": "https://colab.research.google.com",
    "notebook_interface": "jupyterlab",
}
# The address that jupyter-book takes if `_config.yml` names none.
UNNAMED = "https://github.com/executablebooks/jupyter-book"
EXECUTED, NOTEBOOKS = "book/executed/", "notebooks/"
# After the book's theme, which adds its buttons with priority 501.
LATE = 600


def _offer(app: Sphinx, config: Config) -> None:
    named = config.html_theme_options.get("repository_url", UNNAMED) not in ("", UNNAMED)
    config.html_theme_options["launch_buttons"] = dict(SERVICES) if named else {}


def _to_notebooks(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    for group in context.get("header_buttons", ()):
        if group.get("label") == "launch-buttons":
            for button in group["buttons"]:
                button["url"] = button["url"].replace(EXECUTED, NOTEBOOKS)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx: before the theme reads its options, and after it has added its buttons."""
    app.connect("config-inited", _offer)
    app.connect("html-page-context", _to_notebooks, priority=LATE)
    return {"parallel_read_safe": True}
