"""The built book's pages, for those who open them."""

from __future__ import annotations

from pathlib import Path


def pages_of(book: Path) -> list[str]:
    """Return the book's own pages, without Sphinx's indices."""
    pages = (file.relative_to(book).as_posix() for file in (book / "book").rglob("*.html"))
    return sorted(pages)
