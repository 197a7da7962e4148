"""Find every label that explains a sample's gradient, for a known or an unknown scale of the gradient.

The equations are those of `equations`, with the unknown t, or t and w. If the scale is known, starting points are
brackets around the minima of a loss on a grid of t. With many classes, ranges of t that cannot contain an answer are
excluded from the grid (see `intervals`). Gauss-Newton steps refine the starting points, and `explanations` judges the
results.

If the scale κ is unknown, as after clipping, the client's equation is κ t (p(t) − y) = c, and the label is p(t) − w c
with w = 1 / (κ t). The prior gives C − 1 equations for a one-hot label and C − 2 for the others. These determine κ
unless the probabilities are a linear function of the logits. Starting points are regressions:

- One-hot and mixed labels: classes that the label does not name have c = κ t p. Over these classes log c − b is a
  straight line in the logits W v, with slope t. Every choice of named classes is tried.
- Smoothed labels: over all classes but the named one, c is a linear function of p(t). For every t on a grid and every
  class left out, a regression measures the deviation from such a function.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.priors import KNOWN, LabelPrior, Score
from gradleak.labels.soft.equations import Fit, explains, scored
from gradleak.labels.soft.explanations import Candidates, joined, judged, judged_with_scale
from gradleak.labels.soft.intervals import excluded
from gradleak.labels.soft.problem import ACCEPT, Problem, padded

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
# The grid of scalars starts where the largest and the smallest logit differ by FLAT, with relative steps of STEP ...
FLAT, STEP = 0.05, 0.04
# ... and ends where the fourth largest logit lies this far below the largest: exp(−45) is below float64's resolution.
VANISHED = 45.0
# An additional scalar, this many times the last one, stands for a softmax that is saturated: one class has all of the
# probability.
FAR_OUT = 20
# Scalars beyond this share of the grid's end may leave three classes with any probability; these have a closed form.
THREE_LEFT = 0.5
STARTS_A_SAMPLE, STARTS_A_CLASS = 12, 3
# A class lies far away from the others if these, measured from their middle, are together below this share of its size.
LONELY = 1e-3


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
    for part in problem.parts(_points_of(problem, prior, given)):
        own = None if given is None else given[begin : begin + len(part)]
        begin += len(part)
        scalars, weights, free = _starts(part, prior, own)
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


def _points_of(problem: Problem, prior: LabelPrior, given: Tensor | None) -> int:
    """Return for how many scalars at a time the labels of a sample are examined."""
    return 1 if prior.rest == "zero" or given is not None else _grid_size(problem)


def _starts(part: Problem, prior: LabelPrior, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return K starting points: scalars and weights (N, K), and the free classes of their labels (N, K, F).

    `given` (N, 1): the scalars, where they are known; only the weights are unknown then.
    """
    return _by_regression(part, prior, given) if prior.rest == "zero" else _on_grid(part, prior, given)


def _grid_size(problem: Problem) -> int:
    begin, end = _grid_ends(problem)
    return min(400, max(2, math.ceil(float((end / begin).log().max()) / STEP)))


