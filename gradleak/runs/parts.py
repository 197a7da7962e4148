"""Keep the finished parts of a long trial in the cache, so that a trial that was stopped continues behind them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property

from gradleak.errors import StorageError
from gradleak.runs.plain import Columns, plain
from gradleak.runs.records import Trial
from gradleak.runs.trials import Trials


class Parts:
    """The finished parts of one trial.

    Attributes:
        seconds: The time that an earlier, stopped attempt spent on the parts that were taken from the cache.
    """

    def __init__(self, study: str, inputs: Columns, decides: Callable[[], str]) -> None:
        self.seconds = 0.0
        self._study, self._inputs, self._decides = study, inputs, decides
        self._kept: list[Trial] = []

    def rows(self, name: str, compute: Callable[[], Sequence[Columns]]) -> list[Columns]:
        """Return the rows of a part, as the function `rows` does."""
        inputs = self._inputs | {"finished": name}
        if any(part.inputs == inputs for part in self._kept):
            raise ValueError(f"two parts of a trial have the name '{name}'")
        part = self._cache.get(inputs) if self._cache else None
        if part is None:
            started = time.perf_counter()
            rows = plain(list(compute()), f"rows of '{self._study}'")
            part = Trial(inputs=inputs, rows=rows, seconds=time.perf_counter() - started)
            if self._cache:
                self._cache.put(part)
        else:
            self.seconds += part.seconds
        self._kept.append(part)
        return part.rows

    def forget(self) -> None:
        """Remove the parts from the cache, since the trial has ended."""
        for part in self._kept:
            if self._cache:
                self._cache.forget(part.inputs)

    @cached_property
    def _cache(self) -> Trials | None:
        """The cache; None where it cannot be written, so that nothing is kept."""
        decided = self._decides()
        try:
            return Trials(self._study, lambda _: decided)
        except StorageError:
            return None


_RUNNING: ContextVar[Parts | None] = ContextVar("_RUNNING", default=None)


@contextlib.contextmanager
def of(parts: Parts) -> Iterator[None]:
    """Keep the parts that `rows` computes within the block."""
    token = _RUNNING.set(parts)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def rows(name: str, compute: Callable[[], Sequence[Columns]]) -> list[Columns]:
    """Return the rows of a part of the trial that is running: from the cache, if the part ended before a stop.

    Args:
        name: The name of the part within the trial.
        compute: Computes the rows from the trial's inputs alone, whatever other parts did before.
    """
    running = _RUNNING.get()
    return list(compute()) if running is None else running.rows(name, compute)
