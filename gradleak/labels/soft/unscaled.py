"""Recover a sample's label together with the unknown scale of its gradient, as left by clipping to a norm.

The server receives κ G, and the client's equation becomes κ t (p(t) − y) = c. The label is therefore y = p(t) − w c
with w = 1 / (κ t). The two unknowns are t and w, and w enters linearly. The prior gives C − 1 equations for a one-hot
label and C − 2 for the others. These determine κ unless the probabilities are a linear function of the logits.

- One-hot and mixed labels: classes that the label does not name have c = κ t p. Over these classes log c − b is a
  straight line in the logits W v, with slope t. Every choice of named classes is tried.
- Smoothed labels: over all classes but the named one, c is a linear function of p(t). For every t on a grid and every
  class left out, a regression measures the deviation from such a function.

The solutions are refined by Gauss-Newton steps. Residuals are measured in rounding errors, and solutions are accepted
by the same limit as in `exact`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from gradleak.errors import InputError
from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.explanations import Explanation
from gradleak.labels.soft.problem import ACCEPT, NEGATIVE, Problem
from gradleak.labels.verdict import KNOWN

# The grid of scalars starts where the largest and the smallest logit differ by FLAT, with relative steps of STEP ...
FLAT, STEP = 0.05, 0.04
# ... and ends where the fourth largest logit lies this far below the largest: exp(−45) is below float64's resolution.
SATURATED = 45.0
# An additional scalar, this many times the last one, stands for a softmax that is saturated: one class has all of the
# probability.
FAR_OUT = 20
# Scalars beyond this share of the grid's end may leave three classes with any probability; these have a closed form.
THREE_LEFT = 0.5
STARTS_A_SAMPLE, STARTS_A_CLASS = 12, 3
STEPS = 16
# After every STEPS_A_CHECK steps a fit goes on only if its squared misfit has fallen below this share of its last
# value.
STEPS_A_CHECK, STALLED = 4, 0.5
# The second diagonal entry of R (QR decomposition) is at least RANK_TOLERANCE times its column's length. Lengths below
# LEAST and weights above LARGE would underflow or overflow when squared.
RANK_TOLERANCE, LEAST, LARGE = 1e-16, 1e-150, 1e150
# Gradient scales κ between 1 / LARGEST_SCALE and LARGEST_SCALE are considered.
LARGEST_SCALE = 1e9
# Above this relative uncertainty the scale is undetermined.
UNDETERMINED = 0.5


@dataclass(frozen=True)
class Explained:
    """K candidate explanations for each of N samples, in no particular order; ignore those that are not `accepted`.

    Attributes:
        scalars: t (N, K).
        weights: w = 1 / (κ t) (N, K).
        misfit: Root mean square residual in rounding errors (N, K).
        labels: (N, K, C).
        open: Uncertainty of the label by rounding, as an L1 distance (N, K).
        loose: Relative uncertainty of the scalar (N, K).
        checked: Whether the label gives more equations than there are unknowns (N, K).
        accepted: Whether this explains the gradient (N, K).
    """

    scalars: Tensor
    weights: Tensor
    misfit: Tensor
    labels: Tensor
    open: Tensor
    loose: Tensor
    checked: Tensor
    accepted: Tensor


def solve(problem: Problem, prior: LabelPrior | Score, given: Tensor | None = None) -> Explained:
    """Find every pair of scalar and gradient scale that explains each sample's gradient.

    `given` (N, 1): the scalars, where they are known; only the scale is searched then.
    """
    if not isinstance(prior, LabelPrior) or prior.free > 2 or (prior.rest == "equal" and prior.free > 1):
        raise InputError(
            "an unknown scale is found for one-hot, smoothed and mixed labels; say the scale, or one of these priors"
        )
    line = prior.rest == "zero"
    points = 1 if line or given is not None else _grid_size(problem)
    found, begin = [], 0
    for part in problem.parts(points):
        own = None if given is None else given[begin : begin + len(part)]
        begin += len(part)
        free, scalars, weights = _starts_by_regression(part, prior, own) if line else _starts_on_grid(part, prior, own)
        found.append(_evaluated(part, free, scalars if own is None else own + 0 * scalars, weights, prior, own is None))
    return Explained(*(_padded([getattr(one, name) for one in found]) for name in Explained.__annotations__))


def merged(problem: Problem, sides: list[tuple[Tensor, int, Explained]]) -> Explanation:
    """Merge the explanations with positive and with negative scalars: the best of each sample, and all distinct labels.

    `sides`: the samples' indices, the sign of their scalars, and the explanations found.
    """
    count, like = len(problem), problem.ratios
    scalars, weights = like.new_full((count,), math.nan), like.new_ones(count)
    labels, opened, loose = like.new_zeros(like.shape), like.new_zeros(count), like.new_zeros(count)
    checked = torch.zeros_like(opened, dtype=torch.bool)
    candidates = [like[:0]] * count
    least = like.new_full((count,), math.inf)
    for rows, sign, found in sides:
        some, place = found.accepted.any(dim=1), found.misfit.where(found.accepted, math.inf).argmin(dim=1)
        every = torch.arange(len(rows), device=rows.device)
        misfit = found.misfit[every, place].where(some, math.inf)
        better = misfit < least[rows]
        own, at, where = rows[better], place[better], every[better]
        least[own] = misfit[better]
        scalars[own], weights[own] = sign * found.scalars[where, at], sign * found.weights[where, at]
        labels[own], checked[own] = found.labels[where, at], found.checked[where, at]
        widest = found.open.where(found.accepted, 0).amax(dim=1)
        opened[rows] = torch.maximum(opened[rows], widest)
        loose[rows] = torch.maximum(loose[rows], found.loose.where(found.accepted, 0).amax(dim=1))
        # Usually all accepted explanations are the same label, reached from several starts.
        best = found.labels[every, place].unsqueeze(1)
        several = found.accepted & ((found.labels - best).abs().sum(dim=2) > KNOWN)
        for n, (row, there, more) in enumerate(torch.stack([rows, some, several.any(dim=1)], dim=1).tolist()):
            if not there:
                continue
            own_labels = best[n]
            if more:
                accepted = found.accepted[n]
                own_labels = found.labels[n, accepted][found.misfit[n, accepted].argsort()]
            if len(candidates[row]):
                own_labels = torch.cat([candidates[row], own_labels])
            candidates[row] = _distinct(own_labels) if len(own_labels) > 1 else own_labels
    # No equation checks such a label, so its error is only bounded by the largest L1 distance of two labels, 2.
    opened = torch.where(checked, opened, 2)
    return Explanation(scalars, weights, labels, opened, loose, checked, tuple(candidates))


def _distinct(labels: Tensor) -> Tensor:
    near = (labels.unsqueeze(0) - labels.unsqueeze(1)).abs().sum(dim=2) <= KNOWN
    return labels[~(near & torch.ones_like(near).triu(1)).any(dim=0)]


def _padded(parts: list[Tensor]) -> Tensor:
    """Concatenate parts (N, K, …) with different K along the samples; pad with zeros, which are not accepted."""
    most = max(part.shape[1] for part in parts)
    return torch.cat([torch.cat([p, p.new_zeros(len(p), most - p.shape[1], *p.shape[2:])], dim=1) for p in parts])


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
    end = (SATURATED + spread) / (order[:, 0] - order[:, min(3, order.shape[1] - 1)]).clamp(min=tiny)
    return begin, torch.maximum(torch.minimum(end, 1e7 * begin), 10 * begin)


def _starts_by_regression(part: Problem, prior: LabelPrior, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return starting points for one-hot and mixed labels, by regression over the classes that the label does not name.

    The results are the classes that the label is assumed to name (N, K, C), the scalars and the weights (N, K).
    """
    ratios, classes = part.ratios, part.classes
    share = part.unit[:, None] + (part.floor + part.noise)[:, None] / ratios.abs().clamp(min=1e-300)
    usable = (ratios > 0) & (share < 0.1)
    heights = ratios.clamp(min=1e-300).log() - (0 if part.bias is None else part.bias)
    weights = torch.where(usable, 1 / share.square(), 0)
    weights = weights / weights.amax(dim=1, keepdim=True).clamp(min=1e-300)
    below = ratios < -3 * (part.floor + part.noise)[:, None]
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
    starts = [(named, scalars, known), (first, near, level)]
    seen = weights > 0
    if prior.free == 1 and (seen.sum(dim=1) - seen.gather(1, top)[:, 0].long() == 1).any():
        starts.append((torch.zeros_like(first).scatter(2, top[:, :, None], True), *_saturated_start(part, far, tops)))
    names, ats, pulls = zip(*starts, strict=True)
    return torch.cat(names, dim=1), torch.cat(ats, dim=1), torch.cat(pulls, dim=1)


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


