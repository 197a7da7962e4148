"""Start a headless Chromium."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gradleak.book import PATIENCE

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def executable() -> str | None:
    """Return the path of the system's Chromium, or None if there is none."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@dataclass(frozen=True)
class Browser:
    """A browser whose pages wait long enough for a busy machine."""

    started: Any

    def new_context(self, **options: Any) -> Any:
        """Return a context of playwright with these options."""
        context = self.started.new_context(**options)
        context.set_default_timeout(PATIENCE * 1000)
        return context

    def new_page(self, **options: Any) -> Any:
        """Return a page in a new context with these options."""
        return self.new_context(**options).new_page()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium without a window, and yield the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable(), args=list(FLAGS), timeout=PATIENCE * 1000)
        try:
            yield Browser(browser)
        finally:
            browser.close()
