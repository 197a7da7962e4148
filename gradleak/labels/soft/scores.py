"""Search for the scalar where a caller's score of the label takes the place of a prior's equations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradleak.labels.priors import Score
from gradleak.labels.soft.path import golden
from gradleak.labels.soft.problem import ACCEPT, Problem

# A score is examined on PLANES circles of POINTS points around a label, with a radius of RADIUS of its errors. The
# error is at least FINEST, so that the score's own arithmetic does not matter.
PLANES, POINTS, RADIUS, FINEST = 4, 64, 50.0, 1e-9


def level(label: Tensor, error: Tensor, score: Score) -> Tensor:
    """Return by how much rounding changes a label's score (N, K)."""
    generator = torch.Generator().manual_seed(0)
    signs = 2 * torch.randint(2, (8, label.shape[2]), generator=generator).to(label) - 1
    found, error = score(label), error.clamp(max=1)
    change = torch.stack([(score(label + error * sign) - found).abs() for sign in signs]).mean(dim=0)
    return change.clamp(min=1e-300)


def scored(problem: Problem, ends: Tensor, score: Score) -> tuple[Tensor, Tensor]:
    """Narrow brackets with these `ends` (N, 2K), and return the scalars and the misfits with their slopes (2, N, K).

    The square of the misfit is the score in units of the change that rounding of the label makes to it.
    """

    def value(at: Tensor) -> Tensor:
        return score(problem.labels(at))

    lower, upper = ends.chunk(2, dim=1)
    scalars = golden(value, lower, upper)
    label, error = problem.explained(scalars)
    found, unit = score(label), level(label, error, score)
    # Take the smaller slope of both sides: at the end of an interval of zero score the label is undetermined.
    step = 1e-4 * scalars
    # Noise in the score at its minimum is no part of the slope.
    more = torch.minimum(value(scalars + step), value(scalars - step)) - found
    misfit, steep = torch.stack([found, more]).div_(unit).clamp_(min=0).sqrt_()
    return scalars, torch.stack([misfit, steep / step])


def conditions(label: Tensor, error: Tensor, score: Score, change: Tensor | None = None) -> Tensor:
    """Return how many conditions a score puts on labels near these (N, C): 0, 1, or 2 for two or more (N,).

    `change` (N, C): how far the scalar moves each entry, if the scalar is unknown. A condition on entries that it does
    not move checks no scalar: an entry without probability and without gradient is zero for all of them.

    The labels that fit a single condition form a surface, which every small circle around such a label crosses. Two
    conditions leave fewer labels, which a circle in a random plane misses. Without a condition the whole circle fits.
    """
    generator = torch.Generator().manual_seed(0)
    unit = error.amax(dim=1).clamp(min=FINEST, max=1)[:, None, None]
    turn = 2 * math.pi * torch.arange(POINTS, dtype=torch.float64) / POINTS
    found = torch.zeros_like(unit[:, 0, 0])
    moving = (torch.full_like(label, math.inf) if change is None else change.abs()).unsqueeze(1) > ACCEPT * unit
    for _ in range(PLANES):
        axes = torch.randn(2, label.shape[1], generator=generator, dtype=torch.float64)
        axes = axes.to(label) * moving
        axes = (axes - axes.sum(dim=2, keepdim=True) / moving.sum(dim=2, keepdim=True).clamp(min=1)) * moving
        circle = torch.stack([turn.cos(), turn.sin()], dim=1).to(label) @ axes
        near, far = (score(label.unsqueeze(1) + size * unit * circle) for size in (ACCEPT, RADIUS))
        limit = near.mean(dim=1)
        found = torch.maximum(found, (far.amax(dim=1) > limit).to(found) + (far.amin(dim=1) > limit))
    return found
