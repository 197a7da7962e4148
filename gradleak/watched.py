"""Run a command in a child process, so that its exit code cannot come from other code that ends the process."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from gradleak import interrupts

# Signals that are passed on to the child.
PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) if hasattr(os, "fork") else ()
# Signals of one kind within this time (s) are passed on once.
AT_ONCE = 1.0
# The exit code if the command did not come to its end.
CUT_OFF = 3


def run(work: Callable[[], object]) -> NoReturn:
    """Run `work` in a child process, and exit with its code.

    The code of a user's model may end its process at once, as `os._exit(0)` does. So the child writes its exit code
    into a pipe when `work` returns or exits. If the pipe is empty, the exit code is 3. Signals are passed on to the
    child, and the child ends if this process is killed.
    """
    if not PASSED:  # a system without fork
        work()
        sys.exit(0)
    result, writing = os.pipe()
    alive, living = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(living)
        threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
        _work(work, writing)
    os.close(writing)
    received: dict[int, float] = {}

    def pass_on(number: int, _: object) -> None:
        # A signal to the whole group has reached the child already, and may come again with the one to this process.
        again = time.monotonic() - received.get(number, -math.inf) < AT_ONCE
        received[number] = time.monotonic()
        if not again and not (number == signal.SIGINT and _in_foreground()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    for number in PASSED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.set_blocking(result, False)  # a process that the model has started may still hold the other end
    with contextlib.suppress(BlockingIOError):
        if code := os.read(result, 1):
            sys.exit(code[0])
    if -status in received:  # end by the same signal
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    ended = f"signal {-status}" if status < 0 else f"exit code {status}"
    sys.stderr.write(f"gradleak: other code ended the process before the command had come to its end: {ended}\n")
    sys.exit(CUT_OFF)


def _work(work: Callable[[], object], writing: int) -> NoReturn:
    """Run `work` in the child, and write its exit code."""
    code = 1
    interrupts.result = writing
    try:
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os.write(writing, bytes([code & 255]))
    sys.exit(0)


def _end_with_parent(alive: int) -> None:
    """Kill this process when the parent's end of the pipe is closed."""
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _in_foreground() -> bool:
    """Return whether Ctrl-C in a terminal reaches all processes of this group, so that it need not be passed on."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
