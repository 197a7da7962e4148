"""Find every scalar that explains a sample's gradient, and certify that there is no other.

The client's equation must hold for a label y of the shape that the prior allows (see `problem`). The entries that the
prior constrains give residuals rᵢ(t) = pᵢ(t) − cᵢ / t − yᵢ. Each residual is compared with its rounding error, so a
scalar is accepted because it explains the digits and not because its residuals are small. With many classes, ranges of
the scalar that cannot contain an answer are excluded from the search (see `intervals`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.intervals import excluded
from gradleak.labels.soft.path import golden, joined
from gradleak.labels.soft.problem import ACCEPT, NEGATIVE, Problem
from gradleak.labels.verdict import KNOWN

# Grids of the scalar, in units of the least one: (start, stop, relative step). A class whose logit lies more than 40
# below the largest has no influence, so softmax varies on a relative scale of 1/40 of t at the finest. Beyond 1e4,
# where ‖p − y‖ < 1e-4, little changes.
GRIDS = ((1.0, 1e4, 0.01), (1e4, 1e8, 0.03))
FINER = (1.0, 1e8, 0.001)
# For a one-hot label that is predicted almost exactly: only the odds among the other classes, however small, determine
# t.
FARTHER = (1e8, 1e300, 0.04)
# The grid ends where the largest two logits differ by this: only one class has any probability.
SATURATED = 1e3
# With fewer equations than FEW, steps are this many times as large.
FEW, FEW_STEP = 4, 0.1
# The deepest minima of a sample's grid that are refined.
MINIMA_KEPT = 8
STEPS = 8
# Iteration ends when the relative step is below this many square roots of the rounding unit: there residuals are
# linear.
SMALLEST_STEP = 1e-3
# Scalars that are tried on either side of one whose label has a negative entry, up to the ends of its range.
POINTS_INSIDE = 64
# If other entries are below the least free one by less than TIED, any of them may be the free one. TIES_AT_ONCE labels
# are examined at a time.
TIED, TIES_AT_ONCE = 0.05, 64
# A grid whose points times classes exceed MANY is first divided into RANGES ranges, most of which intervals exclude.
MANY, RANGES = 50_000, 80


@dataclass(frozen=True)
class Candidates:
    """K scalars for each of N samples, in no particular order, and how well each explains its gradient.

    Attributes:
        scalars: t (N, K).
        misfit: Root mean square residual in rounding errors (N, K).
        low: The least scalar around this one that is still accepted (N, K).
        high: The largest one (N, K).
        open: The L1 distance by which the label changes over this range (N, K).
        accepted: Whether the scalar explains the gradient (N, K).
    """

    scalars: Tensor
    misfit: Tensor
    low: Tensor
    high: Tensor
    open: Tensor
    accepted: Tensor

    @staticmethod
    def none(problem: Problem) -> Candidates:
        """Return one candidate for each sample that explains nothing."""
        nothing = torch.full_like(problem.unit, math.inf)[:, None]
        return Candidates(nothing * math.nan, *(nothing,) * 4, nothing < 0)


def solve(problem: Problem, prior: LabelPrior | Score) -> Candidates:
    """Find the scalars that explain each sample, on finer and wider grids where the first one shows none."""
    # With few equations roots lie close together and need a finer grid.
    comb = FEW_STEP if isinstance(prior, LabelPrior) and prior.equations(problem.classes) < FEW else 1.0
    found = _search(problem, prior, tuple((start, stop, step * comb) for start, stop, step in GRIDS))
    for grid in (FINER, FARTHER):
        missing = (~found.accepted.any(dim=1)).nonzero()[:, 0]
        if len(missing) == 0:
            break
        again = _search(problem[missing], prior, (grid,), steps=5 * STEPS)
        found = _replaced(found, missing, again)
    return _with_ties(problem, prior, found) if isinstance(prior, LabelPrior) else found


def _with_ties(problem: Problem, prior: LabelPrior, found: Candidates) -> Candidates:
    """Add candidates with another free class where the least free entry hardly exceeds the others.

    If few classes distinguish them, two such answers lie closer together than the grid's points.
    """
    best = found.misfit.where(found.accepted, math.inf)
    # With few equations several candidates are often right; otherwise only the best one is.
    columns = best.argsort(dim=1) if prior.equations(problem.classes) < FEW else best.argmin(dim=1, keepdim=True)
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
        own = _evaluated(part, *_newton(part, start, start / 2, 2 * start, prior, 6 * STEPS, free), prior)
        good = own.accepted & explains(part, own.scalars, prior)
        both = _with_columns(both, row, replace(own, accepted=good))
    return both


def _with_columns(found: Candidates, rows: Tensor, more: Candidates) -> Candidates:
    """Append the best candidates of some rows; the other rows repeat their first candidate."""
    best = more.misfit.where(more.accepted, math.inf)
    best = best.topk(min(MINIMA_KEPT, best.shape[1]), dim=1, largest=False).indices
    both = []
    for name in Candidates.__annotations__:
        old, new = getattr(found, name), getattr(more, name)
        wide = old[:, :1].repeat(1, best.shape[1])
        wide[rows] = new.gather(1, best)
        both.append(torch.cat([old, wide], dim=1))
    return Candidates(*both)


def _replaced(found: Candidates, where: Tensor, again: Candidates) -> Candidates:
    """Replace the candidates of the samples `where` by new ones that explain the gradient."""
    better = again.accepted.any(dim=1)
    values = []
    for old, new in ((getattr(found, name), getattr(again, name)) for name in Candidates.__annotations__):
        columns = max(old.shape[1], new.shape[1])
        value, new = _padded(old, columns).clone(), _padded(new, columns)
        value[where[better]] = new[better]
        values.append(value)
    return Candidates(*values)


def _padded(values: Tensor, columns: int) -> Tensor:
    """Return values (N, columns), padded with the first one of each row."""
    if values.shape[1] == columns:
        return values
    return torch.cat([values, values[:, :1].expand(-1, columns - values.shape[1])], dim=1)


def _search(
    problem: Problem, prior: LabelPrior | Score, grids: tuple[tuple[float, float, float], ...], steps: int = STEPS
) -> Candidates:
    """Refine the minima of the loss on these grids."""
    comb = _comb(grids, problem.logits.dtype, problem.logits.device)
    points = min(len(comb), MANY // problem.classes + RANGES)
    ends = [_brackets(part, _grid(part, comb), prior) for part in problem.parts(points)]
    most = max(lower.shape[1] for lower, _ in ends)
    brackets = joined([torch.cat([_padded(value, most) for value in both], dim=1) for both in ends])
    parts = problem.parts(2 * most)
    own = brackets.split(len(parts[0]))
    polished = [_polish(part, both, prior, steps) for part, both in zip(parts, own, strict=True)]
    return Candidates(*(joined([getattr(one, name) for one in polished]) for name in Candidates.__annotations__))


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


def _brackets(part: Problem, grid: Tensor, prior: LabelPrior | Score) -> tuple[Tensor, Tensor]:
    """Return the ends (N, K) of the grid cells around each sample's deepest minima, at most MINIMA_KEPT."""
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
    return grid.gather(1, (index - 1).clamp(min=0)), grid.gather(1, (index + 1).clamp(max=grid.shape[1] - 1))


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
    # Classes come before grid points, so that reductions access memory in order. Work in place, since memory traffic
    # takes most of the time.
    at = grid.unsqueeze(1)
    label = (part.logits - part.logits.amax(dim=1, keepdim=True)).unsqueeze(2) * at
    if part.bias is not None:
        label += part.bias.unsqueeze(1)
        label -= label.amax(dim=1, keepdim=True)
    # Exponentials that underflow take five times as long as others.
    label.clamp_(min=-700).exp_()
    label *= label.sum(dim=1, keepdim=True).reciprocal_()
    label.addcmul_(part.ratios.unsqueeze(2), at.reciprocal(), value=-1)
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


