"""Restore labels by GradInversion's rule (yin2021): the batch's classes have the most negative entries."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradleak.errors import InputError, unknown

Rule = Literal["minimum", "sum"]


def gradinversion(weight_gradient: Tensor, batch_size: int, rule: Rule = "minimum") -> Tensor:
    """Return counts (N, C), each 0 or 1: the batch's classes are those with the lowest rows.

    Threat model: gradients only. Known: batch size, one-hot labels, no class twice, features that are not negative.
    `rule`: a row is compared by its least entry ("minimum", as published) or by its sum ("sum").
    """
    classes = weight_gradient.shape[1]
    if batch_size > classes:
        raise InputError(f"GradInversion's rule has no class twice: {batch_size} samples do not fit {classes} classes")
    if rule not in ("minimum", "sum"):
        raise unknown("rule", rule, ["minimum", "sum"])
    heights = weight_gradient.amin(dim=2) if rule == "minimum" else weight_gradient.sum(dim=2)
    lowest = heights.topk(batch_size, dim=1, largest=False).indices
    return torch.zeros_like(heights, dtype=torch.long).scatter_(1, lowest, 1)
