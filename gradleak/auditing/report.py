"""The report of an audit: what it says, written as one page, as JSON and as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

import gradleak
from gradleak.auditing import folders, html
from gradleak.auditing.findings import Audited
from gradleak.auditing.folders import Written


class Report(Audited):
    """What a model's gradients give away; in a notebook it shows itself.

    `broken`: what the model raised, and in which step; `files`: what was written beside the report's JSON.
    """

    broken: list[str] = Field(default=[])
    files: list[Written] = Field(default=[])

    def write(self, folder: str | Path) -> Path:
        """Write index.html, report.json and the figures into a folder; return the page.

        They take the place of those of an earlier report, whose pictures may show what this one must not. Any other
        file stays; an error where one would be overwritten.
        """
        with folders.held(Path(folder)):
            return self.put(Path(folder))

    def put(self, place: Path) -> Path:
        """Do as `write` does, into a folder that is `held` already."""
        files = {folders.PAGE: html.page(self, place).encode()}
        files |= {f"{folders.FIGURES}/{name}": data for name, data in html.figures(self)}
        folders.replace(place, files, lambda written: self.model_copy(update={"files": written}).to_json())
        return place / folders.PAGE

    def _repr_html_(self) -> str:
        return html.fragment(self)


def made(**told: Any) -> Report:
    """Return the report of an audit that found this, with the version that made it."""
    return Report(version=gradleak.__version__, **told)
