"""The book as one PDF: its pages in reading order, what is folded away open, links inside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pypdf import PdfReader

from gradleak.book import printing
from gradleak.errors import GradleakError

PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>{title} — gradleak</title></head><body>
<h1>{title}</h1><p><a href="{link}">there</a></p><details><summary>more</summary>folded {title}</details>
{following}</body></html>"""
NEXT = '<a class="right-next"\n  href="sub/second.html" title="next page">next</a>'


@pytest.fixture
def html(tmp_path: Path) -> Path:
    """Give a book of two pages, and a third that is on no way through it."""
    folder = tmp_path / "html"
    (folder / "book" / "sub").mkdir(parents=True)
    first = PAGE.format(title="First", link="sub/second.html#there", following=NEXT)
    (folder / "book" / "index.html").write_text(first)
    (folder / "book" / "sub" / "second.html").write_text(PAGE.format(title="Second", link="../lost.html", following=""))
    (folder / "book" / "lost.html").write_text(PAGE.format(title="Lost", link="index.html", following=""))
    return folder


@pytest.mark.browser
def test_pages_become_sheets_in_reading_order(html: Path, tmp_path: Path) -> None:
    if printing.executable() is None and os.environ.get("GRADLEAK_REQUIRE_BROWSER") != "1":
        pytest.skip("no Chromium on this machine")
    file = tmp_path / "out" / "book.pdf"
    assert printing.write_pdf(html, file) == 2
    printed = PdfReader(file)
    assert [entry.title for entry in printed.outline] == ["First", "Second"]  # type: ignore[union-attr]
    texts = [sheet.extract_text() for sheet in printed.pages]
    assert "folded First" in texts[0]
    assert "folded Second" in texts[1]
    (link, _), (lost,) = ([one.get_object() for one in sheet["/Annots"]] for sheet in printed.pages)
    assert "/A" not in link
    assert link["/Dest"][0] == printed.pages[1].indirect_reference
    assert "/A" not in lost
    assert "/Dest" not in lost


def test_without_chromium_it_says_so(html: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "executable", lambda: None)
    with pytest.raises(GradleakError, match="printed by Chromium"):
        printing.write_pdf(html, tmp_path / "book.pdf")
