"""Use the last layer of a leak: recover the batch's labels and features, and compute logits from features."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradleak.labels.soft.batch.recover import BatchLabels, recover_batch
from gradleak.leak import Leak


def labels_of(leak: Leak, **options: Any) -> BatchLabels:
    """Recover the labels and features of a leak's batch; the options are those of `recover_batch`."""
    return recover_batch(
        leak.weight_gradient,
        leak.weight,
        batch_size=leak.batch_size,
        bias=leak.bias,
        bias_gradient=leak.bias_gradient,
        **options,
    )


def logits_of(leak: Leak, features: Tensor) -> Tensor:
    """Return the logits (B, C) of features (B, I), in float64."""
    scores = features @ leak.weight.double().T
    return scores if leak.bias is None else scores + leak.bias.double()
