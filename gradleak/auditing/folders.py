"""Write a report's files into a folder, and replace those of an earlier report.

At every moment `report.json` lists all files that an audit has written into the folder, with their SHA-256. Other files
are never overwritten or removed. Files of an earlier report are kept until all new files are on the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict

from gradleak.errors import InputError
from gradleak.storage import check_folder, kept_alone, parsed, storage_error, write_whole

REPORT, PAGE, FIGURES = "report.json", "index.html", "figures"
# New files are in this folder until all are complete. Each is named by its number and the SHA-256 of its content, so
# that what a killed audit has left can be told from any other file.
UNFINISHED = ".gradleak-unfinished"
LEFT = re.compile(r"\.?\d+-[0-9a-f]{64}(\.\w{8})?")
ELSEWHERE = "move it away or choose another folder"


class Written(BaseModel):
    """A file of a report: its name in the folder, and the SHA-256 of its content."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str


@contextlib.contextmanager
def held(place: Path) -> Iterator[None]:
    """Create a folder and lock it for one audit; refuse a folder that is locked or has other files in the way."""
    check_folder(place)
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
    try:
        _clear(place)  # an earlier audit may have been killed while it wrote its files
        texts = [report([*new, *old]).encode(), *files.values(), report(new).encode()]
        both, *unfinished, alone = [_unfinished(place, number, data) for number, data in enumerate(texts)]
        # All new files are complete now, and the following steps need no more disk space.
        (place / FIGURES).mkdir(exist_ok=True)
        both.replace(place / REPORT)
        for name, file in zip(files, unfinished, strict=True):
            file.replace(place / name)
        for written in old:
            if written.name not in files and _sha256(place / written.name) == written.sha256:
                (place / written.name).unlink()
        alone.replace(place / REPORT)
    except OSError as error:
        raise storage_error(place / REPORT, error.__cause__ or error) from error
    finally:
        with contextlib.suppress(OSError):
            _clear(place)


def _unfinished(place: Path, number: int, data: bytes) -> Path:
    """Write a new file under the name that it has until all are complete."""
    file = place / UNFINISHED / f"{number}-{hashlib.sha256(data).hexdigest()}"
    write_whole(file, partial(_put, data))
    return file


def _clear(place: Path) -> None:
    """Remove the folder of unfinished files, in which there are no others."""
    folder = place / UNFINISHED
    if folder.is_dir():
        for file in folder.iterdir():
            if LEFT.fullmatch(file.name):
                file.unlink()
        folder.rmdir()


def _listed(place: Path) -> list[Written]:
    """Return the files that the report in a folder lists; refuse a report that is not from an audit."""
    file = place / REPORT
    if not os.path.lexists(file):
        return []
    where = f"{REPORT} in the folder '{place.name}'"
    try:
        content = parsed(file.read_bytes())
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or not str(content.get("schema")).startswith("gradleak-audit/"):
        raise InputError(f"{where} is not the report of an audit: {ELSEWHERE}")
    files: Any = content.get("files")
    try:
        listed = [Written.model_validate(entry) for entry in files]
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} does not list its files, as in earlier versions: {ELSEWHERE}") from error
    return [entry for entry in listed if re.fullmatch(rf"{PAGE}|{FIGURES}/[^/.\\][^/\\]*", entry.name)]


def _refuse_foreign(place: Path, names: Iterable[str], listed: list[Written]) -> None:
    """Refuse to overwrite a file that the report does not list with its present content, and a foreign folder."""
    unfinished = place / UNFINISHED
    left = [file.name for file in unfinished.iterdir()] if unfinished.is_dir() else []
    foreign = [f"{UNFINISHED}/{name}" for name in left if not LEFT.fullmatch(name)]
    # A link would lead out of the folder.
    foreign += [
        name for name in (FIGURES, UNFINISHED)
        if os.path.lexists(place / name) and ((place / name).is_symlink() or not (place / name).is_dir())
    ]  # fmt: skip
    if foreign:
        raise InputError(f"'{foreign[0]}' in the folder '{place.name}' was not written by an audit: {ELSEWHERE}")
    for name in names:
        file = place / name
        if os.path.lexists(file) and Written(name=name, sha256=_sha256(file)) not in listed:
            raise InputError(
                f"'{name}' in the folder '{place.name}' was not written by an audit, or was changed since: {ELSEWHERE}"
            )


def _sha256(file: Path) -> str:
    """Return the SHA-256 of a file, "" if there is no file or it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    except OSError:
        return ""


def _put(data: bytes, stream: BinaryIO) -> None:
    stream.write(data)
