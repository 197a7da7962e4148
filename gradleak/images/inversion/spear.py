"""Recover a batch from one Linear layer with a bias by low rank and the zeros of ReLU: SPEAR's core (dimitrov2024).

Let δ (B, O) be the gradient after the layer and X (B, I) the layer's inputs. Then ∇W = δᵀ X has rank B, so δᵀ = L Q
with a known L (O, B) and an unknown Q (B, B). About half of the entries of each sample's δ are zero. If a sample's δ is
zero at B − 1 units, its column of Q is the null vector of these rows of L. Random choices of rows have this property
once in about 2ᴮ⁻¹ draws per sample.
Of all vectors drawn, the independent ones with the most zeros belong to the samples, because a mixture is zero only
where all its samples are. The bias' gradient, L Q 1, gives the vectors' lengths. As a check, ReLU must be inactive for
the recovered inputs where δ is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.devices import least_squares
from gradleak.errors import InputError, check_count

CHUNK = 4096
# Entries below the share ZERO of the largest count as zero. A direction is independent of others if more than the share
# NEW of its length is orthogonal to them.
ZERO, NEW = 1e-4, 1e-3
# The least share of units for which δ is zero exactly where ReLU is inactive.
AGREE = 0.98


@dataclass(frozen=True)
class Spear:
    """The inputs of a layer, as recovered by the attack SPEAR.

    Attributes:
        inputs: The inputs (B, I) in float64, in arbitrary order; None if some samples were not found.
        draws: The number of random selections of rows that were tried.
    """

    inputs: Tensor | None
    draws: int


@checked_arguments(weight="O I", bias="O", weight_gradient="O I", bias_gradient="O")
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
    """Return the inputs of a Linear layer with a bias; a ReLU must follow the layer.

    Args:
        weight: The layer's weight (O, I).
        bias: The layer's bias (O,).
        weight_gradient: The gradient of the weight (O, I).
        bias_gradient: The gradient of the bias (O,).
        batch_size: The number of samples B.
        draws: The largest number of random selections of rows to try.
        seed: The seed of these selections.
    """
    check_count("draws", draws)
    if not 1 <= batch_size <= min(weight.shape):
        raise InputError(f"{batch_size} inputs cannot be found from a gradient of shape {tuple(weight.shape)}")
    generator = torch.Generator().manual_seed(seed)
    left, values, right = torch.linalg.svd(weight_gradient.double(), full_matrices=False)
    factor, remainder = left[:, :batch_size], values[:batch_size, None] * right[:batch_size]
    # A unit that is inactive for all samples gives no equation.
    sizes = factor.norm(dim=1)
    alive = factor[sizes > ZERO * sizes.max()]
    candidates, counts = factor.new_zeros(0, batch_size), factor.new_zeros(0)
    for draws_made in range(CHUNK, draws + CHUNK, CHUNK):
        rows = torch.randint(len(alive), (CHUNK, batch_size - 1), generator=generator).to(factor.device)
        directions = torch.linalg.svd(alive[rows])[2][:, -1]
        entries = (factor @ directions.T).abs()
        zeros = (entries < ZERO * entries.amax(dim=0)).sum(dim=0)
        candidates, counts = torch.cat([candidates, directions]), torch.cat([counts, zeros])
        chosen = _sparsest(candidates, counts)
        candidates, counts = candidates[chosen], counts[chosen]
        if len(candidates) == batch_size:
            lengths = least_squares(factor @ candidates.T, bias_gradient.double()[:, None])[:, 0]
            inputs, singular = torch.linalg.solve_ex(candidates.T * lengths, remainder)
            if singular:
                continue
            delta = (factor @ candidates.T).abs()
            inactive = inputs @ weight.detach().double().T + bias.detach().double() <= 0
            if float(((delta < ZERO * delta.amax(dim=0)) == inactive.T).double().mean()) > AGREE:
                return Spear(inputs, draws_made)
    return Spear(None, draws_made)


def _sparsest(directions: Tensor, zeros: Tensor) -> list[int]:
    """Return the indices of up to B independent directions (N, B) with the most zeros, the sparsest first."""
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
