"""Find every label that explains a sample's gradient, for a known or an unknown scale of the gradient.

The equations are those of `equations`, with the unknown t, or t and w. If the scale is known, starting points are
brackets around the minima of a loss on a grid of t. With many classes, ranges of t that cannot contain an answer are
excluded from the grid (see `intervals`). If the scale is unknown, starting points are regressions (see `starts`).
Gauss-Newton steps refine them, and `explanations` judges the results.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.equations import Fit, explains, scored
from gradleak.labels.soft.explanations import Candidates, joined, judged, judged_with_scale
from gradleak.labels.soft.intervals import excluded
from gradleak.labels.soft.path import padded
from gradleak.labels.soft.problem import ACCEPT, Problem
from gradleak.labels.soft.starts import points_of, starts

# Grids of the scalar, in units of the least one: (start, stop, relative step). A class whose logit lies more than 40
# below the largest has no influence, so softmax varies on a relative scale of 1/40 of t at the finest. Beyond 1e4,
# where ‖p − y‖ < 1e-4, little changes.
GRIDS = ((1.0, 1e4, 0.01), (1e4, 1e8, 0.03))
FINER = (1.0, 1e8, 0.001)
# For a one-hot label that is predicted almost exactly: only the odds among the other classes, however small, determine
# t.
FARTHER = (1e8, 1e300, 0.04)
# With fewer equations than FEW, steps are this many times as large.
FEW, FEW_STEP = 4, 0.1
STEPS = 8
# Rounds of steps where the scale is known, and where it is unknown.
KNOWN_SCALE, WITH_SCALE = (STEPS, 6 * STEPS), (4, 4, 4, 4)
# Iteration ends when the relative step is below this many square roots of the rounding unit: there residuals are
# linear.
SMALLEST_STEP = 1e-3
# If other entries are below the least free one by less than TIED, any of them may be the free one. TIES_AT_ONCE labels
# are examined at a time.
TIED, TIES_AT_ONCE = 0.05, 64
# The grid ends where the largest two logits differ by this: only one class has any probability.
SATURATED = 1e3
# The deepest minima of a sample's grid that are refined.
MINIMA_KEPT = 8
# A grid whose points times classes exceed MANY is first divided into RANGES ranges, most of which intervals exclude.
MANY, RANGES = 50_000, 80


def solve(problem: Problem, prior: LabelPrior | Score) -> Candidates:
    """Find the scalars that explain each sample, on finer and wider grids where the first one shows none."""
    # With few equations roots lie close together and need a finer grid.
    comb = FEW_STEP if isinstance(prior, LabelPrior) and prior.equations(problem.classes) < FEW else 1.0
    grids = tuple((start, stop, step * comb) for start, stop, step in GRIDS)
    found = _search(problem, prior, grids, KNOWN_SCALE)
    for grid in (FINER, FARTHER):
        missing = (~found.accepted.any(dim=1)).nonzero()[:, 0]
        if len(missing) == 0:
            break
        found = _replaced(found, missing, _search(problem[missing], prior, (grid,), (5 * STEPS,)))
    return _with_ties(problem, prior, found) if isinstance(prior, LabelPrior) else found


def solve_with_scale(problem: Problem, prior: LabelPrior | Score, given: Tensor | None = None) -> Candidates:
    """Find every pair of scalar and gradient scale that explains each sample's gradient.

    `given` (N, 1): the scalars, where they are known; only the scale is searched then.
    """
    if not isinstance(prior, LabelPrior) or prior.free > 2 or (prior.rest == "equal" and prior.free > 1):
        raise InputError(
            "an unknown scale is found for one-hot, smoothed and mixed labels; say the scale, or one of these priors"
        )
    found, begin = [], 0
    for part in problem.parts(points_of(problem, prior, given)):
        own = None if given is None else given[begin : begin + len(part)]
        begin += len(part)
        scalars, weights, free = starts(part, prior, own)
        scalars = scalars if own is None else own.expand_as(scalars)
        start = Fit.at(part, prior, scalars, weights, free, own is not None)
        # The equations are linear in w, so first find the best w for every t.
        best = start.at_scalars(scalars)
        fits = [refined(best, None, WITH_SCALE, enough=0)]
        # Nearly singular equations may lead the steps anywhere, so keep a start that explains the gradient already.
        if (best.lengths[0] < ACCEPT).any():
            fits.append(best)
        found.append(joined([judged_with_scale(fit) for fit in fits], dim=2))
    return joined(found)


def refined(fit: Fit, ends: tuple[Tensor, Tensor] | None, rounds: tuple[int, ...], enough: float = ACCEPT) -> Fit:
    """Take Gauss-Newton steps, with scalars between two `ends` (N, K) if these are given.

    A round of steps ends when no scalar moves any more. The next round takes only the points whose misfit exceeds
    `enough` and still falls, as on the steep side of an exponential.
    """
    still, before = SMALLEST_STEP**2 * fit.problem.unit[:, None], fit
    for number in range(rounds[0]):
        scalars = fit.moved(ends)
        if number > 1:
            moved = scalars - fit.scalars
            if ((moved / fit.scalars).square() <= still).all():
                if fit.weights is not None:
                    return fit.at_scalars(scalars)
                # The residuals are linear over such a step.
                fit.stack[0].addcmul_(fit.stack[1], moved.unsqueeze(2))
                return replace(fit, scalars=scalars)
        before, fit = fit, fit.at_scalars(scalars)
    if len(rounds) == 1:
        return fit
    falling = fit.stack[0].square().sum(dim=2) < before.stack[0].square().sum(dim=2) / 2
    falling &= fit.lengths[0] > enough
    if not falling.any():
        return fit
    row, column = falling.nonzero(as_tuple=True)
    own = None if ends is None else (ends[0][row, column, None], ends[1][row, column, None])
    return fit.replaced(row, column, refined(fit.picked(row, column), own, rounds[1:], enough))


def _with_ties(problem: Problem, prior: LabelPrior, found: Candidates) -> Candidates:
    """Add candidates with another free class where the least free entry hardly exceeds the others.

    If few classes distinguish them, two such answers lie closer together than the grid's points.
    """
    # With few equations several candidates are often right; otherwise only the best one is.
    several = prior.equations(problem.classes) < FEW
    columns = found.misfit.argsort(dim=1) if several else found.misfit.argmin(dim=1, keepdim=True)
    at = found.scalars.gather(1, columns)
    ranked = problem.labels(at).topk(prior.free + 1, dim=2)
    near = found.accepted.gather(1, columns) & (ranked.values[:, :, -2] - ranked.values[:, :, -1] < TIED)
    if not near.any():
        return found
    rows = near.any(dim=1).nonzero()[:, 0]
    first = near[rows].int().argmax(dim=1)
    part, at, kept = problem[rows], at[rows, first, None], ranked.indices[rows, first, : prior.free - 1]
    few = (part.probabilities(at) > ACCEPT * part.explained(at)[1]).sum(dim=2)[:, 0] <= prior.free + FEW
    rows, at, kept = rows[few], at[few], kept[few]
    every = torch.arange(problem.classes, device=rows.device)[None, :, None]
    both = found
    for some in torch.arange(len(rows), device=rows.device).split(TIES_AT_ONCE):
        row, start = rows[some], at[some].expand(-1, problem.classes)
        part = problem[row]
        free = torch.cat([kept[some, None].expand(-1, problem.classes, -1), every.expand(len(some), -1, 1)], dim=2)
        fit = refined(Fit.at(part, prior, start, free=free), (start / 2, 2 * start), (6 * STEPS,))
        own = judged(part, fit.scalars, fit.lengths, prior)
        misfit = own.misfit.masked_fill_(~explains(part, fit.scalars, prior), math.inf)
        best = misfit.topk(min(MINIMA_KEPT, problem.classes), dim=1, largest=False).indices
        # The other samples repeat their first candidate.
        wide = found.values[:, :, :1].repeat(1, 1, best.shape[1])
        wide[:, row] = own.values.gather(2, best.expand(len(own.values), -1, -1))
        both = joined([both, Candidates(wide)], dim=2)
    return both


def _replaced(found: Candidates, where: Tensor, again: Candidates) -> Candidates:
    """Replace the candidates of the samples `where` by new ones that explain the gradient."""
    columns = max(found.values.shape[2], again.values.shape[2])
    values, better = padded(found.values, columns).clone(), again.accepted.any(dim=1)
    values[:, where[better]] = padded(again.values, columns)[:, better]
    return Candidates(values)


def _search(
    problem: Problem, prior: LabelPrior | Score, grids: tuple[tuple[float, float, float], ...], rounds: tuple[int, ...]
) -> Candidates:
    """Narrow all brackets around minima of the loss on these grids, and judge the results."""
    ends = brackets(problem, prior, grids)
    parts = problem.parts(ends.shape[1])
    found = []
    for part, own in zip(parts, ends.split(len(parts[0])), strict=True):
        if isinstance(prior, LabelPrior):
            # Start from both ends, since a bracket may contain two minima.
            others = own.roll(own.shape[1] // 2, dims=1)
            between = torch.minimum(own, others), torch.maximum(own, others)
            start = own.lerp(others, 0.1)
            fit = refined(Fit.at(part, prior, start), between, rounds)
            scalars, lengths = fit.scalars, fit.lengths
            if part.noisy:
                # The likeliest scalars are where the usual errors fit best.
                likely = refined(Fit.at(replace(part, usual=True), prior, start), between, rounds).scalars
                scalars = torch.cat([scalars, likely], dim=1)
                lengths = torch.cat([lengths, Fit.at(part, prior, likely).lengths], dim=2)
        else:
            scalars, lengths = scored(part, own, prior)
        found.append(judged(part, scalars, lengths, prior))
    return joined(found)


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
