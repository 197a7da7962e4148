"""The confidence interval of the probability of success."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
from scipy.stats import binomtest


def wilson_interval(values: pd.Series[Any]) -> tuple[float, float]:
    """Return the 95 % confidence interval (Wilson) of the success probability."""
    return wilson(int(values.sum()), len(values))


@functools.cache
def wilson(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval (Wilson) of a probability after so many successes in `count` trials."""
    found = binomtest(successes, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
