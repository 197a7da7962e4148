"""One sample's last-layer gradient is an outer product, and all an attacker can use of it is two C-vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.devices import entries_at_once
from gradleak.errors import InputError
from gradleak.labels.soft.path import joined

# On a CPU gradients are brought to float64 this many entries at a time.
CHUNK_ELEMENTS = 2**20
# How many float64 copies of a chunk are held at once.
COPIES = 4
# Largest entries are brought to 1, so that lengths below this are those of zero gradients.
LEAST = 1e-12


@dataclass(frozen=True)
class RankOne:
    """The best rank-one fit G ≈ c vᵀ of each of N gradients, ‖v‖ = 1, oriented so that Σv ≥ 0.

    With x = t v the label is ŷ(t) = softmax(t W v + b) − c / t, which is Eqn. 4 of wang2024 with its scalar measured in
    units of ‖x‖. `direction` (N, I): v; `logits` (N, C): a = W v; `errors` (N, C): c; `size` (N,): ‖G‖;
    `misfit` (N,): ‖G − c vᵀ‖ / ‖G‖; `same_sign` (N,): whether all features can have one sign.
    """

    direction: Tensor
    logits: Tensor
    errors: Tensor
    size: Tensor
    misfit: Tensor
    same_sign: Tensor


def reduce_gradients(weight_gradients: Tensor, weight: Tensor) -> RankOne:
    """Reduce gradients (N, C, I) to their best rank-one fits, in float64 whatever their precision."""
    if weight_gradients.ndim != 3 or weight_gradients.shape[1:] != weight.shape:
        raise InputError(
            f"weight gradients must be (C, I) or (N, C, I) with weight's (C, I) = {tuple(weight.shape)}; "
            f"got {tuple(weight_gradients.shape)}"
        )
    entries = entries_at_once(weight_gradients.device, CHUNK_ELEMENTS, 8 * COPIES)
    chunk = max(1, entries // weight.numel())
    parts = [_reduce(part) for part in weight_gradients.split(chunk)]
    direction, errors, size, misfit = (joined(list(values)) for values in zip(*parts, strict=True))
    # A feature that is noise alone may have the other sign; what counts is how much of the length it has.
    wrong = direction.clamp(max=0).square().sum(dim=1)
    return RankOne(direction, direction @ weight.double().T, errors, size, misfit, wrong <= 1e-6 + misfit.square())


def _reduce(gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return direction, errors, size and misfit; every line below is one pass over the gradients."""
    gradients = gradients.double()
    largest = torch.linalg.vector_norm(gradients, torch.inf, dim=(1, 2), keepdim=True)
    if not math.isfinite(largest.amax()):
        bad = (~largest.isfinite()).nonzero()[:, 0].tolist()
        raise InputError(
            f"weight gradients hold NaN or infinite values: {len(bad)} of {len(gradients)}, first {bad[0]}"
        )
    # Squares of small numbers would be zero.
    scale = largest.clamp_(min=math.ulp(0.0))
    gradients = gradients / scale
    rows = torch.linalg.vector_norm(gradients, dim=2, keepdim=True)
    longest = rows.argmax(dim=1, keepdim=True)
    # One power iteration: the rows of one sample agree to rounding, so the largest is all but exact already.
    direction = gradients.mT @ (gradients @ gradients.take_along_dim(longest, dim=1).mT)
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp_(min=LEAST)
    direction /= length.copysign_(direction.sum(dim=1, keepdim=True))
    errors = gradients @ direction
    size = torch.linalg.vector_norm(rows, dim=(1, 2))
    # Subtracted entry by entry: ‖G‖² − ‖c‖² would keep eight digits only.
    rest = torch.linalg.vector_norm(gradients.addcmul(errors, direction.mT, value=-1), dim=(1, 2))
    misfit = rest.div_(size.clamp(min=LEAST))
    return direction.squeeze(2), (errors * scale).squeeze(2), size * scale.flatten(), misfit
