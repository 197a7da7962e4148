"""Convert real numbers to whole counts that sum to the batch size."""

from __future__ import annotations

import torch
from torch import Tensor

# Entries of the ladders that are computed at a time.
ENTRIES = 2**24


def raised(levels: Tensor, step: Tensor, count: Tensor) -> Tensor:
    """Raise the lowest of the levels (N, C) by a step (N,), `count` times (N,); return how often each was raised.

    Choosing the lowest level again and again is the same as taking the lowest rungs of all the ladders level + k ·
    step.
    """
    counts = torch.zeros_like(levels, dtype=torch.long)
    most = int(count.max()) if count.numel() else 0
    if most <= 0:
        return counts
    size = max(1, ENTRIES // (levels.shape[1] * most))
    rungs = torch.arange(most, device=levels.device, dtype=levels.dtype)
    for rows in torch.arange(len(levels), device=levels.device).split(size):
        ladders = levels[rows].unsqueeze(2) + step[rows].clamp(min=0)[:, None, None] * rungs
        lowest = ladders.flatten(1).topk(most, dim=1, largest=False, sorted=True).indices // most
        taken = (rungs < count[rows].unsqueeze(1)).long()
        counts[rows] = counts[rows].scatter_add_(1, lowest, taken)
    return counts


def rounded(values: Tensor, count: int) -> Tensor:
    """Return the whole numbers (N, C), none negative, that sum to `count` and are nearest to the values."""
    step = values.new_ones(len(values))
    return raised(-values, step, torch.full_like(step, count, dtype=torch.long))
