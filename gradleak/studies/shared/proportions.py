"""How many of some trials succeeded, as tables show it, and where the share of successes lies."""

from __future__ import annotations

from typing import Any

import pandas as pd
from scipy.stats import binomtest

from gradleak.show.summaries import Measure


def successes(column: str) -> Measure:
    """Measure in how many of the rows a column is true."""
    return lambda rows: _successes(rows[column])


def successes_with_interval(column: str) -> Measure:
    """Measure in how many of the rows a column is true, and in which share of all such rows it is, with 95 %."""

    def measured(rows: pd.DataFrame) -> str:
        low, high = wilson_interval(rows[column])
        return f"{_successes(rows[column])} ({low:.0%} to {high:.0%})"

    return measured


def _successes(values: pd.Series[Any]) -> str:
    return f"{values.sum():.0f} of {len(values)}"


def wilson_interval(values: pd.Series[Any]) -> tuple[float, float]:
    """Return where the probability of success lies with 95 %, from successes and failures."""
    found = binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
