"""Report the progress and the warnings of long computations; without a listener progress is not shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gradleak.errors import GradleakWarning

T = TypeVar("T")

_steps: Callable[[Iterable[Any], int, str], Iterator[Any]] | None = None


def steps(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items unchanged, and report to the listener how many of `total` are done."""
    return iter(items) if _steps is None else _steps(items, total, description)


def warn(message: str) -> None:
    """Warn the user about a problem that was solved."""
    warnings.warn(message, GradleakWarning, stacklevel=2)


def to(steps: Callable[[Iterable[Any], int, str], Iterator[Any]] | None) -> None:
    """Set the listener for progress; None shows no progress."""
    global _steps
    _steps = steps
