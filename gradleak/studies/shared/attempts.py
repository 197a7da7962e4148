"""Measure the time of an attack, and replace the result of an attack that refuses its input."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from gradleak.errors import InputError

Found = TypeVar("Found")


def timed(
    attack: Callable[..., Found], *inputs: Any, clock: Callable[[], float] = time.process_time, **settings: Any
) -> tuple[Found, float]:
    """Return the result of an attack, and its time (s) by a clock: by default the CPU time."""
    started = clock()
    found = attack(*inputs, **settings)
    return found, clock() - started


def unless_refused(attack: Callable[[], Found], nothing: Found) -> Found:
    """Return the result of an attack, or `nothing` if the attack refuses its input instead of guessing."""
    try:
        return attack()
    except InputError:
        return nothing


def clock(device: str) -> Callable[[], float]:
    """Return a clock (s): on a CPU the process's own time, which other processes on the machine do not affect."""
    return time.process_time if device == "cpu" else time.perf_counter
