"""Measure the memory of this process and of this machine, in bytes."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def used() -> float:
    """Return the memory that this process holds now, or, where the system does not tell, the most it ever held."""
    return _status("VmRSS") or _ever()


def begin_peak() -> None:
    """Let `peak` count from now on; without /proc it counts from the start of the process."""
    with contextlib.suppress(OSError):
        RESET.write_text("5")


def peak() -> float:
    """Return the most memory that this process has held since `begin_peak`."""
    return _status("VmHWM") or _ever()


def available() -> float:
    """Return the memory of this machine that is free for new work, or half of all where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return 1024.0 * int(line.split()[1])
    return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _status(name: str) -> float:
    with contextlib.suppress(OSError, ValueError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024.0 * int(line.split()[1])
    return 0.0


def _ever() -> float:
    # macOS counts bytes, other systems kibibytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)
