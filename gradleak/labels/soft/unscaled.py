"""The scalar and an unknown factor on the gradient, found together: what a client sends that clips by the norm.

With κ G in place of G the client's equation is κ t (p(t) − y) = c, so the label is y = p(t) − w c with w = 1 / (κ t):
two unknowns, and w enters linearly. A label's shape leaves equations (C − 1 for a class and what the others share,
C − 2 of them to solve for t and w), so κ is determined wherever the probabilities are no straight line in the logits:

- one-hot and mixed labels: of classes that the label does not name c = κ t p, and log c − b is a line over the logits
  W v whose slope is t. Which classes those are is tried out.
- smoothed labels: of all but one class c is a linear function of p(t). For each t and each class a regression says how
  far it is from that.

What comes of this is polished by Gauss-Newton steps in units of the rounding error of `exact`, and judged by it.
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

# Scalars are tried from where the logits spread by this much, in steps of their own size ...
FLAT, STEP = 0.05, 0.04
# ... to where the fourth class has lost all influence: exp(−45) is beyond the digits of float64.
LAST = 45.0
# Where a class has all of it, only how far that is from the others' share says so: scalars so many times larger.
FAR = 20
# Where only three classes have a probability that is seen: from this share of the last scalar on.
BEYOND = 0.5
KEPT, FEW = 12, 3
STEPS = 16
# After so many steps those go on that are better by a share.
TOGETHER, STALLED = 4, 0.5
# Singular values below this share of the largest are lost.
LOST, LEAST, LARGE = 1e-16, 1e-150, 1e150
# Factors are looked for up to this, and down to one by this.
FACTORS = 1e9
# A factor that may move by so much of itself may be any.
ANY = 0.5


@dataclass(frozen=True)
class Explained:
    """K explanations of each of N samples, in no order; what is not `accepted` explains nothing.

    `scalars` t, `weights` w = 1 / (κ t) and `misfit` (N, K); `labels` (N, K, C); `open` (N, K): how far the digits
    leave the label (L1); `loose` (N, K): by which share they leave the scalar; `checked` (N, K): whether more classes
    say something than it has unknowns; `accepted` (N, K).
    """

    scalars: Tensor
    weights: Tensor
    misfit: Tensor
    labels: Tensor
    open: Tensor
    loose: Tensor
    checked: Tensor
    accepted: Tensor


def solve(problem: Problem, prior: LabelPrior | Score, told: Tensor | None = None) -> Explained:
    """Find every scalar and factor that explain each sample's gradient; the factor alone for scalars (N, 1) `told`."""
    if not isinstance(prior, LabelPrior) or prior.free > 2 or (prior.rest == "equal" and prior.free > 1):
        raise InputError(
            "an unknown scale is found for one-hot, smoothed and mixed labels; say the scale, or one of these priors"
        )
    line = prior.rest == "zero"
    points = 1 if line or told is not None else _points(problem)
    found, begin = [], 0
    for part in problem.parts(points):
        own = None if told is None else told[begin : begin + len(part)]
        begin += len(part)
        free, scalars, weights = _along_the_line(part, prior, own) if line else _along_the_grid(part, prior, own)
        found.append(_judged(part, free, scalars if own is None else own + 0 * scalars, weights, prior, own is None))
    return Explained(*(_side_by_side([getattr(one, name) for one in found]) for name in Explained.__annotations__))


def merged(problem: Problem, sides: list[tuple[Tensor, int, Explained]]) -> Explanation:
    """Return the best of what was found on either side of zero for each sample, and all that differs from it."""
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
        # Nearly always all that was accepted is one label, found from several sides.
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
    # What no equation tells from another answer nothing bounds: two labels are 2 apart at most.
    opened = torch.where(checked, opened, 2)
    return Explanation(scalars, weights, labels, opened, loose, checked, tuple(candidates))


