"""Tables that sum up rows: a line for each group, a column for each measure of it.

    summary(rows, {"B": "size"}, {"batches": count(), "PSNR": mean("psnr", ".1f"), "exact": share("exact")})

gives a line for each `size` in `rows`, with how many rows it has, their mean PSNR, and the share of them that is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pandas as pd

# How a number becomes a cell: a format such as ".1f" or "{:.1f} dB", or a function.
Text = str | Callable[[Any], str]
Measure = Callable[[pd.DataFrame], str]
NOTHING = "–"


def summary(rows: pd.DataFrame, keys: Mapping[str, str], measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Return a line for each combination of values in some columns, in the order in which these first appear.

    `keys`: the table's heads with the columns whose values make the groups; `measures`: heads with what is measured.
    """
    groups = rows.groupby(list(keys.values()), sort=False)
    lines = [
        dict(zip(keys, map(str, values), strict=True)) | {head: measure(group) for head, measure in measures.items()}
        for values, group in groups
    ]
    return pd.DataFrame(lines, columns=[*keys, *measures])


def count() -> Measure:
    """Measure how many rows there are."""
    return lambda rows: f"{len(rows):,}"


def mean(column: str, text: Text = ".3g") -> Measure:
    """Measure the mean of a column."""
    return lambda rows: cell(rows[column].mean(), text)


def spread(column: str, text: Text = ".3g") -> Measure:
    """Measure the mean of a column and its standard deviation."""
    return lambda rows: f"{cell(rows[column].mean(), text)} ± {cell(rows[column].std(), text)}"


def spread_if_many(column: str, text: Text = ".3g") -> Measure:
    """Measure the mean of a column and, where there are several rows, its standard deviation."""
    return lambda rows: (spread if len(rows) > 1 else mean)(column, text)(rows)


def median(column: str, text: Text = ".3g") -> Measure:
    """Measure the median of a column."""
    return lambda rows: cell(rows[column].median(), text)


def least(column: str, text: Text = ".3g") -> Measure:
    """Measure the least value of a column."""
    return lambda rows: cell(rows[column].min(), text)


def greatest(column: str, text: Text = ".3g") -> Measure:
    """Measure the greatest value of a column."""
    return lambda rows: cell(rows[column].max(), text)


def ranged(middle: Measure, column: str, text: Text = ".3g") -> Measure:
    """Measure the middle of a column and, in brackets, its least and its greatest value."""
    low, high = least(column, text), greatest(column, text)
    return lambda rows: f"{middle(rows)} ({low(rows)} … {high(rows)})"


def total(column: str, text: Text = ",.0f") -> Measure:
    """Measure the sum of a column."""
    return lambda rows: cell(rows[column].sum(), text)


def share(column: str, text: Text = ".0%") -> Measure:
    """Measure in which share of the rows a column is true."""
    return mean(column, text)


def only(column: str, text: Text = "{}") -> Measure:
    """Give the first value of a column that is the same in all rows."""
    return lambda rows: cell(rows[column].iloc[0], text)


def among(measure: Measure, **where: Hashable) -> Measure:
    """Measure those rows alone in which columns have these values; a dash where there are none."""

    def measured(rows: pd.DataFrame) -> str:
        own = select(rows, **where)
        return measure(own) if len(own) else NOTHING

    return measured


def where_least(column: str, measure: Measure) -> Measure:
    """Measure the one row in which a column is least."""
    return lambda rows: measure(rows.sort_values(column).iloc[:1])


def joined(between: str, *measures: Measure) -> Measure:
    """Put several measures into one cell, with a text between them."""
    return lambda rows: between.join(measure(rows) for measure in measures)


def select(rows: pd.DataFrame, **where: Hashable) -> pd.DataFrame:
    """Return the rows in which columns have these values."""
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def cell(value: Any, text: Text) -> str:
    """Return a value as a table shows it."""
    if callable(text):
        return text(value)
    return text.format(value) if "{" in text else format(value, text)


def decibels(value: float) -> str:
    """Return a signal-to-noise ratio; of an image that was lost altogether it is minus infinity."""
    return "lost" if value == -math.inf else f"{value:.1f}"


def percent(digits: int = 0) -> Callable[[float], str]:
    """Return how a number that is a percentage already is shown, with so many digits behind the point."""
    return lambda value: f"{value:.{digits}f} %"
