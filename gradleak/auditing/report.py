"""The report of an audit: what it says, written as one page, as JSON and as figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import BinaryIO

from gradleak.auditing import html
from gradleak.auditing.findings import Audited
from gradleak.storage import write_whole


class Report(Audited):
    """What a model's gradients give away; in a notebook it shows itself."""

    def write(self, folder: str | Path) -> Path:
        """Write index.html, report.json and the figures into a folder; return the page."""
        place = Path(folder)
        if (place / "report.json").is_file():
            # Of an audit before no picture stays: it may have shown what this one must not.
            for old in (place / "figures").glob("*.[ps][nv]g"):
                old.unlink()
        write_whole(place / "report.json", lambda stream: stream.write(self.to_json().encode()))
        for name, data in html.figures(self):
            write_whole(place / "figures" / name, partial(_put, data))
        page = html.page(self, place).encode()
        write_whole(place / "index.html", lambda stream: stream.write(page))
        return place / "index.html"

    def _repr_html_(self) -> str:
        return html.fragment(self)


def _put(data: bytes, stream: BinaryIO) -> None:
    stream.write(data)
