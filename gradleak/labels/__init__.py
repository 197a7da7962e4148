"""From gradients to labels."""

from gradleak.labels.scalar import (
    PRIORS,
    LabelPath,
    Minima,
    find_minima,
    label_loss,
    label_path,
    nonnegative_intervals,
)

__all__ = [
    "PRIORS",
    "LabelPath",
    "Minima",
    "find_minima",
    "label_loss",
    "label_path",
    "nonnegative_intervals",
]
