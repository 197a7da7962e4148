"""What Ctrl-C does: it ends a command at once that has nothing to keep yet, and waits for what must come to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


def leave_at_once() -> None:
    """Let Ctrl-C end this process with one line until `listen`: an import may swallow the usual KeyboardInterrupt."""
    signal.signal(signal.SIGINT, _leave)


def listen() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again: from here on there is something to keep."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def finishing() -> Iterator[list[int]]:
    """Let what is inside come to its end in spite of Ctrl-C; the list that is given holds each time it was pressed."""
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
    """Whether Ctrl-C caused an error; an import that it interrupts may raise another one."""
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
