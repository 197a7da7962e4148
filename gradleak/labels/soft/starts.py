"""Find starting points of the scalar and the weight, where the gradient's scale is unknown, as left by clipping.

The server receives κ G, and the client's equation becomes κ t (p(t) − y) = c. The label is therefore y = p(t) − w c
with w = 1 / (κ t). The prior gives C − 1 equations for a one-hot label and C − 2 for the others. These determine κ
unless the probabilities are a linear function of the logits.

- One-hot and mixed labels: classes that the label does not name have c = κ t p. Over these classes log c − b is a
  straight line in the logits W v, with slope t. Every choice of named classes is tried.
- Smoothed labels: over all classes but the named one, c is a linear function of p(t). For every t on a grid and every
  class left out, a regression measures the deviation from such a function.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior
from gradleak.labels.soft.problem import ACCEPT, Problem
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
# A class lies far away from the others if these, measured from their middle, are together below this share of its size.
LONELY = 1e-3


def points_of(problem: Problem, prior: LabelPrior, given: Tensor | None) -> int:
    """Return for how many scalars at a time the labels of a sample are examined."""
    return 1 if prior.rest == "zero" or given is not None else _grid_size(problem)


def starts(part: Problem, prior: LabelPrior, given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
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
    end = (SATURATED + spread) / (order[:, 0] - order[:, min(3, order.shape[1] - 1)]).clamp(min=tiny)
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
    return _joined(found)


def _joined(found: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
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
    return _joined(found)


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
    weights, heights, common = weights.unsqueeze(2), heights.unsqueeze(2), 0
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
