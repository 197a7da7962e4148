"""Handle Ctrl-C: exit at once while a command has no results to keep, and wait for work that has to finish."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


def leave_at_once() -> None:
    """Let Ctrl-C end this process with one line, until `listen` is called.

    During imports the usual KeyboardInterrupt may be swallowed.
    """
    signal.signal(signal.SIGINT, _leave)


def listen() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, because from now on there may be results to keep."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def finishing() -> Iterator[list[int]]:
    """Finish the block in spite of Ctrl-C, and give a list that gets one entry for each Ctrl-C."""
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def caused(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error, even if an interrupted import raised a different one."""
    before: BaseException | None = error
    while before is not None:
        if type(before) is KeyboardInterrupt:
            return True
        before = before.__cause__ or before.__context__
    return False


def _leave(*_: object) -> None:
    sys.stderr.write("gradleak: interrupted; nothing was begun\n")
    sys.stderr.flush()
    os._exit(130)
