"""How long work says how far it is: in silence, until someone listens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gradleak.errors import GradleakWarning

T = TypeVar("T")

_steps: Callable[[Iterable[Any], int, str], Iterator[Any]] | None = None
_warn: Callable[[str], None] | None = None


def steps(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items as they are; who listens is told how many of `total` are done."""
    return iter(items) if _steps is None else _steps(items, total, description)


def warn(message: str) -> None:
    """Warn the person who waits."""
    if _warn is None:
        warnings.warn(message, GradleakWarning, stacklevel=2)
    else:
        _warn(message)


def to(
    steps: Callable[[Iterable[Any], int, str], Iterator[Any]] | None, warn: Callable[[str], None] | None = None
) -> None:
    """Tell these two from now on; None is silence again."""
    global _steps, _warn
    _steps, _warn = steps, warn
