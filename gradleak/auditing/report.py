"""Write the report of an audit as an HTML page, as JSON and as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

import gradleak
from gradleak.auditing import folders, html
from gradleak.auditing.findings import Audited
from gradleak.auditing.folders import Written


class Report(Audited):
    """The report of an audit; a notebook displays it as HTML.

    Attributes:
        broken: The errors that the model raised, and the steps in which it raised them.
        files: The files that were written in addition to report.json.
    """

    broken: list[str] = Field(default=[])
    files: list[Written] = Field(default=[])

    def write(self, folder: str | Path) -> Path:
        """Write index.html, report.json and the figures into a folder, and return the path of index.html.

        The files of an earlier report are replaced or removed. Other files are kept; an error is raised if one of them
        would be overwritten.
        """
        with folders.held(Path(folder)):
            return self.put(Path(folder))

    def put(self, place: Path) -> Path:
        """Do the same as `write`, for a folder that is already `held`."""
        files = {folders.PAGE: html.page(self, place).encode()}
        files |= {f"{folders.FIGURES}/{name}": data for name, data in html.figures(self)}
        folders.replace(place, files, lambda written: self.model_copy(update={"files": written}).to_json())
        return place / folders.PAGE

    def _repr_html_(self) -> str:
        return html.fragment(self)


def made(**told: Any) -> Report:
    """Return a report with these fields and the version of this package."""
    return Report(version=gradleak.__version__, **told)