def _polish(problem: Problem, ends: Tensor, prior: LabelPrior | Score, steps: int) -> Candidates:
    """Narrow all brackets to their minima at once, and evaluate the results.

    `ends` (N, 2K): the lower ends of K brackets, then their upper ends.
    """
    if isinstance(prior, LabelPrior):
        # Start from both ends, since a bracket may contain two minima.
        others = ends.roll(ends.shape[1] // 2, dims=1)
        lower, upper = torch.minimum(ends, others), torch.maximum(ends, others)
        scalars, misfit, steep = _newton(problem, ends.lerp(others, 0.1), lower, upper, prior, steps)
    else:
        lower, upper = ends.chunk(2, dim=1)
        scalars, misfit, steep = _scored(problem, lower, upper, prior)
    return _evaluated(problem, scalars, misfit, steep, prior)


def _evaluated(
    problem: Problem, scalars: Tensor, misfit: Tensor, steep: Tensor, prior: LabelPrior | Score
) -> Candidates:
    """Return for scalars (N, K) their accepted range, how the label changes over it, and whether they are valid."""
    reach = (ACCEPT**2 - misfit.square()).clamp_(min=0).sqrt_() / steep.clamp(min=1e-300)
    low = torch.maximum(scalars - reach, problem.least[:, None])
    high = torch.minimum(scalars + reach, scalars * GRIDS[-1][1])
    label, error = problem.explained(torch.cat([scalars, low, high], dim=1))
    label, count = label.unflatten(1, (3, -1)), scalars.shape[1]
    own = label[:, :1]
    moved, error = (label - own).abs_().sum(dim=3).amax(dim=1), error[:, :count]
    if not isinstance(prior, LabelPrior):
        # A score does not tie entries to each other, so each keeps its rounding error.
        moved += 2 * error.sum(dim=2)
    valid = _valid(problem, scalars, own[:, 0], error)
    found = Candidates(scalars, misfit, low, high, moved, (misfit < ACCEPT) & valid)
    beside = (misfit < ACCEPT) & ~valid & (moved > KNOWN)
    return _moved_inside(problem, found, beside, prior) if beside.any() else found


def _moved_inside(problem: Problem, found: Candidates, which: Tensor, prior: LabelPrior | Score) -> Candidates:
    """Move scalars (N, K) whose label has a negative entry to the nearest one in their range with a valid label.

    Flat logits fit the gradient equally well over a wide range of scalars, and the best fit may have an invalid label.
    """
    row, column = which.nonzero(as_tuple=True)
    part, at = problem[row], found.scalars[row, column, None]
    steps = torch.linspace(0, 1, POINTS_INSIDE, dtype=at.dtype, device=at.device)
    points = torch.cat([at * (end[row, column, None] / at) ** steps for end in (found.low, found.high)], dim=1)
    good = explains(part, points, prior)
    near = (points / at).log().abs().masked_fill(~good, math.inf).argmin(dim=1, keepdim=True)
    some = good.any(dim=1)
    scalars, accepted = found.scalars.clone(), found.accepted.clone()
    scalars[row, column] = torch.where(some, points.gather(1, near)[:, 0], at[:, 0])
    accepted[row, column] = some
    return replace(found, scalars=scalars, accepted=accepted)


def explains(problem: Problem, scalars: Tensor, prior: LabelPrior | Score) -> Tensor:
    """Return whether scalars (N, K), with the problem's sign, give a label that explains the gradient."""
    if not isinstance(prior, LabelPrior):
        return problem.labels(scalars).amin(dim=2) >= 0
    misfit, _ = _misfit(problem, _residuals(problem, scalars, prior), prior)
    return (misfit < ACCEPT) & _valid(problem, scalars, *problem.explained(scalars))


def _newton(
    problem: Problem,
    scalars: Tensor,
    lower: Tensor,
    upper: Tensor,
    prior: LabelPrior,
    steps: int,
    free: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take Gauss-Newton steps, and return the scalars, the misfit and its slope (N, K).

    Each residual is weighted by its rounding error. The iteration ends when no scalar moves any more. Where the misfit
    still falls after all steps, as on the steep side of an exponential, more steps follow. `free` (N, K, F): the free
    classes, if they are not the largest entries of each label.
    """
    both, still = _residuals(problem, scalars, prior, free), SMALLEST_STEP**2 * problem.unit[:, None]
    for number in range(steps):
        before, last = both, scalars
        residual, slope = both
        across, square = (both * slope).sum(dim=3)
        scalars = torch.addcdiv(scalars, across, square.clamp_(min=1e-300), value=-1).clamp_(lower, upper)
        if number > 1:
            moved = scalars - last
            if ((moved / last).square() <= still).all():
                residual.addcmul_(slope, moved.unsqueeze(2))
                return scalars, *_misfit(problem, both, prior)
        both = _residuals(problem, scalars, prior, free)
    misfit, steep = _misfit(problem, both, prior)
    falling = (both[0].square().sum(dim=2) < before[0].square().sum(dim=2) / 2) & (misfit > ACCEPT)
    if steps > STEPS or not falling.any():
        return scalars, misfit, steep
    row, column = falling.nonzero(as_tuple=True)
    at, low, high = (value[row, column, None] for value in (scalars, lower, upper))
    named = None if free is None else free[row, column, None]
    again = _newton(problem[row], at, low, high, prior, 6 * STEPS, named)
    for whole, part in zip((scalars, misfit, steep), again, strict=True):
        whole[row, column] = part[:, 0]
    return scalars, misfit, steep


def _misfit(problem: Problem, both: Tensor, prior: LabelPrior) -> tuple[Tensor, Tensor]:
    """Return the root mean squares (N, K) of residuals and their slopes (2, N, K, C), over the prior's equations."""
    count = prior.equations(problem.classes)
    misfit, steep = torch.linalg.vector_norm(both, dim=3) / math.sqrt(count)
    return misfit, steep


def _residuals(problem: Problem, scalars: Tensor, prior: LabelPrior, free: Tensor | None = None) -> Tensor:
    """Return rᵢ(t) and drᵢ/dt, (2, N, K, C), in units of the rounding error; 0 for the free entries."""
    at = scalars.unsqueeze(2)
    probability, pull = problem.sides(at)
    both = probability.new_empty(2, *probability.shape)
    label, slope = both
    torch.sub(probability, pull, out=label)
    torch.mul(probability, problem.rows[0], out=slope)
    slope.addcmul_(probability, slope.sum(dim=2, keepdim=True), value=-1).addcdiv_(pull, at)
    free = label.topk(prior.free, dim=2).indices if free is None else free
    if prior.rest == "equal":
        rest = label.scatter_(2, free, 0).sum(dim=2, keepdim=True) / (problem.classes - prior.free)
    else:
        rest = torch.zeros_like(at)
    weight = problem.rounding(probability, rest, at).reciprocal_().scatter_(2, free, 0)
    if prior.rest == "equal":
        # Inverse-variance weighted mean, so that one entry with a large error does not blur the others.
        square = weight.square()
        both -= (both * square).sum(dim=3, keepdim=True) / square.sum(dim=2, keepdim=True).clamp_(min=1e-300)
    return both.mul_(weight)


def _valid(problem: Problem, scalars: Tensor, label: Tensor, error: Tensor) -> Tensor:
    """Return whether labels (N, K, C) have no negative entry and sum to 1, within their rounding error (N, K)."""
    balanced = problem.total.abs()[:, None] <= 2 * ACCEPT * scalars * error.sum(dim=2)
    return (label.add(error, alpha=NEGATIVE) >= 0).all(dim=2) & balanced


def checked(problem: Problem, scalars: Tensor, prior: LabelPrior | Score | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the labels (N, C) at known scalars (N, 1), their uncertainty (L1) and whether they fit the prior (N,)."""
    label, error = problem.explained(scalars)
    valid = _valid(problem, scalars, label, error)
    if isinstance(prior, LabelPrior):
        valid = valid & explains(problem, scalars, prior)
    elif prior is not None:
        valid = valid & (prior(label) <= ACCEPT**2 * _level(label, error, prior))
    return label[:, 0], 2 * error.sum(dim=2)[:, 0], valid[:, 0]


def _level(label: Tensor, error: Tensor, score: Score) -> Tensor:
    """Return by how much rounding changes a label's score (N, K)."""
    generator = torch.Generator().manual_seed(0)
    signs = 2 * torch.randint(2, (8, label.shape[2]), generator=generator).to(label) - 1
    found = score(label)
    level = torch.stack([(score(label + error * sign) - found).abs() for sign in signs]).mean(dim=0)
    return level.clamp(min=1e-300)


def _scored(problem: Problem, lower: Tensor, upper: Tensor, score: Score) -> tuple[Tensor, Tensor, Tensor]:
    """Narrow brackets for a caller's score, in units of the change that rounding of the label makes to it."""

    def value(at: Tensor) -> Tensor:
        return score(problem.labels(at))

    scalars = golden(value, lower, upper)
    label, error = problem.explained(scalars)
    found, level = score(label), _level(label, error, score)
    # Take the smaller slope of both sides: at the end of an interval of zero score the label is undetermined.
    step = 1e-4 * scalars
    # Noise in the score at its minimum is no part of the slope.
    more = torch.minimum(value(scalars + step), value(scalars - step)) - found
    return scalars, (found / level).clamp(min=0).sqrt(), (more / level).clamp(min=0).sqrt() / step
