"""SPEAR's core (dimitrov2024): a batch out of one Linear layer with a bias, by low rank and the zeros of ReLU.

With δ (B, O) the gradient after the layer and X (B, I) its inputs, ∇W = δᵀ X has rank B, so that δᵀ = L Q for a known
L (O, B) and an unknown Q (B, B). About half of each sample's δ is zero: a column q of Q is what B − 1 rows of L leave
open, if the sample is off in all of them. Rows are drawn until every sample's q was met, which has far more zeros than
those drawn; about 2ᴮ⁻¹ draws a sample. The bias' gradient, L Q 1, gives the lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096
# An entry is zero below this share of the largest, and a direction is a sample's if this share of it is zero.
ZERO, SPARSE = 1e-4, 0.35
# Two directions are one beyond this cosine.
SAME = 0.999


@dataclass(frozen=True)
class Spear:
    """Inputs (B, I) in float64, in any order, or None where the draws did not meet all samples; the `draws` made."""

    inputs: Tensor | None
    draws: int


def spear(
    weight_gradient: Tensor, bias_gradient: Tensor, batch_size: int, *, draws: int = 1_000_000, seed: int = 0
) -> Spear:
    """Return the inputs of a Linear layer followed by ReLU, from the gradients of its weight (O, I) and bias (O,)."""
    generator = torch.Generator().manual_seed(seed)
    left, values, right = torch.linalg.svd(weight_gradient.double(), full_matrices=False)
    factor = left[:, :batch_size]
    lengths = factor.norm(dim=1)
    # A unit that is off for all samples tells none of them apart.
    alive = factor[lengths > ZERO * lengths.max()]
    found: list[Tensor] = []
    made = 0
    while made < draws and len(found) < batch_size:
        rows = torch.randint(len(alive), (CHUNK, batch_size - 1), generator=generator).to(factor.device)
        _, sizes, right_rows = torch.linalg.svd(alive[rows])
        # Rows that leave more than one direction open leave mixtures.
        single = sizes.amin(dim=1) > ZERO if batch_size > 1 else torch.ones(CHUNK, dtype=torch.bool)
        open_ = right_rows[single, -1]
        said = (factor @ open_.T).abs()
        zeros = (said < ZERO * said.amax(dim=0)).double().mean(dim=0)
        made += CHUNK
        for one in open_[zeros > SPARSE]:
            if all(float((one @ other).abs()) < SAME for other in found) and len(found) < batch_size:
                found.append(one)
    if len(found) < batch_size:
        return Spear(None, made)
    directions = torch.stack(found, dim=1)
    scales = torch.linalg.lstsq(factor @ directions, bias_gradient.double()[:, None]).solution[:, 0]
    mixing = directions * scales
    return Spear(torch.linalg.solve(mixing, values[:batch_size, None] * right[:batch_size]), made)
