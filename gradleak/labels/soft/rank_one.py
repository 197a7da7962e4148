"""Reduce a single sample's last-layer gradient, an outer product, to the two C-vectors that label recovery needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.special import gammaincinv
from torch import Tensor

from gradleak.devices import entries_at_once
from gradleak.errors import InputError
from gradleak.labels.soft.path import joined

# Entries of the gradients that are converted to float64 at a time on a CPU.
CHUNK_ELEMENTS = 2**20
# Copies of a chunk that are held at once, in float64.
COPIES = 4
# Gradients are scaled to a largest entry of 1, so only zero gradients have shorter vectors than this.
LEAST = 1e-12
# The probability that an upper bound on unknown noise is too low.
UNLIKELY = 1e-5


@dataclass(frozen=True)
class RankOne:
    """The best rank-one fit G ≈ c vᵀ of each of N gradients, with ‖v‖ = 1 and Σv ≥ 0.

    With x = t v the label is ŷ(t) = softmax(t W v + b) − c / t. This is Eqn. 4 of wang2024 with the scalar t = ‖x‖.

    Attributes:
        direction: v (N, I).
        logits: a = W v (N, C).
        errors: c (N, C).
        size: ‖G‖ (N,).
        misfit: ‖G − c vᵀ‖ / ‖G‖ (N,).
        same_sign: Whether all features can have the same sign (N,).
    """

    direction: Tensor
    logits: Tensor
    errors: Tensor
    size: Tensor
    misfit: Tensor
    same_sign: Tensor


def reduce_gradients(weight_gradients: Tensor, weight: Tensor) -> RankOne:
    """Return the best rank-one fits of gradients (N, C, I), computed in float64."""
    if weight_gradients.ndim != 3 or weight_gradients.shape[1:] != weight.shape:
        raise InputError(
            f"weight gradients must be (C, I) or (N, C, I) with weight's (C, I) = {tuple(weight.shape)}; "
            f"got {tuple(weight_gradients.shape)}"
        )
    entries = entries_at_once(weight_gradients.device, CHUNK_ELEMENTS, 8 * COPIES)
    chunk = max(1, entries // weight.numel())
    parts = [_reduce(part) for part in weight_gradients.split(chunk)]
    direction, errors, size, misfit = (joined(list(values)) for values in zip(*parts, strict=True))
    # Features that are only noise may have the other sign, so compare their share of the squared length with the
    # misfit.
    wrong = direction.clamp(max=0).square().sum(dim=1)
    return RankOne(direction, direction @ weight.double().T, errors, size, misfit, wrong <= 1e-6 + misfit.square())


def _reduce(gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return direction, errors, size and misfit; each statement below passes over the gradients once."""
    gradients = gradients.double()
    largest = torch.linalg.vector_norm(gradients, torch.inf, dim=(1, 2), keepdim=True)
    # Squares of small numbers would underflow.
    scale = largest.clamp_(min=math.ulp(0.0))
    gradients = gradients / scale
    rows = torch.linalg.vector_norm(gradients, dim=2, keepdim=True)
    longest = rows.argmax(dim=1, keepdim=True)
    # One power iteration is enough: a sample's rows are parallel up to rounding, so the longest is almost exact.
    direction = gradients.mT @ (gradients @ gradients.take_along_dim(longest, dim=1).mT)
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp_(min=LEAST)
    direction /= length.copysign_(direction.sum(dim=1, keepdim=True))
    errors = gradients @ direction
    size = torch.linalg.vector_norm(rows, dim=(1, 2))
    # Subtract entry by entry: ‖G‖² − ‖c‖² would keep only eight digits.
    rest = torch.linalg.vector_norm(gradients.addcmul(errors, direction.mT, value=-1), dim=(1, 2))
    misfit = rest.div_(size.clamp(min=LEAST))
    return direction.squeeze(2), (errors * scale).squeeze(2), size * scale.flatten(), misfit


def noise_bound(residual: Tensor, entries: int) -> Tensor:
    """Return an upper bound on the standard deviation of noise from the norm of what a fit leaves of a gradient.

    `entries`: the degrees of freedom that the fit leaves; the square of the norm has a χ² distribution with so many.
    """
    if entries < 1:
        raise InputError("noise cannot be estimated where a fit of the gradient leaves nothing: state the noise")
    return residual / math.sqrt(2 * float(gammaincinv(entries / 2, UNLIKELY)))
