"""A Sphinx extension that keeps live-code scripts out of the pages: they would be fetched from a network, twice."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def _without_thebe(app: Sphinx) -> None:
    # jupyter-book always loads sphinx_thebe, and has no option that leaves it out.
    for listeners in app.events.listeners.values():
        listeners[:] = [one for one in listeners if not one.handler.__module__.startswith("sphinx_thebe")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx, before any other extension looks at the pages."""
    app.connect("config-inited", lambda app, config: _without_thebe(app), priority=1000)
    return {"parallel_read_safe": True}
