"""Labels for DP-SGD's noise in tables and figures: in units of the clipping norm, with the privacy of one release."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gradleak.defenses import release_epsilon
from gradleak.show.drawn import drawn, lines, places

# The δ of (ε, δ)-differential privacy.
DELTA = 1e-5


def private_level(level: float) -> str:
    """Return the ε of one release with a level of noise, to two digits: "4.4", "5,400" or "5e9"."""
    epsilon = release_epsilon(level, delta=DELTA)
    if math.isinf(epsilon):
        return "∞"
    shown = f"{epsilon:.2g}"
    return f"{float(shown):,.0f}" if 100 <= epsilon < 1e6 else shown.replace("e+0", "e").replace("e+", "e")


def draw_noise(rows: pd.DataFrame, column: str, **settings: Any) -> Figure:
    """Draw the mean of a column against the level of noise and its ε, a line for each value of the column "line".

    Args:
        rows: The rows, with their level of noise in the column "noise".
        column: A column of shares.
        settings: What else `drawn` takes.
    """
    curves = lines("noise", column, by="line", aside=0.05)
    levels = places("noise", lambda level: f"{level:g}\nε {private_level(float(level))}")
    xlabel = "noise, as a multiple of the clipping norm; below it the ε of one release"
    return drawn(rows, curves, levels, height=3.4, xlabel=xlabel, ylim=(-0.03, 1.05), **settings)