def _distinct(labels: Tensor) -> Tensor:
    near = (labels.unsqueeze(0) - labels.unsqueeze(1)).abs().sum(dim=2) <= KNOWN
    return labels[~(near & torch.ones_like(near).triu(1)).any(dim=0)]


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Put parts with different numbers of explanations under each other; what is missing explains nothing."""
    most = max(part.shape[1] for part in parts)
    return torch.cat([torch.cat([p, p.new_zeros(len(p), most - p.shape[1], *p.shape[2:])], dim=1) for p in parts])


def _points(problem: Problem) -> int:
    begin, end = _reach(problem)
    return min(400, max(2, math.ceil(float((end / begin).log().max()) / STEP)))


def _reach(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the least and the largest scalar (N,) between which probabilities are neither flat nor all alike."""
    order = problem.logits.sort(dim=1, descending=True).values
    # Logits that are all alike still give finite scalars.
    tiny = 1e-250
    wide = (order[:, 0] - order[:, -1]).clamp(min=tiny)
    spread = 0.0 if problem.bias is None else float(problem.bias.max() - problem.bias.min())
    begin = FLAT / wide
    end = (LAST + spread) / (order[:, 0] - order[:, min(3, order.shape[1] - 1)]).clamp(min=tiny)
    return begin, torch.maximum(torch.minimum(end, 1e7 * begin), 10 * begin)


