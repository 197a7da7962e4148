"""Show the progress of long work: as bars in a terminal or a notebook, or as lines in a file for a page's runner."""

from __future__ import annotations

import contextlib
import html
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
# Work of at most so many seconds has no bar in a notebook.
SHORT = 0.5

_numbers = itertools.count()
_bars: Progress | None = None
_quiet = False
_drawing = False


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
            yield from _drawn(items, total, description) if _in_notebook() else items
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


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook that someone has opened; pages that are run write to a file."""
    if _quiet or "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _drawn(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Draw a bar in the output of a notebook's cell, which stays there with the time that the work took.

    A plain HTML element needs no widgets in the reader's Jupyter. Short work, and work within other work, has no bar.
    """
    global _drawing
    if _drawing:
        yield from items
        return
    from IPython.display import HTML, display

    def bar(done: int) -> HTML:
        seconds = time.monotonic() - started
        left = f", about {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""
        text = f"{description}: {done} of {total}, {seconds:.0f} s{left}"
        return HTML(f'<progress max="{total}" value="{done}"></progress> {html.escape(text)}')

    started = written = time.monotonic()
    handle, done, _drawing = None, 0, True
    try:
        for item in items:
            yield item
            done += 1
            if handle is None and time.monotonic() - started > SHORT:
                handle = display(bar(done), display_id=True)
            elif handle is not None and time.monotonic() - written > 0.2:
                handle.update(bar(done))
                written = time.monotonic()
    finally:
        _drawing = False
        if handle is not None:
            handle.update(bar(done))


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
