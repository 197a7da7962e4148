"""Labels for DP-SGD's noise in tables and figures: in units of the clipping norm, with the privacy of one release."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes

from gradleak.defenses import release_epsilon

# The δ of (ε, δ)-differential privacy.
DELTA = 1e-5


def private_level(level: float) -> str:
    """Return the ε of one release with a level of noise, in a few characters."""
    epsilon = release_epsilon(level, delta=DELTA)
    return "∞" if math.isinf(epsilon) else f"{epsilon:.2g}"


def noise_axis(axis: Axes, levels: Sequence[float]) -> None:
    """Label the places 0, 1, 2 … of the horizontal axis with levels of noise and the ε of each."""
    axis.set_xticks(range(len(levels)), [f"{level:g}\nε {private_level(float(level))}" for level in levels])
    axis.set_xlabel("noise, in parts of the clipping norm; its ε")
