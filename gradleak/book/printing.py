"""Print the built book into one PDF with Chromium: all pages in reading order, with links between them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

from gradleak.book import PATIENCE
from gradleak.errors import GradleakError
from gradleak.runs import progress

# The flags with which Chromium starts.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
MARGINS = {"top": "16mm", "bottom": "18mm", "left": "15mm", "right": "15mm"}
FOOT = """<div style="font-size:8px;width:100%;padding:0 15mm;color:#555;display:flex;justify-content:space-between">
<span class="title"></span><span><span class="pageNumber"></span> of <span class="totalPages"></span></span></div>"""
# Before a page is printed, open its folded parts and wait for its formulas and images.
READY = """async () => {
    document.querySelectorAll('details').forEach(one => { one.open = true })
    if (window.MathJax?.startup) await MathJax.startup.promise
    await Promise.all([...document.images].map(one => { one.loading = 'eager'; return one.decode().catch(() => {}) }))
}"""


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


def write_pdf(html: Path, file: Path) -> int:
    """Print the book in the folder `html` into a PDF file, and return the number of sheets."""
    if executable() is None:
        raise GradleakError("the book is printed by Chromium, and there is none: install `chromium`")
    try:
        from pypdf import PdfReader, PdfWriter
    except ImportError as error:
        raise GradleakError("to print the book, `pip install 'gradleak[pdf]'`") from error
    writer, begins = PdfWriter(), {}
    with chromium() as view:
        page = view.new_page()
        ordered = [file.as_uri() for file in _reading_order(html)]
        for link in progress.progress(ordered, len(ordered), "book: pages printed"):
            page.goto(link, wait_until="networkidle")
            page.emulate_media(media="print", color_scheme="light")
            page.evaluate(READY)
            begins[link] = len(writer.pages)
            sheets = page.pdf(
                format="A4", margin=MARGINS, print_background=True,
                display_header_footer=True, header_template="<span></span>", footer_template=FOOT,
            )  # fmt: skip
            writer.append(PdfReader(io.BytesIO(sheets)), outline_item=page.title().partition(" — ")[0])
        _link_inside(writer, begins)
    writer.add_metadata({"/Title": "gradleak: an executable book of gradient leakage"})
    file.parent.mkdir(parents=True, exist_ok=True)
    writer.write(file)
    return len(writer.pages)


def _reading_order(html: Path) -> Iterator[Path]:
    """Yield the book's pages in reading order, by following each page's link to the next page."""
    page: Path | None = html.resolve() / "book" / "index.html"
    while page:
        yield page
        following = re.search(r'<a class="right-next"\s+href="([^"]+)"', page.read_text("utf-8"))
        page = Path(os.path.normpath(page.parent / following[1])) if following else None


def _link_inside(writer: Any, begins: dict[str, int]) -> None:
    """Point links to pages of the book to their sheets, and remove links to pages that are not printed."""
    from pypdf.generic import ArrayObject, NameObject, NumberObject

    for sheet in writer.pages:
        for reference in sheet.get("/Annots", ()):
            link = reference.get_object()
            target, _ = urldefrag(str(link.get("/A", {}).get("/URI", "")))
            if not target.startswith("file:"):
                continue
            del link["/A"]
            if target in begins:
                destination = writer.pages[begins[target]].indirect_reference
                link[NameObject("/Dest")] = ArrayObject([destination, NameObject("/FitH"), NumberObject(842)])
