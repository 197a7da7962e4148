"""A Sphinx extension that keeps live-code scripts out of the pages: they would be fetched from a network, twice."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def _without_live_code(app: Sphinx) -> None:
    # jupyter-book always loads sphinx_thebe, and has no option that leaves its scripts out.
    for listeners in app.events.listeners.values():
        listeners[:] = [one for one in listeners if getattr(one.handler, "__name__", "") != "init_thebe_core"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx, before any other extension looks at the pages."""
    app.connect("config-inited", lambda app, config: _without_live_code(app), priority=1000)
    return {"parallel_read_safe": True}
