"""The number of successes among trials as tables show it, and the confidence interval of the success probability."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from gradleak.show.aggregate import Measure


def successes(column: str) -> Measure:
    """Measure in how many rows a column is true."""
    return lambda rows: f"{rows[column].sum():.0f} of {len(rows)}"


def wilson_interval(values: pd.Series[Any]) -> tuple[float, float]:
    """Return the 95 % confidence interval (Wilson) of the success probability."""
    return wilson(int(values.sum()), len(values))


@functools.cache
def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval (Wilson) of a probability after so many successes in `count` trials."""
    found = binomtest(successes, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
