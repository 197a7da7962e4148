"""DP-SGD's noise as tables and figures show it: in parts of the clipping norm, with the privacy of one release."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from gradleak.defenses import release_epsilon

# The chance with which a release may be worse than its ε says.
DELTA = 1e-5


def private_level(level: float) -> str:
    """Return a level of noise as its ε, one release, in a few characters."""
    epsilon = release_epsilon(level, delta=DELTA)
    return "∞" if math.isinf(epsilon) else f"{epsilon:.2g}"


def noise_axis(axis: Axes, levels: Sequence[float]) -> None:
    """Write levels of noise below places 0, 1, 2 …, each with its ε."""
    axis.set_xticks(range(len(levels)), [f"{level:g}\nε {private_level(float(level))}" for level in levels])
    axis.set_xlabel("noise, in parts of the clipping norm; its ε")
