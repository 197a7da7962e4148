"""Write a report's files into a folder, and replace those of an earlier report.

At every moment `report.json` lists all files that an audit has written into the folder, with their SHA-256. Other files
are never overwritten or removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.errors import InputError
from gradleak.storage import kept_alone, write_whole

REPORT, PAGE, FIGURES = "report.json", "index.html", "figures"
SCHEMA: Literal["gradleak-audit/1"] = "gradleak-audit/1"
ELSEWHERE = "move it away or choose another folder"


class Written(BaseModel):
    """A file of a report: its name in the folder, and the SHA-256 of its content."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str


class _Listing(BaseModel):
    """The list of files in an earlier report."""

    form: Literal["gradleak-audit/1"] = Field(alias="schema")
    files: list[Written]


@contextlib.contextmanager
def held(place: Path) -> Iterator[None]:
    """Create a folder and lock it for one audit; refuse a folder that is locked or has other files in the way."""
    with kept_alone(place):
        _refuse_foreign(place, [PAGE], _listed(place))
        yield


def replace(place: Path, files: dict[str, bytes], report: Callable[[list[Written]], str]) -> None:
    """Write a report and its files into a folder that is `held`.

    Args:
        place: The folder.
        files: The contents of the files by their names in the folder.
        report: Returns the text of `report.json` that lists the given files.
    """
    earlier = _listed(place)
    _refuse_foreign(place, files, earlier)
    new = [Written(name=name, sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items()]
    old = [written for written in earlier if written not in new]
    # Until all files are written, the report lists the earlier ones as well.
    for name, data in {REPORT: report([*new, *old]).encode(), **files}.items():
        _put(place / name, data)
    for written in old:
        if written.name not in files and _sha256(place / written.name) == written.sha256:
            (place / written.name).unlink()
    _put(place / REPORT, report(new).encode())


def _put(file: Path, data: bytes) -> None:
    write_whole(file, lambda stream: stream.write(data))


def _listed(place: Path) -> list[Written]:
    """Return the files that the report in a folder lists; refuse a report that is not from an audit."""
    file = place / REPORT
    if not os.path.lexists(file):
        return []
    try:
        listed = _Listing.model_validate_json(file.read_bytes()).files
    except (OSError, ValueError) as error:
        raise InputError(f"{REPORT} in the folder '{place.name}' is not the report of an audit: {ELSEWHERE}") from error
    return [entry for entry in listed if re.fullmatch(rf"{PAGE}|{FIGURES}/[^/.\\][^/\\]*", entry.name)]


def _refuse_foreign(place: Path, names: Iterable[str], listed: list[Written]) -> None:
    """Refuse to overwrite a file that the report does not list with its present content, and a foreign folder."""
    figures = place / FIGURES
    # A link would lead out of the folder.
    if os.path.lexists(figures) and (figures.is_symlink() or not figures.is_dir()):
        raise InputError(f"'{FIGURES}' in the folder '{place.name}' was not written by an audit: {ELSEWHERE}")
    for name in names:
        file = place / name
        if os.path.lexists(file) and Written(name=name, sha256=_sha256(file)) not in listed:
            raise InputError(
                f"'{name}' in the folder '{place.name}' was not written by an audit, or was changed since: {ELSEWHERE}"
            )


def _sha256(file: Path) -> str:
    """Return the SHA-256 of a file, "" if there is no file."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
