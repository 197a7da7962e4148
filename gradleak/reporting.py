"""Report the progress and the warnings of long computations; without a listener progress is not shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gradleak.errors import GradleakWarning

T = TypeVar("T")

_steps: Callable[[Iterable[Any], int, str], Iterator[Any]] | None = None
_warn: Callable[[str], None] | None = None


def steps(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items unchanged, and report to the listener how many of `total` are done."""
    return iter(items) if _steps is None else _steps(items, total, description)


def warn(message: str) -> None:
    """Pass a warning to the listener, or to Python's `warnings` if there is no listener."""
    if _warn is None:
        warnings.warn(message, GradleakWarning, stacklevel=2)
    else:
        _warn(message)


def to(
    steps: Callable[[Iterable[Any], int, str], Iterator[Any]] | None, warn: Callable[[str], None] | None = None
) -> None:
    """Set the listeners for progress and warnings; None restores the default."""
    global _steps, _warn
    _steps, _warn = steps, warn
