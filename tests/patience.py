"""Wait in tests for something that comes unless there is a fault, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

from gradleak.book import PATIENCE

# The limits of a client of a kernel.
KERNEL = {"startup_timeout": PATIENCE, "iopub_timeout": PATIENCE}


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"the condition did not hold within {PATIENCE} s"
        time.sleep(0.02)
