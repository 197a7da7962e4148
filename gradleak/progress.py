"""Progress of long work: a bar in a terminal, lines in a file for whoever runs the page, silence elsewhere."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items; show how many of `total` are done and how long the rest will take."""
    file = os.environ.get("GRADLEAK_PROGRESS")
    if file:
        yield from _reported(items, total, description, Path(file))
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(items, description, total=total, console=Console(stderr=True), transient=True)
    else:
        yield from items


def _reported(items: Iterable[T], total: int, description: str, file: Path) -> Iterator[T]:
    written = 0.0
    for done, item in enumerate(items):
        # A few lines a second are enough for the eye, and spare the disk.
        if done == 0 or time.monotonic() - written > 0.2:
            _write(file, description, done, total)
            written = time.monotonic()
        yield item
    _write(file, description, total, total)


def _write(file: Path, description: str, done: int, total: int) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps({"description": description, "done": done, "total": total}) + "\n")
