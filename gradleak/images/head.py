"""Use the last layer of a leak: compute logits from features."""

from __future__ import annotations

from torch import Tensor

from gradleak.leak import Leak


def logits_of(leak: Leak, features: Tensor) -> Tensor:
    """Return the logits (B, C) of features (B, I), in float64."""
    scores = features @ leak.weight.double().T
    return scores if leak.bias is None else scores + leak.bias.double()
