"""Labels for DP-SGD's noise in tables and figures: in units of the clipping norm, with the privacy of one release."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gradleak.defenses import release_epsilon
from gradleak.show.drawn import drawn, lines, places

# The δ of (ε, δ)-differential privacy.
DELTA = 1e-5


def draw_noise(rows: pd.DataFrame, column: str, **settings: Any) -> Figure:
    """Draw the mean of a column against the level of noise and its ε, a line for each value of the column "line".

    Args:
        rows: The rows, with their level of noise in the column "noise".
        column: A column of shares.
        settings: What else `drawn` takes.
    """
    curves = lines("noise", column, by="line", aside=0.05)

    def text(level: float) -> str:
        return f"{level:g}\nε {release_epsilon(level, delta=DELTA):.2g}".replace("inf", "∞")

    xlabel = "noise, as a multiple of the clipping norm; below it the ε of one release"
    return drawn(rows, curves, places("noise", text), height=3.4, xlabel=xlabel, ylim=(-0.03, 1.05), **settings)