def _along_the_line(part: Problem, prior: LabelPrior, told: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return which classes the label may name (N, K, C), the scalar and the weight (N, K) that the others give."""
    ratios, classes = part.ratios, part.classes
    share = part.unit[:, None] + (part.floor + part.noise)[:, None] / ratios.abs().clamp(min=1e-300)
    usable = (ratios > 0) & (share < 0.1)
    heights = ratios.clamp(min=1e-300).log() - (0 if part.bias is None else part.bias)
    weights = torch.where(usable, 1 / share.square(), 0)
    weights = weights / weights.amax(dim=1, keepdim=True).clamp(min=1e-300)
    below = ratios < -3 * (part.floor + part.noise)[:, None]
    named = torch.eye(classes, dtype=torch.bool, device=ratios.device).expand(len(part), -1, -1)
    if prior.free == 2:
        # Errors sum to zero, so one of the two is always below.
        named = named | (torch.arange(classes, device=ratios.device) == ratios.argmin(dim=1, keepdim=True))[:, None]
    slope, rest = _regressed(part.logits, heights, weights, named)
    rest = rest + torch.where((below[:, None] & ~named).any(dim=2), math.inf, 0)
    # The likeliest class has a probability, and an error of nothing only where the label has it as well.
    sure = (ratios == 0) & (part.logits == part.logits.amax(dim=1, keepdim=True))
    rest = rest + torch.where((sure[:, None] & ~named).any(dim=2), 1e3, 0)
    if prior.free == 2:
        rest = torch.where(named.sum(dim=2) < 2, math.inf, rest)
    best = rest.topk(min(KEPT, classes), dim=1, largest=False).indices
    named = named.gather(1, best[:, :, None].expand(-1, -1, classes))
    slope = slope.gather(1, best)
    near, far = (one[:, None] for one in _reach(part))
    far = FAR * far
    own = weights[:, None].masked_fill(named, 0)
    points = (own > 0).sum(dim=2)
    scalars = torch.where(slope > 0, torch.minimum(slope, 1e6 * far), far)
    # A line through fewer than two points has any slope: any weight will do, and a scalar that fits the one.
    logs, tops = ratios.clamp(min=1e-300).log(), 0.5 / ratios.abs().amax(dim=1, keepdim=True)
    top, one = part.logits.argmax(dim=1, keepdim=True), own.argmax(dim=2)
    gap = (part.logits.gather(1, top) - part.logits.gather(1, one)).clamp(min=1e-300)
    lift = 0 if part.bias is None else part.bias[one] - part.bias[top]
    single = ((lift - tops.log() - logs.gather(1, one)) / gap).clamp(min=near, max=far)
    scalars = torch.where(points > 1, scalars, torch.where(points == 1, single, far))
    scalars = scalars if told is None else told + 0 * scalars
    # log c = t a + b − log Z − log w
    scores = scalars[:, :, None] * part.logits[:, None] + (0 if part.bias is None else part.bias)
    level = (own * (scores - logs[:, None])).sum(dim=2) / own.sum(dim=2).clamp(min=1e-300)
    known = (level - scores.logsumexp(dim=2)).clamp(-600, 600).exp()
    # Labels end at 0 and at 1, and half of the weight that takes one there is a weight.
    p, c = part.probabilities(scalars), ratios.unsqueeze(1)
    most = (torch.where(c > 0, p, 1 - p) / c.abs().clamp(min=1e-300)).masked_fill(~named | (c == 0), math.inf)
    most = 0.5 * most.amin(dim=2)
    most = torch.where(most.isfinite() & (most > 0), most, tops)
    known = torch.where(points > (1 if told is None else 0), known, most)
    # And where rounding hides all of the line, it may be a flat one.
    first, flat = named[:, :1], part.probabilities(near)
    level = (flat * ratios.unsqueeze(1)).masked_fill(first, 0).sum(dim=2)
    level = level / ratios.unsqueeze(1).square().masked_fill(first, 0).sum(dim=2).clamp(min=1e-300)
    level = torch.where(level > 0, level, tops)
    starts = [(named, scalars, known), (first, near, level)]
    seen = weights > 0
    if prior.free == 1 and (seen.sum(dim=1) - seen.gather(1, top)[:, 0].long() == 1).any():
        starts.append((torch.zeros_like(first).scatter(2, top[:, :, None], True), *_alone(part, far, tops)))
    names, ats, pulls = zip(*starts, strict=True)
    return torch.cat(names, dim=1), torch.cat(ats, dim=1), torch.cat(pulls, dim=1)


def _alone(part: Problem, far: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a scalar and a weight (N, 1) where one class is seen besides the label's own, which is the likeliest.

    The scalar need only be so large that all other classes are not seen; of those it is one with a factor of about 1.
    """
    ratios, top = part.ratios, part.logits.argmax(dim=1, keepdim=True)
    seen = ratios.argmax(dim=1, keepdim=True)
    height = ratios.gather(1, seen).clamp(min=1e-300)
    ranked = part.logits.topk(min(3, part.classes), dim=1).values
    apart = ((ranked[:, :1] - ranked[:, -1:]) * (part.classes > 2)).clamp(min=1e-300)
    least = torch.minimum(-part.floor.log()[:, None] / apart, FAR * far)
    gap = (ranked[:, :1] - part.logits.gather(1, seen)).clamp(min=1e-300)
    lift = 0 if part.bias is None else part.bias[seen] - part.bias[top]
    plain = ((least.log() - height.log() + lift) / gap).clamp(max=FAR * far)
    scalar = torch.maximum(least, plain)
    found = part.probabilities(scalar)[:, 0].gather(1, seen) / height
    return scalar, torch.where(found > 0, found, weight)


def _along_the_grid(part: Problem, prior: LabelPrior, told: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same for smoothed labels: the least of what a regression of c on p(t) leaves, class by class."""
    classes = part.classes
    grid = told
    if grid is None:
        begin, end = _reach(part)
        steps = torch.linspace(0, 1, _points(part), dtype=begin.dtype, device=begin.device)
        grid = begin[:, None] * (end / begin)[:, None] ** steps
        grid = torch.cat([grid, FAR * end[:, None]], dim=1)
    likely = _predicted(part, grid)
    # Rounding errors of c are of its own size.
    sizes = part.ratios.abs()
    weights = 1 / (sizes + 1e-3 * sizes.mean(dim=1, keepdim=True)).clamp(min=1e-150).square()
    weights = weights / weights.amax(dim=1, keepdim=True)
    # Measured from a class in the middle, neither flat nor saturated probabilities lose their digits.
    middle = part.logits.argsort(dim=1)[:, classes // 2, None]
    across = likely - likely.gather(1, middle.unsqueeze(2).expand(-1, -1, grid.shape[1]))
    slope, rest = _lines(across, part.ratios - part.ratios.gather(1, middle), weights)
    dips = torch.ones_like(rest, dtype=torch.bool)
    dips[:, :, 1:-1] = (rest[:, :, 1:-1] <= rest[:, :, :-2]) & (rest[:, :, 1:-1] <= rest[:, :, 2:])
    # A few of every class, for one alone may have more ripples than are kept.
    few = rest.masked_fill_(~dips, math.inf).topk(min(FEW, rest.shape[2]), dim=2, largest=False)
    count = few.values.shape[2]
    best = few.values.flatten(1).topk(min(KEPT, classes * count), dim=1, largest=False).indices
    point, named = few.indices.flatten(1).gather(1, best), best // count
    slope = slope.flatten(1).gather(1, named * grid.shape[1] + point)
    # Where probabilities say nothing of c, any weight will do that leaves a label.
    weight = torch.where(slope > 0, 1 / slope.clamp(min=1e-300), 0.5 / sizes.sum(dim=1, keepdim=True))
    scalar = grid.gather(1, point)
    if told is None:
        # Of flat logits c tells t / w alone: any such pair with a label between sure and smoothed away.
        least = part.ratios.argmin(dim=1, keepdim=True)
        others = torch.ones_like(part.ratios, dtype=torch.bool).scatter(1, least, False)
        mean = (part.ratios * others).sum(dim=1, keepdim=True) / (classes - 1)
        level = (part.logits * others).sum(dim=1, keepdim=True) / (classes - 1)
        lean = ((part.logits - level) * (part.ratios - mean) * others).sum(dim=1, keepdim=True)
        lean = lean / ((part.logits - level).square() * others).sum(dim=1, keepdim=True).clamp(min=1e-300)
        flat = 0.5 / classes / mean.abs().clamp(min=1e-300)
        # And where a class has all, the others are alike: of a label that names it the same is all that is told.
        likeliest = likely[:, :, -1].argmax(dim=1, keepdim=True)
        alike = part.ratios.masked_fill(torch.zeros_like(others).scatter(1, likeliest, True), 0).sum(dim=1)
        alike = 0.5 / classes * (classes - 1) / alike.abs().clamp(min=1e-300)[:, None]
        lean = torch.maximum(classes * flat * lean, 1e-6 * grid[:, :1])
        starts = [(named, scalar, weight), (least, lean, flat), (likeliest, grid[:, -1:], alike)]
        for one in (least, likeliest) if classes > 3 else ():
            far, share, good = _beyond(part, one, end[:, None])
            if good.any():
                starts.append((one, torch.where(good, far, grid[:, -1:]), torch.where(good, share, alike)))
        named, scalar, weight = (torch.cat(values, dim=1) for values in zip(*starts, strict=True))
    free = torch.zeros(*named.shape, classes, dtype=torch.bool, device=named.device)
    return free.scatter(2, named[:, :, None], True), scalar, weight


def _beyond(part: Problem, named: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scalars and weights (N, 1) beyond the grid's `end`, and for which samples (N, 1) there are such.

    There only two classes other than `named` (N, 1) have a probability. The remaining ones have c = −ŷ / w, and what
    the two have above that is in proportion to their probabilities.
    """
    both = part.logits.scatter(1, named, -math.inf).topk(2, dim=1)
    others = part.ratios.scatter(1, torch.cat([named, both.indices], dim=1), math.nan)
    above = part.ratios.gather(1, both.indices) - others.nanmedian(dim=1, keepdim=True).values
    lift = 0 if part.bias is None else part.bias[both.indices].diff(dim=1)
    found = (above.log().diff(dim=1) - lift) / both.values.diff(dim=1)
    good = (above > 0).all(dim=1, keepdim=True) & (found > BEYOND * end) & found.isfinite()
    scalar = torch.where(good, found, end)
    weight = part.probabilities(scalar)[:, 0].gather(1, both.indices[:, :1]) / above[:, :1]
    return scalar, weight, good & (weight > 0)


def _likely(part: Problem, scalars: Tensor) -> Tensor:
    """Return p(t) (N, K, C) for t (N, K): of many scalars with few classes softmax takes thrice as long."""
    scores = scalars.unsqueeze(2) * part.logits.unsqueeze(1)
    if part.bias is not None:
        scores += part.bias
    scores = scores.sub_(scores.amax(dim=2, keepdim=True)).exp_()
    return scores.div_(scores.sum(dim=2, keepdim=True))


def _predicted(part: Problem, grid: Tensor) -> Tensor:
    """Return p(t) (N, C, K) for a grid t (N, K): classes before points, so that every sum runs along memory."""
    scores = (part.logits - part.logits.amax(dim=1, keepdim=True)).unsqueeze(2) * grid.unsqueeze(1)
    if part.bias is not None:
        scores += part.bias.unsqueeze(1)
        scores -= scores.amax(dim=1, keepdim=True)
    # Exponentials that are zero anyway take five times as long as others.
    scores.clamp_(min=-700).exp_()
    return scores.mul_(1 / scores.sum(dim=1, keepdim=True))


def _lines(across: Tensor, heights: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return slopes, and what is left (N, C, K), of weighted lines of heights (N, C) over (N, C, K) without a class.

    A line that falls is taken for a level one; under one that rises lies the class that is left out, or inf is left.
    """
    up = weights * heights
    size, sy, syy = (_others(one, one.abs().argmax(dim=1, keepdim=True)) for one in (weights.clone(), up, up * heights))
    size = size.clamp_(min=1e-300)
    mean = (sy / size).unsqueeze(2)
    level = (syy.unsqueeze(2) - sy.unsqueeze(2) * mean).clamp_(min=0)
    right = weights.unsqueeze(2) * across
    square, both = right * across, right * heights.unsqueeze(2)
    largest = square.max(dim=1, keepdim=True).indices
    sx, sxx, sxy = (_others(one, largest) for one in (right, square, both))
    centre = sx / size.unsqueeze(2)
    slope = sxy.addcmul_(sx, mean, value=-1) / sxx.addcmul_(sx, centre, value=-1).clamp_(min=1e-300)
    slope.clamp_(min=0)
    rest = torch.addcmul(level, slope, sxy, value=-1).clamp_(min=0).nan_to_num_(math.inf)
    # The class that the label names has as much of it as the others, or more: it does not lie above their line.
    below = (across - centre).add_(KNOWN / 2).mul_(slope).add_(mean - heights.unsqueeze(2))
    return slope, rest.masked_fill_((slope > 0) & (below < 0), math.inf)


def _others(values: Tensor, largest: Tensor) -> Tensor:
    """Return for every class the sum of all others' values (N, C, …), which are lost.

    Taken away from the whole, the `largest` would leave its rounding.
    """
    whole = values.gather(1, largest)
    values.scatter_(1, largest, 0)
    rest = values.sum(dim=1, keepdim=True)
    return values.neg_().add_(whole + rest).scatter_(1, largest, rest)


def _regressed(across: Tensor, heights: Tensor, weights: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return slopes and what is left (N, K) of weighted lines over C points without those that are `left_out`."""

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


def _judged(part: Problem, free: Tensor, scalars: Tensor, weights: Tensor, prior: LabelPrior, moves: bool) -> Explained:
    """Polish explanations (N, K) and say how well each explains the gradient, and what the digits leave open.

    `moves`: the scalar is searched; it is known otherwise.
    """
    start = _Fit.at(part, free, scalars, weights, prior, moves)
    best = _polished(start.balanced(part, free, prior), part, free, prior)
    fits = [best]
    # Of equations that hold nothing the steps go anywhere, and a start that explains the gradient says as much.
    if (start.size < ACCEPT**2 * part.classes).any():
        fits.append(start)
    both = [fit.explained(part, free, prior) for fit in fits]
    both += [_with_likeliest(one, part, prior, moves) for one in both if _tied(one, prior).any()]
    return Explained(*(torch.cat([getattr(one, name) for one in both], dim=1) for name in Explained.__annotations__))


def _tied(found: Explained, prior: LabelPrior) -> Tensor:
    """Return in which accepted labels (N, K) the least free entry is no more than the others: it may be any class's."""
    largest = found.labels.amax(dim=2)
    if prior.rest == "equal":
        return found.accepted & (largest <= 1 / found.labels.shape[2] + KNOWN)
    return found.accepted & (largest >= 1 - KNOWN) if prior.free == 2 else torch.zeros_like(found.accepted)


def _with_likeliest(found: Explained, part: Problem, prior: LabelPrior, moves: bool) -> Explained:
    """Return what such labels leave open if the free entry is that of the likeliest class, which is told the least."""
    kept = found.labels.topk(prior.free, dim=2).indices[:, :, :-1]
    free = torch.zeros_like(found.labels, dtype=torch.bool).scatter(2, kept, True)
    likely = _likely(part, found.scalars).masked_fill(free, -1).argmax(dim=2, keepdim=True)
    free = free.scatter(2, likely, True)
    own = _Fit.at(part, free, found.scalars, found.weights, prior, moves).explained(part, free, prior)
    return replace(own, accepted=own.accepted & _tied(found, prior))


def _polished(fit: _Fit, part: Problem, free: Tensor, prior: LabelPrior) -> _Fit:
    """Take Gauss-Newton steps from fits (N, K), each by itself, for as long as they make it better."""
    shape = fit.scalars.shape
    whole = fit.each(lambda value: value.reshape(-1, 1, *value.shape[2:]).clone())
    active = torch.arange(whole.scalars.numel(), device=free.device)
    own, part, free = whole, part[active // shape[1]], free.reshape(-1, 1, part.classes)
    damped = torch.ones_like(own.scalars)
    for _ in range(STEPS // TOGETHER):
        before = own.size.clone()
        for _ in range(TOGETHER):
            # Flat logits make the equations linear in t, so the steps are; they do not cross zero.
            at = own.scalars * (1 + damped * own.step().clamp(min=-0.98, max=3))
            own, better = own.or_better(own.moved(part, free, prior, at))
            damped = torch.where(better, (2 * damped).clamp(max=1), damped / 4)
        for name in TENSORS:
            getattr(whole, name)[active] = getattr(own, name)
        # The others have arrived, stand where no step makes them better, or have left for factors that are none.
        left = ((own.size < STALLED * before) & own.credible()).nonzero()[:, 0]
        if len(left) == 0:
            break
        active, part, free, damped = active[left], part[left], free[left], damped[left]
        own = own.taken(left)
    return whole.each(lambda value: value.reshape(*shape, *value.shape[2:]))


@dataclass(frozen=True)
class _Equations:
    """Residuals over the classes that the label does not name, in rounding errors, and how they move.

    `residual` (N, K, C), and how it moves with log t, `first`, and with log w, `second`; `scale`: one over its rounding
    error, 0 for the others; `raw`: how the label itself moves with either; `pull`: what is taken from p, and `label`;
    `drift` (N, K, 2), `mean` and `sure` (N, K, 1): how what those classes share moves, what it is, and its own error.
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
    mean = total = sway = drop = torch.zeros_like(scalars).unsqueeze(2)
    if prior.rest == "equal":
        mean = label.masked_fill(free, 0).sum(dim=2, keepdim=True) / (part.classes - prior.free)
    error = part.rounding(p, mean, scalars.unsqueeze(2), weights.unsqueeze(2))
    scale = error.reciprocal().masked_fill_(free, 0)
    residual, first, second = label * scale, raw * scale, -pull * scale
    if prior.rest == "equal":
        scale = scale.clamp(max=LARGE)
        total = scale.square().sum(dim=2, keepdim=True).clamp_(min=1e-300)
        mean, sway, drop = ((scale * one).sum(dim=2, keepdim=True) / total for one in (residual, first, second))
        residual, first, second = (scale * (one - own) for one, own in ((label, mean), (raw, sway), (-pull, drop)))
    drift = torch.cat([sway, drop], dim=2)
    return _Equations(residual, first, second, scale, error, raw, pull, label, drift, mean, total.rsqrt())


@dataclass(frozen=True)
class _Fit:
    """Scalars and weights (N, K) with their residuals, how these move, and the sum of their squares, `size`."""

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
        return _Fit._of(part, free, _likely(part, scalars), scalars, weights, prior, moves)

    @staticmethod
    def _of(
        part: Problem, free: Tensor, p: Tensor, scalars: Tensor, weights: Tensor, prior: LabelPrior, moves: bool
    ) -> _Fit:
        own = _equations(part, free, p, scalars, weights, prior, moves)
        size = own.residual.square().sum(dim=2)
        return _Fit(scalars, weights, own.residual, own.first, own.second, own.scale, size, moves)

    def balanced(self, part: Problem, free: Tensor, prior: LabelPrior) -> _Fit:
        """Return this fit with the weight that is best for its scalar: the equations are linear in it."""
        return self.moved(part, free, prior, self.scalars)

    def moved(self, part: Problem, free: Tensor, prior: LabelPrior, scalars: Tensor) -> _Fit:
        """Return the fit at other scalars, with the weights that are best there by the errors that are known here."""
        p = _likely(part, scalars)
        high, across = p, part.ratios.unsqueeze(1)
        square = self.scale.clamp(max=LARGE).square()
        if prior.rest == "equal":
            total = square.sum(dim=2, keepdim=True).clamp_(min=1e-300)
            high, across = (one - (square * one).sum(dim=2, keepdim=True) / total for one in (high, across))
        # The square of what is one over an error of 1e-160 is no number.
        pulled = torch.where(self.scale < LARGE, square.mul_(across), self.scale * across * self.scale)
        size = (pulled * across).sum(dim=2)
        best = (pulled * high).sum(dim=2) / size.clamp(min=1e-300)
        # A weight that the equations hardly hold stays.
        weights = torch.where((size * self.weights.square() > 1) & (best > 0), best, self.weights)
        return _Fit._of(part, free, p, scalars, weights, prior, self.moves)

    def credible(self) -> Tensor:
        """Return where the factor is one that is looked for (N, K)."""
        return (self.weights * self.scalars).log().abs() <= math.log(FACTORS)

    def each(self, change: Callable[[Tensor], Tensor]) -> _Fit:
        """Return this fit with every one of its tensors changed."""
        values: dict[str, Any] = {name: change(getattr(self, name)) for name in TENSORS}
        return replace(self, **values)

    def taken(self, rows: Tensor) -> _Fit:
        """Return the fits of some rows."""
        return self.each(lambda value: value[rows])

    def or_better(self, other: _Fit) -> tuple[_Fit, Tensor]:
        """Return the better of two fits, explanation by explanation, and where that is the other (N, K)."""
        better = other.size < self.size
        chosen: dict[str, Any] = {}
        for name in TENSORS:
            one, new = getattr(self, name), getattr(other, name)
            chosen[name] = torch.where(better.reshape(better.shape + (1,) * (one.ndim - 2)), new, one)
        return replace(self, **chosen), better

    def inverse(self) -> Tensor:
        """Return the inverse R (N, K, 2, 2) of the columns: orthogonalised, so no digit is lost."""
        first, second = self.first, self.second
        # A scalar that is known does not move.
        one = first.norm(dim=2).clamp(min=LEAST if self.moves else math.inf)
        q1 = first / one.unsqueeze(2)
        across = torch.zeros_like(one)
        left = second
        for _ in range(2):
            more = (q1 * left).sum(dim=2)
            left, across = left - more.unsqueeze(2) * q1, across + more
        two = torch.maximum(left.norm(dim=2), LOST * second.norm(dim=2)).clamp(min=LEAST)
        zero = torch.zeros_like(one)
        inverse: Tensor = torch.stack([1 / one, -across / one / two, zero, 1 / two], dim=2).unflatten(2, (2, 2))
        return inverse

    def step(self) -> Tensor:
        """Return the Gauss-Newton step of log t (N, K), w going with it."""
        first, second = self.first, self.second
        size = second.square().sum(dim=2, keepdim=True).clamp(min=LEAST)
        # What w cannot do; the second time takes the first one's rounding away.
        for _ in range(2):
            first = first - (first * second).sum(dim=2, keepdim=True) / size * second
        one = first.square().sum(dim=2).clamp(min=LEAST if self.moves else math.inf)
        return -((first * self.residual).sum(dim=2) / one).nan_to_num(0)

    def explained(self, part: Problem, free: Tensor, prior: LabelPrior) -> Explained:
        count = max(1, prior.equations(part.classes) - 1)
        misfit = (self.size / count).sqrt().nan_to_num(math.inf)
        reach = ((ACCEPT**2 - misfit.square()).clamp(min=0) * count).sqrt()
        own = _equations(part, free, _likely(part, self.scalars), self.scalars, self.weights, prior, self.moves)
        inverse = self.inverse()
        loose = (reach * inverse[:, :, 0].norm(dim=2)).nan_to_num(math.inf)
        edge = (misfit > ACCEPT / 2) & (misfit < ACCEPT)
        if edge.any():
            # Where the next step would still lead away, this is not the middle of what is accepted.
            loose = loose.masked_fill(edge & (self.step().abs() > KNOWN), math.inf)
        named = torch.stack([own.raw, -own.pull], dim=3).masked_fill_(~free.unsqueeze(3), 0) @ inverse
        opened = reach * named.norm(dim=3).sum(dim=2)
        # An entry may be above 1 by its rounding error and by what it moves within what is accepted.
        slack = opened.nan_to_num(0).clamp(max=KNOWN).unsqueeze(2)
        lost = reach * inverse[:, :, 1].norm(dim=2) > ANY
        if prior.free == 2:
            lost |= loose > ANY
        if prior.rest == "equal":
            mean = reach * (own.drift.unsqueeze(2) @ inverse)[:, :, 0].norm(dim=2) + 3 * own.sure[:, :, 0]
            opened = 2 * (part.classes - prior.free) * mean
        if prior.free == 2 or prior.rest == "equal":
            opened = torch.where(lost, 2, opened)
        label = torch.where(free, own.label, own.mean)
        error = NEGATIVE * own.error
        valid = (label >= -error).all(dim=2) & (label <= 1 + error + slack).all(dim=2)
        valid &= (label + error >= own.mean).masked_fill(~free, True).all(dim=2)
        label = label.clamp(min=0)
        missing = 1 - label.sum(dim=2, keepdim=True)
        label = torch.where(free, label + missing / prior.free, label).clamp(min=0)
        # What a gradient is may not be all rounding: then an infinite factor explains any.
        loud = (own.pull.abs() > ACCEPT * own.error).any(dim=2)
        loud &= self.credible()
        accepted = (misfit < ACCEPT) & valid & loud & self.scalars.isfinite() & self.weights.isfinite()
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
    """Whether the classes that the label does not name say more than there are unknowns (N, K).

    A class without a probability says nothing of t, and all such say one thing together of what they share. The
    class of a one-hot label is known by its sign alone.
    """
    alive = (own.label + own.pull > ACCEPT * own.error) & ~free
    told = alive.sum(dim=2)
    if prior.rest == "equal":
        told = told + (~alive & ~free).any(dim=2)
    unknowns = 1 + moves + (prior.rest == "equal")
    enough: Tensor = told > unknowns
    return enough | (prior == LabelPrior(1, "zero"))


TENSORS = tuple(one.name for one in fields(_Fit) if one.name != "moves")
