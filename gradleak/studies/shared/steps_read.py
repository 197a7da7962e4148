"""Draw how a sentence is read step by step: which words lie in the row span of a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gradleak.show import figures
from gradleak.show.drawn import drawn, places, points


def draw_steps(steps: pd.DataFrame, others: str, labels: Sequence[str]) -> Figure:
    """Draw the distance of the right word from the span, and those of other words, at each step.

    Args:
        steps: The rows of a sentence, with the columns step and miss; the distances are relative to a word's vector.
        others: The column with a list of the other words' distances.
        labels: The right word of each step.
    """
    every = steps.explode(others).astype({others: float})
    every["aside"] = every["step"] + np.random.default_rng(0).uniform(-0.3, 0.3, len(every))
    right, other = figures.COLOURS[1:3]
    return drawn(
        every,
        points("step", "miss", "right word", right, s=36, marker="D", zorder=3),
        points("aside", others, "other words", other, s=10, alpha=0.5),
        places("step", lambda step: labels[int(step)]),
        height=3.4,
        legend=2,
        yscale="log",
        ylim=(1e-9, 3),
        ylabel="share of the vector outside the span",
    )