def _grid_ends(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the grid's first and last scalar (N,): the probabilities are flat below and saturated above."""
    order = problem.logits.sort(dim=1, descending=True).values
    # Equal logits must still give finite scalars.
    tiny = 1e-250
    wide = (order[:, 0] - order[:, -1]).clamp(min=tiny)
    spread = 0.0 if problem.bias is None else float(problem.bias.max() - problem.bias.min())
    begin = FLAT / wide
    end = (VANISHED + spread) / (order[:, 0] - order[:, min(3, order.shape[1] - 1)]).clamp(min=tiny)
    return begin, torch.maximum(torch.minimum(end, 1e7 * begin), 10 * begin)


def _by_regression(part: Problem, prior: LabelPrior, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return starting points for one-hot and mixed labels, by regression over the classes that labels do not name."""
    ratios, classes = part.ratios, part.classes
    share = part.unit[:, None] + (part.floor + part.noise)[:, None] / ratios.abs().clamp(min=1e-300)
    usable = (ratios > 0) & (share < 0.1)
    heights = ratios.clamp(min=1e-300).log() - (0 if part.bias is None else part.bias)
    weights = torch.where(usable, 1 / share.square(), 0)
    weights = weights / weights.amax(dim=1, keepdim=True).clamp(min=1e-300)
    below = ratios < -ACCEPT * (part.floor + part.noise)[:, None]
    named = torch.eye(classes, dtype=torch.bool, device=ratios.device).expand(len(part), -1, -1)
    if prior.free == 2:
        # The entries of p − y sum to zero and only those of named classes can be negative, so the least one is named.
        named = named | (torch.arange(classes, device=ratios.device) == ratios.argmin(dim=1, keepdim=True))[:, None]
    slope, rest = _regressed(part.logits, heights, weights, named)
    rest = rest + torch.where((below[:, None] & ~named).any(dim=2), math.inf, 0)
    # An entry of exactly zero for the likeliest class, which has probability, means that the label names this class.
    sure = (ratios == 0) & (part.logits == part.logits.amax(dim=1, keepdim=True))
    rest = rest + torch.where((sure[:, None] & ~named).any(dim=2), 1e3, 0)
    if prior.free == 2:
        rest = torch.where(named.sum(dim=2) < 2, math.inf, rest)
    best = rest.topk(min(STARTS_A_SAMPLE, classes), dim=1, largest=False).indices
    named = named.gather(1, best[:, :, None].expand(-1, -1, classes))
    slope = slope.gather(1, best)
    near, far = (one[:, None] for one in _grid_ends(part))
    far = FAR_OUT * far
    own = weights[:, None].masked_fill(named, 0)
    points = (own > 0).sum(dim=2)
    scalars = torch.where(slope > 0, torch.minimum(slope, 1e6 * far), far)
    # Fewer than two points leave the slope undetermined. Take any weight, and a scalar whose line passes through the
    # point.
    logs, tops = ratios.clamp(min=1e-300).log(), 0.5 / ratios.abs().amax(dim=1, keepdim=True)
    top, one = part.logits.argmax(dim=1, keepdim=True), own.argmax(dim=2)
    gap = (part.logits.gather(1, top) - part.logits.gather(1, one)).clamp(min=1e-300)
    lift = 0 if part.bias is None else part.bias[one] - part.bias[top]
    single = ((lift - tops.log() - logs.gather(1, one)) / gap).clamp(min=near, max=far)
    scalars = torch.where(points > 1, scalars, torch.where(points == 1, single, far))
    scalars = scalars if given is None else given + 0 * scalars
    # log c = t a + b − log Z − log w
    scores = scalars[:, :, None] * part.logits[:, None] + (0 if part.bias is None else part.bias)
    level = (own * (scores - logs[:, None])).sum(dim=2) / own.sum(dim=2).clamp(min=1e-300)
    known = (level - scores.logsumexp(dim=2)).clamp(-600, 600).exp()
    # Entries of the label lie between 0 and 1. Half of the weight at which the first one reaches a bound is possible.
    p, c = part.probabilities(scalars), ratios.unsqueeze(1)
    most = (torch.where(c > 0, p, 1 - p) / c.abs().clamp(min=1e-300)).masked_fill(~named | (c == 0), math.inf)
    most = 0.5 * most.amin(dim=2)
    most = torch.where(most.isfinite() & (most > 0), most, tops)
    known = torch.where(points > (1 if given is None else 0), known, most)
    # Where rounding hides the whole line, the logits may be flat, so add a start at the least scalar.
    first, flat = named[:, :1], part.probabilities(near)
    level = (flat * ratios.unsqueeze(1)).masked_fill(first, 0).sum(dim=2)
    level = level / ratios.unsqueeze(1).square().masked_fill(first, 0).sum(dim=2).clamp(min=1e-300)
    level = torch.where(level > 0, level, tops)
    # The classes that a start's label names.
    free = best.unsqueeze(2)
    if prior.free == 2:
        free = torch.cat([free, ratios.argmin(dim=1)[:, None, None].expand_as(free)], dim=2)
    found = [(scalars, known, free), (near, level, free[:, :1])]
    seen = weights > 0
    if prior.free == 1 and (seen.sum(dim=1) - seen.gather(1, top)[:, 0].long() == 1).any():
        found.append((*_saturated_start(part, far, tops), top[:, :, None]))
    return _together(found)


def _together(found: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    scalars, weights, free = (torch.cat(values, dim=1) for values in zip(*found, strict=True))
    return scalars, weights, free


def _saturated_start(part: Problem, far: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a scalar and a weight (N, 1) for a label of the likeliest class where only one other class is visible.

    Every scalar that is large enough to hide the remaining classes fits. Take one whose gradient scale is near 1.
    """
    ratios, top = part.ratios, part.logits.argmax(dim=1, keepdim=True)
    seen = ratios.argmax(dim=1, keepdim=True)
    height = ratios.gather(1, seen).clamp(min=1e-300)
    ranked = part.logits.topk(min(3, part.classes), dim=1).values
    apart = ((ranked[:, :1] - ranked[:, -1:]) * (part.classes > 2)).clamp(min=1e-300)
    least = torch.minimum(-part.floor.log()[:, None] / apart, FAR_OUT * far)
    gap = (ranked[:, :1] - part.logits.gather(1, seen)).clamp(min=1e-300)
    lift = 0 if part.bias is None else part.bias[seen] - part.bias[top]
    plain = ((least.log() - height.log() + lift) / gap).clamp(max=FAR_OUT * far)
    scalar = torch.maximum(least, plain)
    found = part.probabilities(scalar)[:, 0].gather(1, seen) / height
    return scalar, torch.where(found > 0, found, weight)


def _on_grid(part: Problem, prior: LabelPrior, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return starting points for smoothed labels.

    They are the minima over a grid of scalars of the residual that a regression of c on p(t) has without a class.
    """
    classes = part.classes
    grid = given
    if grid is None:
        begin, end = _grid_ends(part)
        steps = torch.linspace(0, 1, _grid_size(part), dtype=begin.dtype, device=begin.device)
        grid = begin[:, None] * (end / begin)[:, None] ** steps
        grid = torch.cat([grid, FAR_OUT * end[:, None]], dim=1)
    likely = part.grid_probabilities(grid)
    # The rounding error of an entry of c is proportional to its size.
    sizes = part.ratios.abs()
    weights = 1 / (sizes + 1e-3 * sizes.mean(dim=1, keepdim=True)).clamp(min=1e-150).square()
    weights = weights / weights.amax(dim=1, keepdim=True)
    # Subtract the class with the median logit, so that neither flat nor saturated probabilities lose their digits.
    middle = part.logits.argsort(dim=1)[:, classes // 2, None]
    across = likely - likely.gather(1, middle.unsqueeze(2).expand(-1, -1, grid.shape[1]))
    slope, rest = _lines_without_each(across, part.ratios - part.ratios.gather(1, middle), weights)
    if classes == 3:
        # No equation is left to determine t, so every t where the two other classes have a valid entry is a solution.
        total = part.ratios.sum(dim=1, keepdim=True)
        others = (1 - likely).addcdiv((part.ratios - total).unsqueeze(2), slope.clamp(min=1e-300))
        rest.masked_fill_((slope > 0) & (others < 0), math.inf)
    dips = torch.ones_like(rest, dtype=torch.bool)
    dips[:, :, 1:-1] = (rest[:, :, 1:-1] <= rest[:, :, :-2]) & (rest[:, :, 1:-1] <= rest[:, :, 2:])
    # Keep a few minima of every class: rounding may give a single class more minima than a sample keeps in all.
    few = rest.masked_fill_(~dips, math.inf).topk(min(STARTS_A_CLASS, rest.shape[2]), dim=2, largest=False)
    count = few.values.shape[2]
    best = few.values.flatten(1).topk(min(STARTS_A_SAMPLE, classes * count), dim=1, largest=False).indices
    point, named = few.indices.flatten(1).gather(1, best), best // count
    slope = slope.flatten(1).gather(1, named * grid.shape[1] + point)
    # Where c does not depend on the probabilities, take any weight that gives a label.
    weight = torch.where(slope > 0, 1 / slope.clamp(min=1e-300), 0.5 / sizes.sum(dim=1, keepdim=True))
    scalar = grid.gather(1, point)
    found = [(scalar, weight, named.unsqueeze(2))]
    if given is None:
        # Flat logits determine only t / w: take a pair whose label lies between one-hot and uniform.
        least = part.ratios.argmin(dim=1, keepdim=True)
        others = torch.ones_like(part.ratios, dtype=torch.bool).scatter(1, least, False)
        mean = (part.ratios * others).sum(dim=1, keepdim=True) / (classes - 1)
        level = (part.logits * others).sum(dim=1, keepdim=True) / (classes - 1)
        lean = ((part.logits - level) * (part.ratios - mean) * others).sum(dim=1, keepdim=True)
        lean = lean / ((part.logits - level).square() * others).sum(dim=1, keepdim=True).clamp(min=1e-300)
        flat = 0.5 / classes / mean.abs().clamp(min=1e-300)
        # With a saturated softmax the other classes have equal entries, which determine only their label's share of w.
        likeliest = likely[:, :, -1].argmax(dim=1, keepdim=True)
        alike = part.ratios.masked_fill(torch.zeros_like(others).scatter(1, likeliest, True), 0).sum(dim=1)
        alike = 0.5 / classes * (classes - 1) / alike.abs().clamp(min=1e-300)[:, None]
        lean = torch.maximum(classes * flat * lean, 1e-6 * grid[:, :1])
        found += [(lean, flat, least.unsqueeze(2)), (grid[:, -1:], alike, likeliest.unsqueeze(2))]
        for one in (least, likeliest) if classes > 3 else ():
            far, share, good = _starts_beyond_grid(part, one, end[:, None])
            if good.any():
                own = torch.where(good, far, grid[:, -1:]), torch.where(good, share, alike)
                found.append((*own, one.unsqueeze(2)))
    return _together(found)


def _starts_beyond_grid(part: Problem, named: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scalars and weights (N, 1) beyond the grid's `end`, and for which samples (N, 1) these exist.

    Only two classes other than `named` (N, 1) still have probability there. The remaining ones share c = −ŷ / w, and
    the excess of the two over this value is proportional to their probabilities.
    """
    both = part.logits.scatter(1, named, -math.inf).topk(2, dim=1)
    others = part.ratios.scatter(1, torch.cat([named, both.indices], dim=1), math.nan)
    above = part.ratios.gather(1, both.indices) - others.nanmedian(dim=1, keepdim=True).values
    lift = 0 if part.bias is None else part.bias[both.indices].diff(dim=1)
    found = (above.log().diff(dim=1) - lift) / both.values.diff(dim=1)
    good = (above > 0).all(dim=1, keepdim=True) & (found > THREE_LEFT * end) & found.isfinite()
    scalar = torch.where(good, found, end)
    weight = part.probabilities(scalar)[:, 0].gather(1, both.indices[:, :1]) / above[:, :1]
    return scalar, weight, good & (weight > 0)


def _lines_without_each(across: Tensor, heights: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Fit weighted lines of `heights` (N, C) over `across` (N, C, K), each without one class.

    Return the slopes and the squared residuals (N, C, K). A negative slope is replaced by 0. If the slope is positive
    and the class left out lies above the line, the residual is infinite.

    Where one class lies far away from all others, the lines are fitted to what one line through all classes leaves.
    Otherwise that class would hide the others' residuals in the rounding errors of the sums.
    """
    weights, heights, common = weights.unsqueeze(2), heights.unsqueeze(2), heights.new_zeros(())
    sizes = heights.abs()
    if (sizes.sum(dim=1) < (1 + LONELY) * sizes.amax(dim=1)).any():
        away = across - (weights * across).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)
        away *= weights
        common = (away * heights).sum(dim=1, keepdim=True)
        common /= (away * across).sum(dim=1, keepdim=True).clamp_(min=1e-300)
        heights = torch.addcmul(heights, common, across, value=-1)
    right, up = weights * across, weights * heights
    square, both = right * across, right * heights
    far = square.argmax(dim=1, keepdim=True)
    size, sy, syy = (
        _sums_of_others(one, one.abs().argmax(dim=1, keepdim=True)) for one in (weights.clone(), up, up * heights)
    )
    sx, sxx, sxy = (_sums_of_others(one, far) for one in (right, square, both))
    mean, centre = sy / size.clamp_(min=1e-300), sx / size
    sxx.addcmul_(sx, centre, value=-1)
    sxy.addcmul_(sx, mean, value=-1)
    # A line that falls is replaced by a level one.
    slope = (sxy / sxx.clamp_(min=1e-300)).clamp_(min=-common)
    rest = torch.addcmul(syy - sy * mean, slope, sxx.mul_(slope).sub_(sxy, alpha=2)).clamp_(min=0).nan_to_num_(math.inf)
    # The named class has at least the other classes' share of the label, so its c does not lie above their line.
    below = (across - centre).mul_(slope).add_(mean - heights)
    slope += common
    below.add_(slope, alpha=KNOWN / 2)
    return slope, rest.masked_fill_((slope > 0) & (below < 0), math.inf)


def _sums_of_others(values: Tensor, largest: Tensor) -> Tensor:
    """Return for every class the sum of all other classes' values (N, C, …), and overwrite `values`.

    The `largest` value gets the sum of the others directly: subtracting it from the total would leave its rounding
    error.
    """
    whole = values.gather(1, largest)
    values.scatter_(1, largest, 0)
    rest = values.sum(dim=1, keepdim=True)
    return values.neg_().add_(whole + rest).scatter_(1, largest, rest)


def _regressed(across: Tensor, heights: Tensor, weights: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Fit weighted lines over C points without those `left_out`; return slopes and squared residuals (N, K)."""

    def kept(value: Tensor) -> Tensor:
        return value.unsqueeze(1).masked_fill(left_out, 0).sum(dim=-1)

    total = weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    across = across - (weights * across).sum(dim=-1, keepdim=True) / total
    heights = heights - (weights * heights).sum(dim=-1, keepdim=True) / total
    right, up = weights * across, weights * heights
    size, sx, sy = kept(weights).clamp(min=1e-300), kept(right), kept(up)
    sxx, sxy, syy = kept(right * across), kept(right * heights), kept(up * heights)
    sxx, sxy, syy = sxx - sx * sx / size, sxy - sx * sy / size, (syy - sy * sy / size).clamp(min=0)
    slope = sxy / sxx.clamp(min=1e-300)
    return slope, (syy - slope * sxy).clamp(min=0).nan_to_num(math.inf)
