"""Progress of long work: a bar in a terminal, lines in a file for whoever runs the page, silence elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradleak import reporting
from gradleak.errors import GradleakWarning

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
FILE = "GRADLEAK_PROGRESS"

_numbers = itertools.count()
_bars: Progress | None = None
_quiet = False


def progress(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items; show how many of `total` are done and how long the rest will take."""
    if os.environ.get(FILE):
        yield from _reported(items, total, description)
        return
    with display() as bars:
        if bars is None:
            yield from items
            return
        task = bars.add_task(description, total=total)
        try:
            for item in items:
                yield item
                bars.advance(task)
        finally:
            bars.remove_task(task)


@contextlib.contextmanager
def display() -> Iterator[Progress | None]:
    """Give the terminal's bars, begun if need be, so that long work inside long work shows two; None elsewhere."""
    global _bars
    if _bars is not None or _quiet or not sys.stderr.isatty():
        yield None if _quiet else _bars
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    text, left = TextColumn("{task.description}"), TextColumn("left")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        _bars = bars
        try:
            yield bars
        finally:
            _bars = None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Draw no bars inside: for the processes of a run, which share its terminal."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def warn(message: str) -> None:
    """Warn the person who waits. From a page's kernel this goes through the file: it is not part of the page."""
    if os.environ.get(FILE):
        _write({"warning": message})
    else:
        warnings.warn(message, GradleakWarning, stacklevel=3)


def read(file: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines that follow a position of a progress file, and where they end."""
    if not file.is_file():
        return [], position
    with file.open("rb") as stream:
        stream.seek(position)
        new = stream.read()
    whole = new[: new.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], position + len(whole)


def _reported(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    task = {"task": f"{os.getpid()}-{next(_numbers)}", "description": description, "total": total}
    done, written = 0, time.monotonic()
    _write({**task, "done": 0})
    try:
        for item in items:
            yield item
            done += 1
            # A few lines a second are enough for the eye, and spare the disk.
            if time.monotonic() - written > 0.2:
                _write({**task, "done": done})
                written = time.monotonic()
    finally:
        _write({**task, "done": done, "ended": True})


def _write(line: dict[str, Any]) -> None:
    # A line that is lost must not end a run of hours; what has to be written are its results.
    with contextlib.suppress(OSError), open(os.environ[FILE], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


# Attacks and training know nothing of the book: what they tell goes here once the book is at work.
reporting.to(progress, warn)
