"""Find brackets of the scalar that may hold an answer, where the gradient's scale is known.

A loss on a grid of scalars has its minima there. With many classes, ranges of the scalar that cannot contain an answer
are excluded from the grid (see `intervals`).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.intervals import excluded
from gradleak.labels.soft.path import padded
from gradleak.labels.soft.problem import Problem

# The grid ends where the largest two logits differ by this: only one class has any probability.
SATURATED = 1e3
# The deepest minima of a sample's grid that are refined.
MINIMA_KEPT = 8
# A grid whose points times classes exceed MANY is first divided into RANGES ranges, most of which intervals exclude.
MANY, RANGES = 50_000, 80


def brackets(problem: Problem, prior: LabelPrior | Score, grids: tuple[tuple[float, float, float], ...]) -> Tensor:
    """Return the ends (N, 2K) of brackets around minima of the loss: first the K lower ends, then the upper ends.

    `grids`: (start, stop, relative step) of each part of the grid, in units of the least scalar.
    """
    comb = _comb(grids, problem.logits.dtype, problem.logits.device)
    points = min(len(comb), MANY // problem.classes + RANGES)
    ends = [_minima(part, _grid(part, comb), prior) for part in problem.parts(points)]
    if len(ends) == 1:
        return ends[0]
    most = max(own.shape[1] for own in ends) // 2
    return torch.cat([torch.cat([padded(half, most) for half in own.chunk(2, dim=1)], dim=1) for own in ends])


def _grid(problem: Problem, comb: Tensor) -> Tensor:
    """Return scalars (N, K): `comb` times the least one, up to where only one class has any probability."""
    top, second = problem.logits.topk(2, dim=1).values.split(1, dim=1)
    least = problem.least[:, None]
    spread = 0.0 if problem.bias is None else problem.bias.max() - problem.bias.min()
    last = (SATURATED + spread) / (top - second).clamp_(min=torch.finfo(top.dtype).tiny)
    reach = (last / least).clamp_(min=10)
    # Repeat the end point so that it can be a minimum.
    count = int(torch.searchsorted(comb, reach.amax())) + 2
    return least * torch.minimum(comb[:count], reach)


@functools.cache
def _comb(grids: tuple[tuple[float, float, float], ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return all points of these grids, each (start, stop, relative step)."""
    parts = []
    for start, stop, step in grids:
        # Start three steps early, so that a minimum at the least scalar itself has a neighbour on either side.
        begin = math.log(start) - (3 * step if start == 1 else -step)
        count = math.ceil((math.log(stop) - begin) / step) + 1
        parts.append(torch.linspace(begin, math.log(stop), count, dtype=dtype, device=device).exp())
    return torch.cat(parts)


def _minima(part: Problem, grid: Tensor, prior: LabelPrior | Score) -> Tensor:
    """Return the ends (N, 2K) of the grid cells around each sample's deepest minima: K lower and K upper ones.

    K is at most MINIMA_KEPT.
    """
    many = grid.shape[1] * part.classes > MANY and isinstance(prior, LabelPrior)
    loss = _loss_where_possible(part, grid, prior) if many else _grid_loss(part, grid, prior)  # type: ignore[arg-type]
    inner = loss[:, 1:-1]
    left, right = loss[:, :-2], loss[:, 2:]
    # Rounding makes ripples on flat stretches; a minimum must be deeper.
    dips = (inner <= torch.minimum(left, right)) & (inner < torch.maximum(left, right) * (1 - 1e-9))
    # The ends count as minima: a label that the gradient hardly determines is explained up to the end.
    inner.masked_fill_(~dips, math.inf)
    best = loss.topk(min(MINIMA_KEPT, loss.shape[1]), dim=1, largest=False)
    index = best.indices[:, : max(1, int((best.values < math.inf).sum(dim=1).amax()))]
    return grid.gather(1, torch.cat([index - 1, index + 1], dim=1).clamp_(0, grid.shape[1] - 1))


def _loss_where_possible(part: Problem, grid: Tensor, prior: LabelPrior) -> Tensor:
    """Return the loss (N, K) where intervals do not exclude the scalar, and inf elsewhere."""
    last = grid.shape[1] - 1
    size = max(1, last // RANGES)
    edges = torch.arange(0, last + size, size, device=grid.device).clamp(max=last)
    row, place = (~excluded(part, grid[:, edges], prior)).nonzero(as_tuple=True)
    point = (place[:, None] * size + torch.arange(size + 1, device=grid.device)).clamp(max=last)
    loss = torch.full_like(grid, math.inf)
    loss[row[:, None], point] = _grid_loss(part[row], grid[row[:, None], point], prior)
    return loss


def _grid_loss(part: Problem, grid: Tensor, prior: LabelPrior | Score) -> Tensor:
    """Return Σ |t rᵢ| (N, K), the misfit in the gradient's units, which does not vanish as t grows.

    Residuals are not squared: with a saturated softmax, probabilities of 1e-200 determine t. Negative entries add to
    the loss where the residuals ignore them. Otherwise ripples on a flat stretch of invalid labels would look like
    minima.
    """
    if not isinstance(prior, LabelPrior):
        scores: Tensor = prior(part.labels(grid))
        return scores * grid.square()  # a score is usually a square
    label = part.grid_probabilities(grid)
    label.addcmul_(part.ratios.unsqueeze(2), grid.reciprocal().unsqueeze(1), value=-1)
    named = label.amax(dim=1, keepdim=True)
    free, negative = label == named, named.clamp(max=0)
    for _ in range(1, prior.free):
        value = label.masked_fill(free, -math.inf).amax(dim=1, keepdim=True)
        free, named, negative = free | (label == value), named + value, negative + value.clamp(max=0)
    if prior.rest == "equal":
        rest = (label.sum(dim=1, keepdim=True) - named) / (part.classes - prior.free)
        negative += rest.clamp(max=0)
        label -= rest
    size = label.masked_fill_(free, 0).abs_().sum(dim=1, keepdim=True)
    return size.sub_(negative)[:, 0].mul_(grid)
