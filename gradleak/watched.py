"""Run a command in a child process, so that its exit code cannot come from other code that ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from gradleak import interrupts

# Signals that are passed on to the child.
PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) if hasattr(os, "fork") else ()
# The exit code if the command did not come to its end.
CUT_OFF = 3


def run(work: Callable[[], object]) -> NoReturn:
    """Run `work` in a child process, and exit with its code.

    The code of a user's model may end its process at once, as `os._exit(0)` does. So the child writes its exit code
    into a pipe when `work` returns or exits. If the pipe is empty, the exit code is 3. Signals are passed on to the
    child.
    """
    if not PASSED:  # a system without fork
        work()
        sys.exit(0)
    result, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, writing)
    os.close(writing)

    def pass_on(number: int, _: object) -> None:
        if number != signal.SIGINT or not _in_foreground():
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
    if -status in PASSED:  # end by the same signal
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


def _in_foreground() -> bool:
    """Return whether Ctrl-C in a terminal reaches all processes of this group, so that it need not be passed on."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
