"""Take full-page pictures of every page of the built book: `python -m tests.acceptance.screenshots FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from gradleak.book.browser import chromium, served
from tests.acceptance.browser import pages_of


def main(folder: Path, book: Path) -> None:
    """Write page-width-scheme.png for each page, at both widths, and at the larger one in dark mode."""
    folder.mkdir(parents=True, exist_ok=True)
    with served(book) as address, chromium() as browser:
        for width, scheme in ((1400, "light"), (400, "light"), (1400, "dark")):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            view = context.new_page()
            for page in pages_of(book):
                view.goto(f"{address}/{page}", wait_until="load")
                view.wait_for_timeout(400)
                name = page.removesuffix(".html").replace("/", "-")
                view.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
            context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("_build/html"))
