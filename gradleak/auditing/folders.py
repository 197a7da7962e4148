"""The folder of a report: which of its files are an audit's own, and how a new report takes an earlier one's place.

At every moment `report.json` lists, with their SHA-256, all files that an audit has put into the folder. Nothing else
is ever overwritten or removed, and what is replaced stays until all that is new is on the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict

from gradleak.errors import InputError
from gradleak.storage import check_folder, kept_alone, storage_error, write_whole

REPORT, PAGE, FIGURES = "report.json", "index.html", "figures"
# All that is new lies in a folder of this name until it is whole; nothing but this module makes one.
UNFINISHED = ".gradleak-unfinished"
ELSEWHERE = "move it away or choose another folder"


class Written(BaseModel):
    """A file of a report: its name within the folder, and the SHA-256 of its content."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str


@contextlib.contextmanager
def held(place: Path) -> Iterator[None]:
    """Make a folder and keep it for one audit; an error where another has it, or where what lies in it is not ours."""
    check_folder(place)
    with kept_alone(place):
        _refuse_foreign(place, [PAGE, *([] if (place / FIGURES).is_dir() else [FIGURES])], _listed(place))
        yield


def replace(place: Path, files: dict[str, bytes], report: Callable[[list[Written]], str]) -> None:
    """Put a report and its files, by their names, into a folder that is `held`.

    `report` gives the text of `report.json` with these files listed in it.
    """
    earlier = _listed(place)
    _refuse_foreign(place, files, earlier)
    new = [Written(name=name, sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items()]
    old = [one for one in earlier if one not in new]
    unfinished = place / UNFINISHED
    try:
        if unfinished.exists():  # an audit was killed while it wrote
            shutil.rmtree(unfinished)
        both, alone = "both.json", "alone.json"
        texts = {both: report([*new, *old]).encode(), alone: report(new).encode()}
        for name, data in (files | texts).items():
            write_whole(unfinished / name, partial(_put, data))
        # From here on everything is there, and no more room is needed.
        (place / FIGURES).mkdir(exist_ok=True)
        (unfinished / both).replace(place / REPORT)
        for name in files:
            (unfinished / name).replace(place / name)
        for one in old:
            if one.name not in files and _sha256(place / one.name) == one.sha256:
                (place / one.name).unlink()
        (unfinished / alone).replace(place / REPORT)
    except OSError as error:
        raise storage_error(place / REPORT, error.__cause__ or error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _listed(place: Path) -> list[Written]:
    """Return the files that the report in a folder lists; an error where the report there is no audit's."""
    file = place / REPORT
    if not os.path.lexists(file):
        return []
    where = f"{REPORT} in the folder '{place.name}'"
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or not str(content.get("schema")).startswith("gradleak-audit/"):
        raise InputError(f"{where} is not the report of an audit: {ELSEWHERE}")
    files: Any = content.get("files")
    try:
        listed = [Written.model_validate(one) for one in files]
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} does not list its files, as those of earlier versions: {ELSEWHERE}") from error
    return [one for one in listed if re.fullmatch(rf"{PAGE}|{FIGURES}/[^/.\\][^/\\]*", one.name)]


def _refuse_foreign(place: Path, names: Iterable[str], listed: list[Written]) -> None:
    """Refuse to overwrite what no report lists as it is now."""
    for name in names:
        file = place / name
        if os.path.lexists(file) and Written(name=name, sha256=_sha256(file)) not in listed:
            raise InputError(
                f"'{name}' in the folder '{place.name}' is not of an audit, or was changed since: {ELSEWHERE}"
            )


def _sha256(file: Path) -> str:
    """Return the SHA-256 of a file, "" of what is none or cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    except OSError:
        return ""


def _put(data: bytes, stream: BinaryIO) -> None:
    stream.write(data)
