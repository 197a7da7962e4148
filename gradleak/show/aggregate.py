"""Summarise rows as a table: one line for each group of rows, one column for each measure of the group.

    aggregate(rows, {"B": "size"}, {"batches": count(), "PSNR": mean("psnr", ".1f"), "exact": mean("exact", ".0%")})

returns a line for each `size` in `rows`: the number of rows, their mean PSNR, and the share of rows that are exact.

A measure is a function from a group of rows to the text of a cell. The functions below return measures. Their argument
`text` says how a number becomes text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pandas as pd

from gradleak.runs.columns import Columns, Text

Measure = Callable[[pd.DataFrame], str]
NOTHING = "–"
# No image that is not lost has so low a PSNR (dB).
LOST = -1000.0


def aggregate(rows: pd.DataFrame, keys: Mapping[str, str], measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Return a table with one line for each group of rows, in the order in which the groups first appear.

    Args:
        rows: The rows to summarise.
        keys: The columns of `rows` whose values define the groups, by their heads in the table.
        measures: The measures of each group, by their heads in the table.

    Examples:
        >>> rows = pd.DataFrame({"size": [1, 1, 8], "psnr": [30.0, 32.0, 20.0]})
        >>> aggregate(rows, {"B": "size"}, {"batches": count(), "PSNR (dB)": mean("psnr", ".1f")})
           B batches PSNR (dB)
        0  1       2      31.0
        1  8       1      20.0
    """
    groups = rows.groupby(list(keys.values()), sort=False) if len(rows) else ()
    lines = [
        dict(zip(keys, map(str, values), strict=True)) | {head: measure(group) for head, measure in measures.items()}
        for values, group in groups
    ]
    return pd.DataFrame(lines, columns=[*keys, *measures])


def cells(
    columns: Columns, *names: str, by: Callable[[str, Text], Measure] | None = None, head: str = "{}"
) -> dict[str, Measure]:
    """Return a measure of each of these declared columns, by the column's head.

    Args:
        columns: The declared columns of a paper.
        names: The columns to measure.
        by: The measure, `only` by default.
        head: The template of the heads, such as "search: {}".
    """
    return {head.format(columns[name].head): (by or only)(name, columns[name].text) for name in names}


def count() -> Measure:
    """Measure the number of rows."""
    return lambda rows: f"{len(rows):,}"


def mean(column: str, text: Text = ".3g") -> Measure:
    """Measure the mean of a column."""
    return lambda rows: cell(rows[column].mean(), text)


def median(column: str, text: Text = ".3g") -> Measure:
    """Measure the median of a column."""
    return lambda rows: cell(rows[column].median(), text)


def least(column: str, text: Text = ".3g") -> Measure:
    """Measure the minimum of a column."""
    return lambda rows: cell(rows[column].min(), text)


def total(column: str, text: Text = ",.0f") -> Measure:
    """Measure the sum of a column."""
    return lambda rows: cell(rows[column].sum(), text)


def only(column: str, text: Text = "{}") -> Measure:
    """Show the value of a column that is the same in all rows of the group."""
    return lambda rows: cell(rows[column].iloc[0], text)


def among(measure: Measure, **where: Hashable) -> Measure:
    """Apply a measure only to the rows in which columns have these values; show a dash if there are none."""

    def measured(rows: pd.DataFrame) -> str:
        own = select(rows, **where)
        return measure(own) if len(own) else NOTHING

    return measured


def joined(between: str, *measures: Measure) -> Measure:
    """Show several measures in one cell, separated by the text `between`."""
    return lambda rows: between.join(measure(rows) for measure in measures)


def select(rows: pd.DataFrame, **where: Hashable) -> pd.DataFrame:
    """Return the rows in which columns have these values."""
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def cell(value: Any, text: Text) -> str:
    """Return a value as the text of a table's cell."""
    if callable(text):
        return text(value)
    return text.format(value) if "{" in text else format(value, text)


def decibels(value: float) -> str:
    """Return a PSNR in dB as text, with one decimal; "lost" for an image whose PSNR is −∞ dB.

    Some records hold the least number of the type for −∞.

    Examples:
        >>> decibels(31.25), decibels(float('-inf')), decibels(-1.8e308)
        ('31.2', 'lost', 'lost')
    """
    return "lost" if value < LOST else f"{value:.1f}"
