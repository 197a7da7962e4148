"""SPEAR's core (dimitrov2024): a batch out of one Linear layer with a bias, by low rank and the zeros of ReLU.

With δ (B, O) the gradient after the layer and X (B, I) its inputs, ∇W = δᵀ X has rank B, so that δᵀ = L Q for a known
L (O, B) and an unknown Q (B, B). About half of each sample's δ is zero: a column q of Q is what B − 1 rows of L leave
open, if the sample is off in all of them; about 2ᴮ⁻¹ draws of rows a sample. Of all that is drawn, the independent
directions with the most zeros are the samples', for a mixture is zero only where all of its samples are. The bias'
gradient, L Q 1, gives the lengths, and the layer itself says whether the inputs are off where δ is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.devices import least_squares

CHUNK = 4096
# An entry is zero below this share of the largest, and a direction new if this share of it is outside of all others.
ZERO, NEW = 1e-4, 1e-3
# Zeros and units that are off agree in this share of all.
AGREE = 0.98


@dataclass(frozen=True)
class Spear:
    """Inputs (B, I) in float64, in any order, or None where the draws did not meet all samples; the `draws` made."""

    inputs: Tensor | None
    draws: int


def spear(
    weight: Tensor,
    bias: Tensor,
    weight_gradient: Tensor,
    bias_gradient: Tensor,
    batch_size: int,
    *,
    draws: int = 1_000_000,
    seed: int = 0,
) -> Spear:
    """Return the inputs of a Linear layer followed by ReLU, weight (O, I) and bias (O,), from both gradients."""
    generator = torch.Generator().manual_seed(seed)
    left, values, right = torch.linalg.svd(weight_gradient.double(), full_matrices=False)
    factor, rest = left[:, :batch_size], values[:batch_size, None] * right[:batch_size]
    # A unit that is off for all samples tells none of them apart.
    sizes = factor.norm(dim=1)
    alive = factor[sizes > ZERO * sizes.max()]
    found, counts = factor.new_zeros(0, batch_size), factor.new_zeros(0)
    for made in range(CHUNK, draws + CHUNK, CHUNK):
        rows = torch.randint(len(alive), (CHUNK, batch_size - 1), generator=generator).to(factor.device)
        drawn = torch.linalg.svd(alive[rows])[2][:, -1]
        said = (factor @ drawn.T).abs()
        zeros = (said < ZERO * said.amax(dim=0)).sum(dim=0)
        found, counts = torch.cat([found, drawn]), torch.cat([counts, zeros])
        chosen = _sparsest(found, counts)
        found, counts = found[chosen], counts[chosen]
        if len(found) == batch_size:
            lengths = least_squares(factor @ found.T, bias_gradient.double()[:, None])[:, 0]
            inputs = torch.linalg.solve(found.T * lengths, rest)
            delta = (factor @ found.T).abs()
            off = inputs @ weight.detach().double().T + bias.detach().double() <= 0
            if float(((delta < ZERO * delta.amax(dim=0)) == off.T).double().mean()) > AGREE:
                return Spear(inputs, made)
    return Spear(None, made)


def _sparsest(directions: Tensor, zeros: Tensor) -> list[int]:
    """Return which independent directions (N, B) have the most zeros, the sparsest first."""
    outside, chosen = directions.clone(), list[int]()
    for _ in range(directions.shape[1]):
        sizes = outside.norm(dim=1)
        best = int(zeros.where(sizes > NEW, -1).argmax())
        if sizes[best] <= NEW:
            break
        chosen.append(best)
        along = outside[best] / sizes[best]
        outside = outside - (outside @ along)[:, None] * along
    return chosen
