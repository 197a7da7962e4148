"""Count labels by the posterior attack (posterior2023): from the bias gradient and predictions on auxiliary data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.hard.knowledge import Knowledge
from gradleak.labels.hard.rounding import rounded
from gradleak.leak import HeadLeaks
from gradleak.losses import CrossEntropy, Loss


@dataclass(frozen=True)
class Posteriors:
    """Mean probability (C,) of every class, on samples of this class and on samples of all others."""

    positive: Tensor
    negative: Tensor


def posteriors(scores: Tensor, labels: Tensor, loss: Loss | None = None) -> Posteriors:
    """Estimate posteriors from the logits (M, C) of auxiliary samples and their classes (M,)."""
    probabilities = (loss or CrossEntropy()).probabilities(scores.double())
    classes = scores.shape[1]
    one_hot = torch.nn.functional.one_hot(labels, classes).to(probabilities)
    counts = one_hot.sum(dim=0)
    if (counts == 0).any() or (counts == len(labels)).any():
        missing = ((counts == 0) | (counts == len(labels))).nonzero()[:5, 0].tolist()
        raise InputError(f"auxiliary samples of every class and of others are needed; they lack for classes {missing}")
    return Posteriors(
        (one_hot * probabilities).sum(dim=0) / counts,
        ((1 - one_hot) * probabilities).sum(dim=0) / (len(labels) - counts),
    )


def posterior(heads: HeadLeaks, known: Knowledge) -> Tensor:
    """Return the counts (N, C) of every label in N gradients, with posteriors from the auxiliary samples."""
    assert heads.bias_gradients is not None
    _, scores, labels = known.others
    estimate, size = posteriors(scores, labels, known.loss), heads.batch_size
    values = posterior_values(heads.bias_gradients, size, estimate, loss=known.loss, epsilon=known.epsilon)
    return rounded(values, size)


def posterior_values(
    bias_gradient: Tensor,
    batch_size: int,
    known: Posteriors,
    *,
    loss: Loss | None = None,
    epsilon: float = 0.0,
) -> Tensor:
    """Return how often each label occurs in N bias gradients (N, C): the real numbers λ of the paper's equation 3.

    Threat model: gradients, the model and auxiliary data of the same kind. Known: batch size, the loss, and the labels'
    smoothing, ε/(C − 1) for each wrong class. The counts are the nearest whole numbers that sum to the batch size.
    """
    biases = bias_gradient.double()
    positive, negative = known.positive.to(biases), known.negative.to(biases)
    weights = (loss or CrossEntropy()).weight(positive)
    high, low = 1 - epsilon, epsilon / (biases.shape[1] - 1)
    missed = (negative - low) - biases / weights
    counts: Tensor = batch_size * missed / ((negative - low) - (positive - high))
    return counts
