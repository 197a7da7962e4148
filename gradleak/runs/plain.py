"""Values as a record holds them: text, numbers, true, false, lists and dicts; what JSON lacks is a word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradleak.errors import InputError

if TYPE_CHECKING:
    from pydantic import JsonValue
else:
    JsonValue = Any

# A trial's inputs, a row's columns, or a run's parameters, as a record holds them. Reading a record does not look at
# each of its values, of which there are many: its digest says that they are those that were written.
Columns = dict[str, JsonValue]


def plain(value: Any, where: str) -> Any:
    """Return what a record can hold of a value: numbers of numpy and torch become Python's own, tuples lists."""
    if value is None or isinstance(value, str | bool):
        return value
    # numpy's float64 is a float, and would be written with its type's name.
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
    """Return a plain value for a file: NaN and infinities become words."""
    if isinstance(value, dict):
        return {key: worded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [worded(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def restored(value: Any) -> Any:
    """Return a plain value as it was before `worded`."""
    if isinstance(value, dict):
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