def _starts_on_grid(part: Problem, prior: LabelPrior, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return starting points for smoothed labels, in the form that `_starts_by_regression` gives them.

    They are the minima over a grid of scalars of the residual that a regression of c on p(t) has without a class.
    """
    classes = part.classes
    grid = given
    if grid is None:
        begin, end = _grid_ends(part)
        steps = torch.linspace(0, 1, _grid_size(part), dtype=begin.dtype, device=begin.device)
        grid = begin[:, None] * (end / begin)[:, None] ** steps
        grid = torch.cat([grid, FAR_OUT * end[:, None]], dim=1)
    likely = _grid_probabilities(part, grid)
    # The rounding error of an entry of c is proportional to its size.
    sizes = part.ratios.abs()
    weights = 1 / (sizes + 1e-3 * sizes.mean(dim=1, keepdim=True)).clamp(min=1e-150).square()
    weights = weights / weights.amax(dim=1, keepdim=True)
    # Subtract the class with the median logit, so that neither flat nor saturated probabilities lose their digits.
    middle = part.logits.argsort(dim=1)[:, classes // 2, None]
    across = likely - likely.gather(1, middle.unsqueeze(2).expand(-1, -1, grid.shape[1]))
    slope, rest = _lines_without_each(across, part.ratios - part.ratios.gather(1, middle), weights)
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
        starts = [(named, scalar, weight), (least, lean, flat), (likeliest, grid[:, -1:], alike)]
        for one in (least, likeliest) if classes > 3 else ():
            far, share, good = _starts_beyond_grid(part, one, end[:, None])
            if good.any():
                starts.append((one, torch.where(good, far, grid[:, -1:]), torch.where(good, share, alike)))
        named, scalar, weight = (torch.cat(values, dim=1) for values in zip(*starts, strict=True))
    free = torch.zeros(*named.shape, classes, dtype=torch.bool, device=named.device)
    return free.scatter(2, named[:, :, None], True), scalar, weight


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


def _probabilities(part: Problem, scalars: Tensor) -> Tensor:
    """Return p(t) (N, K, C) for t (N, K), three times as fast as softmax for many scalars and few classes."""
    scores = scalars.unsqueeze(2) * part.logits.unsqueeze(1)
    if part.bias is not None:
        scores += part.bias
    scores = scores.sub_(scores.amax(dim=2, keepdim=True)).exp_()
    return scores.div_(scores.sum(dim=2, keepdim=True))


def _grid_probabilities(part: Problem, grid: Tensor) -> Tensor:
    """Return p(t) (N, C, K) on a grid t (N, K): with classes before grid points, sums access memory in order."""
    scores = (part.logits - part.logits.amax(dim=1, keepdim=True)).unsqueeze(2) * grid.unsqueeze(1)
    if part.bias is not None:
        scores += part.bias.unsqueeze(1)
        scores -= scores.amax(dim=1, keepdim=True)
    # Exponentials that underflow take five times as long as others.
    scores.clamp_(min=-700).exp_()
    return scores.mul_(1 / scores.sum(dim=1, keepdim=True))


def _lines_without_each(across: Tensor, heights: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Fit weighted lines of `heights` (N, C) over `across` (N, C, K), each without one class.

    Return the slopes and the squared residuals (N, C, K). A negative slope is replaced by 0. If the slope is positive
    and the class left out lies above the line, the residual is infinite.
    """
    up = weights * heights
    size, sy, syy = (
        _sums_of_others(one, one.abs().argmax(dim=1, keepdim=True)) for one in (weights.clone(), up, up * heights)
    )
    size = size.clamp_(min=1e-300)
    mean = (sy / size).unsqueeze(2)
    level = (syy.unsqueeze(2) - sy.unsqueeze(2) * mean).clamp_(min=0)
    right = weights.unsqueeze(2) * across
    square, both = right * across, right * heights.unsqueeze(2)
    largest = square.max(dim=1, keepdim=True).indices
    sx, sxx, sxy = (_sums_of_others(one, largest) for one in (right, square, both))
    centre = sx / size.unsqueeze(2)
    slope = sxy.addcmul_(sx, mean, value=-1) / sxx.addcmul_(sx, centre, value=-1).clamp_(min=1e-300)
    slope.clamp_(min=0)
    rest = torch.addcmul(level, slope, sxy, value=-1).clamp_(min=0).nan_to_num_(math.inf)
    # The named class has at least the other classes' share of the label, so its c does not lie above their line.
    below = (across - centre).add_(KNOWN / 2).mul_(slope).add_(mean - heights.unsqueeze(2))
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


def _evaluated(
    part: Problem, free: Tensor, scalars: Tensor, weights: Tensor, prior: LabelPrior, moves: bool
) -> Explained:
    """Refine explanations (N, K), and measure how well each explains the gradient and how uncertain it is.

    `moves`: whether the scalar is unknown.
    """
    start = _Fit.at(part, free, scalars, weights, prior, moves)
    best = _polished(start.balanced(part, free, prior), part, free, prior)
    fits = [best]
    # Nearly singular equations may lead the steps anywhere, so keep a start that explains the gradient already.
    if (start.size < ACCEPT**2 * part.classes).any():
        fits.append(start)
    both = [fit.explained(part, free, prior) for fit in fits]
    both += [_with_likeliest(one, part, prior, moves) for one in both if _tied(one, prior).any()]
    return Explained(*(torch.cat([getattr(one, name) for one in both], dim=1) for name in Explained.__annotations__))


def _tied(found: Explained, prior: LabelPrior) -> Tensor:
    """Return the accepted labels (N, K) whose least free entry equals the rest: any class may be the free one."""
    largest = found.labels.amax(dim=2)
    if prior.rest == "equal":
        return found.accepted & (largest <= 1 / found.labels.shape[2] + KNOWN)
    return found.accepted & (largest >= 1 - KNOWN) if prior.free == 2 else torch.zeros_like(found.accepted)


def _with_likeliest(found: Explained, part: Problem, prior: LabelPrior, moves: bool) -> Explained:
    """Evaluate tied labels again with the likeliest class as the free one, which leaves the most undetermined."""
    kept = found.labels.topk(prior.free, dim=2).indices[:, :, :-1]
    free = torch.zeros_like(found.labels, dtype=torch.bool).scatter(2, kept, True)
    likely = _probabilities(part, found.scalars).masked_fill(free, -1).argmax(dim=2, keepdim=True)
    free = free.scatter(2, likely, True)
    own = _Fit.at(part, free, found.scalars, found.weights, prior, moves).explained(part, free, prior)
    return replace(own, accepted=own.accepted & _tied(found, prior))


def _polished(fit: _Fit, part: Problem, free: Tensor, prior: LabelPrior) -> _Fit:
    """Take Gauss-Newton steps from fits (N, K), independently of each other, while they reduce the misfit."""
    shape = fit.scalars.shape
    whole = fit.each(lambda value: value.reshape(-1, 1, *value.shape[2:]).clone())
    active = torch.arange(whole.scalars.numel(), device=free.device)
    own, part, free = whole, part[active // shape[1]], free.reshape(-1, 1, part.classes)
    damped = torch.ones_like(own.scalars)
    for _ in range(STEPS // STEPS_A_CHECK):
        before = own.size.clone()
        for _ in range(STEPS_A_CHECK):
            # Step in t and not in log t, since flat logits make the equations linear in t. The limits keep t positive.
            at = own.scalars * (1 + damped * own.step().clamp(min=-0.98, max=3))
            own, better = own.or_better(own.moved(part, free, prior, at))
            damped = torch.where(better, (2 * damped).clamp(max=1), damped / 4)
        for name in TENSORS:
            getattr(whole, name)[active] = getattr(own, name)
        # The other fits have converged, are stuck, or have left the range of scales that is considered.
        left = ((own.size < STALLED * before) & own.credible()).nonzero()[:, 0]
        if len(left) == 0:
            break
        active, part, free, damped = active[left], part[left], free[left], damped[left]
        own = own.taken(left)
    return whole.each(lambda value: value.reshape(*shape, *value.shape[2:]))


@dataclass(frozen=True)
class _Equations:
    """Residuals of the classes that the label does not name, in rounding errors, and their derivatives.

    Attributes:
        residual: (N, K, C).
        first: Derivative of the residual by log t.
        second: Derivative of the residual by log w.
        scale: One over the rounding error, 0 for classes that the label names.
        error: The rounding error.
        raw: Derivative of the label by log t.
        pull: w c.
        label: p − w c.
        drift: Derivatives by log t and by log w of the value that all other classes share (N, K, 2).
        mean: That value (N, K, 1).
        sure: Its standard error (N, K, 1).
    """

    residual: Tensor
    first: Tensor
    second: Tensor
    scale: Tensor
    error: Tensor
    raw: Tensor
    pull: Tensor
    label: Tensor
    drift: Tensor
    mean: Tensor
    sure: Tensor


def _equations(
    part: Problem, free: Tensor, p: Tensor, scalars: Tensor, weights: Tensor, prior: LabelPrior, moves: bool
) -> _Equations:
    pull = part.ratios.unsqueeze(1) * weights.unsqueeze(2)
    label = p - pull
    raw = torch.zeros_like(p)
    if moves:
        raw = p * part.logits.unsqueeze(1) * scalars.unsqueeze(2)
        raw = raw.addcmul(p, raw.sum(dim=2, keepdim=True), value=-1)
    mean = total = mean_first = mean_second = torch.zeros_like(scalars).unsqueeze(2)
    if prior.rest == "equal":
        mean = label.masked_fill(free, 0).sum(dim=2, keepdim=True) / (part.classes - prior.free)
    error = part.rounding(p, mean, scalars.unsqueeze(2), weights.unsqueeze(2))
    scale = error.reciprocal().masked_fill_(free, 0)
    residual, first, second = label * scale, raw * scale, -pull * scale
    if prior.rest == "equal":
        scale = scale.clamp(max=LARGE)
        total = scale.square().sum(dim=2, keepdim=True).clamp_(min=1e-300)
        mean, mean_first, mean_second = (
            (scale * one).sum(dim=2, keepdim=True) / total for one in (residual, first, second)
        )
        residual, first, second = (
            scale * (one - own) for one, own in ((label, mean), (raw, mean_first), (-pull, mean_second))
        )
    drift = torch.cat([mean_first, mean_second], dim=2)
    return _Equations(residual, first, second, scale, error, raw, pull, label, drift, mean, total.rsqrt())


@dataclass(frozen=True)
class _Fit:
    """Scalars and weights (N, K) with their residuals, the derivatives of these, and the sum of squares `size`."""

    scalars: Tensor
    weights: Tensor
    residual: Tensor
    first: Tensor
    second: Tensor
    scale: Tensor
    size: Tensor
    moves: bool

    @staticmethod
    def at(part: Problem, free: Tensor, scalars: Tensor, weights: Tensor, prior: LabelPrior, moves: bool) -> _Fit:
        return _Fit._of(part, free, _probabilities(part, scalars), scalars, weights, prior, moves)

    @staticmethod
    def _of(
        part: Problem, free: Tensor, p: Tensor, scalars: Tensor, weights: Tensor, prior: LabelPrior, moves: bool
    ) -> _Fit:
        own = _equations(part, free, p, scalars, weights, prior, moves)
        size = own.residual.square().sum(dim=2)
        return _Fit(scalars, weights, own.residual, own.first, own.second, own.scale, size, moves)

    def balanced(self, part: Problem, free: Tensor, prior: LabelPrior) -> _Fit:
        """Return this fit with the best weights for its scalars; the equations are linear in the weights."""
        return self.moved(part, free, prior, self.scalars)

    def moved(self, part: Problem, free: Tensor, prior: LabelPrior, scalars: Tensor) -> _Fit:
        """Return the fit at other scalars, with the best weights there given the rounding errors of this fit."""
        p = _probabilities(part, scalars)
        high, across = p, part.ratios.unsqueeze(1)
        square = self.scale.clamp(max=LARGE).square()
        if prior.rest == "equal":
            total = square.sum(dim=2, keepdim=True).clamp_(min=1e-300)
            high, across = (one - (square * one).sum(dim=2, keepdim=True) / total for one in (high, across))
        # The square of one over an error of 1e-160 would overflow.
        pulled = torch.where(self.scale < LARGE, square.mul_(across), self.scale * across * self.scale)
        size = (pulled * across).sum(dim=2)
        best = (pulled * high).sum(dim=2) / size.clamp(min=1e-300)
        # Keep a weight that the equations hardly determine.
        weights = torch.where((size * self.weights.square() > 1) & (best > 0), best, self.weights)
        return _Fit._of(part, free, p, scalars, weights, prior, self.moves)

    def credible(self) -> Tensor:
        """Return where the gradient scale is in the range that is considered (N, K)."""
        return (self.weights * self.scalars).log().abs() <= math.log(LARGEST_SCALE)

    def each(self, change: Callable[[Tensor], Tensor]) -> _Fit:
        """Return this fit with `change` applied to each of its tensors."""
        values: dict[str, Any] = {name: change(getattr(self, name)) for name in TENSORS}
        return replace(self, **values)

    def taken(self, rows: Tensor) -> _Fit:
        """Return the fits of some rows."""
        return self.each(lambda value: value[rows])

    def or_better(self, other: _Fit) -> tuple[_Fit, Tensor]:
        """Return the better of two fits for every explanation, and where that is `other` (N, K)."""
        better = other.size < self.size
        chosen: dict[str, Any] = {}
        for name in TENSORS:
            one, new = getattr(self, name), getattr(other, name)
            chosen[name] = torch.where(better.reshape(better.shape + (1,) * (one.ndim - 2)), new, one)
        return replace(self, **chosen), better

    def inverse(self) -> Tensor:
        """Return the inverse (N, K, 2, 2) of R in the QR decomposition of the two derivatives.

        Orthogonalising the columns loses no digits, unlike the normal equations.
        """
        first, second = self.first, self.second
        # An infinite length removes the derivative by a scalar that is known.
        one = first.norm(dim=2).clamp(min=LEAST if self.moves else math.inf)
        q1 = first / one.unsqueeze(2)
        across = torch.zeros_like(one)
        left = second
        for _ in range(2):
            more = (q1 * left).sum(dim=2)
            left, across = left - more.unsqueeze(2) * q1, across + more
        two = torch.maximum(left.norm(dim=2), RANK_TOLERANCE * second.norm(dim=2)).clamp(min=LEAST)
        zero = torch.zeros_like(one)
        inverse: Tensor = torch.stack([1 / one, -across / one / two, zero, 1 / two], dim=2).unflatten(2, (2, 2))
        return inverse

    def step(self) -> Tensor:
        """Return the Gauss-Newton step of log t (N, K) that goes with the best w."""
        first, second = self.first, self.second
        size = second.square().sum(dim=2, keepdim=True).clamp(min=LEAST)
        # Remove what a change of w can do; the second pass removes the rounding error of the first.
        for _ in range(2):
            first = first - (first * second).sum(dim=2, keepdim=True) / size * second
        one = first.square().sum(dim=2).clamp(min=LEAST if self.moves else math.inf)
        return -((first * self.residual).sum(dim=2) / one).nan_to_num(0)

    def explained(self, part: Problem, free: Tensor, prior: LabelPrior) -> Explained:
        """Return these fits as explanations, with their labels, their uncertainty, and whether each is accepted."""
        count = max(1, prior.equations(part.classes) - 1)
        misfit = (self.size / count).sqrt().nan_to_num(math.inf)
        reach = ((ACCEPT**2 - misfit.square()).clamp(min=0) * count).sqrt()
        own = _equations(part, free, _probabilities(part, self.scalars), self.scalars, self.weights, prior, self.moves)
        inverse = self.inverse()
        loose = (reach * inverse[:, :, 0].norm(dim=2)).nan_to_num(math.inf)
        edge = (misfit > ACCEPT / 2) & (misfit < ACCEPT)
        if edge.any():
            # If the next step still moves the scalar, this is not the middle of the accepted range, and its width is
            # unknown.
            loose = loose.masked_fill(edge & (self.step().abs() > KNOWN), math.inf)
        named = torch.stack([own.raw, -own.pull], dim=3).masked_fill_(~free.unsqueeze(3), 0) @ inverse
        opened = reach * named.norm(dim=3).sum(dim=2)
        # An entry may exceed 1 by its rounding error, and by its movement within the accepted range.
        slack = opened.nan_to_num(0).clamp(max=KNOWN).unsqueeze(2)
        undetermined = reach * inverse[:, :, 1].norm(dim=2) > UNDETERMINED
        if prior.free == 2:
            undetermined |= loose > UNDETERMINED
        if prior.rest == "equal":
            mean = reach * (own.drift.unsqueeze(2) @ inverse)[:, :, 0].norm(dim=2) + 3 * own.sure[:, :, 0]
            opened = 2 * (part.classes - prior.free) * mean
        if prior.free == 2 or prior.rest == "equal":
            opened = torch.where(undetermined, 2, opened)
        label = torch.where(free, own.label, own.mean)
        error = NEGATIVE * own.error
        valid = (label >= -error).all(dim=2) & (label <= 1 + error + slack).all(dim=2)
        valid &= (label + error >= own.mean).masked_fill(~free, True).all(dim=2)
        label = label.clamp(min=0)
        missing = 1 - label.sum(dim=2, keepdim=True)
        label = torch.where(free, label + missing / prior.free, label).clamp(min=0)
        # With w = 0, an infinite scale, rounding would explain any gradient, so some entry of w c must exceed it.
        above_rounding = (own.pull.abs() > ACCEPT * own.error).any(dim=2)
        above_rounding &= self.credible()
        accepted = (misfit < ACCEPT) & valid & above_rounding & self.scalars.isfinite() & self.weights.isfinite()
        return Explained(
            self.scalars,
            self.weights,
            misfit,
            label,
            opened.nan_to_num(math.inf).clamp(max=2),
            loose,
            _checked(own, free, prior, self.moves),
            accepted,
        )


def _checked(own: _Equations, free: Tensor, prior: LabelPrior, moves: bool) -> Tensor:
    """Return whether the classes that the label does not name give more equations than there are unknowns (N, K).

    A class without probability has no equation for t, and all such classes together have one, for the value they share.
    The class of a one-hot label is verified by its sign alone.
    """
    alive = (own.label + own.pull > ACCEPT * own.error) & ~free
    given = alive.sum(dim=2)
    if prior.rest == "equal":
        given = given + (~alive & ~free).any(dim=2)
    unknowns = 1 + moves + (prior.rest == "equal")
    enough: Tensor = given > unknowns
    return enough | (prior == LabelPrior(1, "zero"))


TENSORS = tuple(one.name for one in fields(_Fit) if one.name != "moves")
