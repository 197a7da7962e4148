"""Define the losses that a client may train with, and their derivatives by the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

# The target of a position without one, as in torch's cross_entropy.
PADDING = -100


def up_to_last(targets: Tensor) -> Tensor:
    """Return whether each position of the targets (B, T) has a target, or comes before a position that has one."""
    return (targets != PADDING).flip(1).cumsum(dim=1).flip(1) > 0


class Loss(Protocol):
    """A loss of logits (B, C) and soft labels (B, C)."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample (B,)."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class (B, C) that the logits give."""

    def weight(self, probability: Tensor) -> Tensor:
        """Return φ for the probability p of the label: the loss's derivative by the logits is φ (p − y)."""


class _Softmax:
    """The part that losses of a softmax with a temperature have in common."""

    temperature: float

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax (B, C) of the logits divided by the temperature."""
        return (logits / self.temperature).softmax(dim=-1)


@dataclass(frozen=True)
class CrossEntropy(_Softmax):
    """Cross-entropy of soft labels, with the logits divided by a `temperature`."""

    temperature: float = 1.0

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample (B,)."""
        return -(labels * F.log_softmax(logits / self.temperature, dim=-1)).sum(dim=-1)

    def weight(self, probability: Tensor) -> Tensor:
        """Return 1/τ."""
        return torch.full_like(probability, 1 / self.temperature)


@dataclass(frozen=True)
class Focal(_Softmax):
    """Focal loss (lin2017) of one-hot labels: cross-entropy times α (1 − p)^γ, with the label's probability p."""

    alpha: float = 1.0
    gamma: float = 2.0
    temperature: float = 1.0

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample (B,)."""
        log_probabilities = F.log_softmax(logits / self.temperature, dim=-1)
        return -(labels * self.alpha * _rest(log_probabilities.exp()).pow(self.gamma) * log_probabilities).sum(dim=-1)

    def weight(self, probability: Tensor) -> Tensor:
        """Return Φ(α, p, γ)/τ."""
        rest = _rest(probability)
        factor = 1 - self.gamma * torch.xlogy(probability, probability) / rest
        return self.alpha * rest.pow(self.gamma) * factor / self.temperature


def _rest(probability: Tensor) -> Tensor:
    # Never zero, since a power less than 1 has an infinite slope there.
    return (1 - probability).clamp(min=torch.finfo(probability.dtype).tiny)


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Binary cross-entropy of every class, summed over classes: a sigmoid instead of a softmax."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample (B,)."""
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the sigmoids (B, C) of the logits."""
        return logits.sigmoid()

    def weight(self, probability: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(probability)
