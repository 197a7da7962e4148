"""Show the progress of long work: as bars in a terminal, or as lines in a file for the process that runs a page."""

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
    """Yield the items, and show how many of `total` are done and the estimated remaining time.

    Args:
        items: The items; working on one of them is a step of the progress.
        total: The number of items.
        description: The text beside the bar.
    """
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
    """Yield the terminal's bars, which nested work shares so that both levels are shown; None without a terminal."""
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
    """Draw no bars within this context: parallel processes of a run share its terminal."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def warn(message: str) -> None:
    """Warn the user; in a page's kernel, write the warning to the progress file, so that the page does not show it."""
    if os.environ.get(FILE):
        _write({"warning": message})
    else:
        warnings.warn(message, GradleakWarning, stacklevel=3)


def read(file: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines after a position in bytes of a progress file, and the position of their end."""
    if not file.is_file():
        return [], position
    with file.open("rb") as stream:
        stream.seek(position)
        content = stream.read()
    complete = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in complete.splitlines()], position + len(complete)


def _reported(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    task = {"task": f"{os.getpid()}-{next(_numbers)}", "description": description, "total": total}
    done, written = 0, time.monotonic()
    _write({**task, "done": 0})
    try:
        for item in items:
            yield item
            done += 1
            # Five lines a second look continuous, and few lines spare the disk.
            if time.monotonic() - written > 0.2:
                _write({**task, "done": done})
                written = time.monotonic()
    finally:
        _write({**task, "done": done, "ended": True})


def _write(line: dict[str, Any]) -> None:
    # A line that cannot be written must not end a run of hours. Only the results have to be written.
    with contextlib.suppress(OSError), open(os.environ[FILE], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


# Attacks and training do not import the book. They report to `gradleak.reporting`, which passes reports on to here.
reporting.to(progress, warn)
