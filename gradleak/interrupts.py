"""Handle Ctrl-C: exit at once while a command has no results to keep, and wait for work that has to finish."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

# The pipe into which a watched process writes its exit code, see `gradleak.watched`.
result: int | None = None


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
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, handler)


def caused(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error, even if an interrupted import raised a different one."""
    raised: BaseException | None = error
    while raised is not None:
        if type(raised) is KeyboardInterrupt:
            return True
        raised = raised.__cause__ or raised.__context__
    return False


def _leave(*_: object) -> None:
    sys.stderr.write("gradleak: interrupted; nothing was begun\n")
    sys.stderr.flush()
    if result is not None:
        os.write(result, bytes([130]))
    os._exit(130)
