"""From gradients to images."""

from gradleak.images.analytic import (
    Inversion,
    LayerReport,
    bias_attack,
    invert_fully_connected,
    trace_fully_connected,
)
from gradleak.images.convolutional import invert_convolutional, trace_convolutional
from gradleak.images.polish import Polished, polished

__all__ = [
    "Inversion",
    "LayerReport",
    "Polished",
    "bias_attack",
    "invert_convolutional",
    "invert_fully_connected",
    "polished",
    "trace_convolutional",
    "trace_fully_connected",
]
