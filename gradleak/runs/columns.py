"""Declare the columns of a paper's pages once: what each holds, and how tables, figures and comparisons show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradleak.errors import InputError
from gradleak.runs.kinds import Kind, kind_of
from gradleak.runs.plain import Columns as Cells

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
    """The columns that the rows of a paper's pages may have, by name."""

    def kind(self, name: str) -> Kind:
        """Return the declared kind of a column, or else the kind that the name of the column suggests."""
        return (self[name].kind if name in self else None) or kind_of(name)

    def check(self, row: Cells) -> None:
        """Refuse a row with a column that is not declared."""
        if unknown := sorted(row.keys() - self.keys()):
            raise InputError(f"a row has the columns {', '.join(unknown)}, which are not declared")
