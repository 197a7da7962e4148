"""Declare columns of a paper's pages once: what they hold, their form in tables, and how their values are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradleak.runs.kinds import Kind, kind_of

# How a value becomes text: a format specification such as ".1f", a template such as "{:.1f} dB", or a function.
Text = str | Callable[[Any], str]


@dataclass(frozen=True)
class Column:
    """A column of rows.

    Attributes:
        head: What the column holds, with the unit, as the head of a table's column.
        text: How a value becomes text.
        kind: How values are compared with those of an earlier run; None if the column's name says it.
    """

    head: str
    text: Text = "{}"
    kind: Kind | None = None


class Columns(dict[str, Column]):
    """The declared columns of a paper's pages, by name; a column with nothing to declare is not among them."""

    def kind(self, name: str) -> Kind:
        """Return the declared kind of a column, or else the kind that the name of the column suggests."""
        return (self[name].kind if name in self else None) or kind_of(name)
