"""Convert values to those that a record can hold: text, numbers, booleans, None, lists and dicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gradleak.errors import InputError

if TYPE_CHECKING:
    from pydantic import JsonValue
else:
    JsonValue = Any

# A trial's inputs, a row's columns, or a run's parameters, as a record holds them. Reading a record does not validate
# each of its many values, because `plain` made them.
Columns = dict[str, JsonValue]


def plain(value: Any, where: str) -> Any:
    """Convert a value to plain Python: numbers and arrays of numpy and torch to numbers and lists, tuples to lists.

    Args:
        value: The value.
        where: The name of the value in an error's message.

    Raises:
        InputError: The value cannot be stored in a record.
    """
    if value is None or isinstance(value, str | bool):
        return value
    # numpy's float64 is a subclass of float whose repr contains the name of its type.
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), where)
    raise InputError(f"{where} is a {type(value).__name__}: a record holds text, numbers, true, false, lists and dicts")


def worded(value: Any) -> Any:
    """Replace NaN and infinities in a plain value by words, since JSON has no such numbers."""
    return _each(value, lambda one: str(one) if isinstance(one, float) and not math.isfinite(one) else one)


def restored(value: Any) -> Any:
    """Reverse `worded`: replace the words by NaN and infinities."""
    return _each(value, lambda one: float(one) if one in ("nan", "inf", "-inf") else one)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to every single value in lists and dicts."""
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list | tuple) else change(value)
