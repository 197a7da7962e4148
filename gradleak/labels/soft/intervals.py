"""Exclude ranges of the scalar: bounds over a whole range show that no scalar in it explains the gradient.

The logarithm of t pᵢ(t) is concave in t, since the log-partition function is convex. Over a range it is at least the
smaller value at the two ends, and at most the bound by the tangents at both ends. This bounds tŷᵢ = t pᵢ(t) − cᵢ. A
range is excluded if the prior fails in it by more than the greatest rounding error: entries that should be equal have
no common value, or too many entries that should be zero are not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.devices import entries_at_once
from gradleak.labels.priors import LabelPrior
from gradleak.labels.soft.explanations import KNOWN_LENGTH
from gradleak.labels.soft.problem import ACCEPT, COPIES, LARGEST, NEGATIVE, Problem

# Classes that are examined in a range; those with the largest errors c exclude nearly all that can be excluded.
TELLING = 16
# Relative error of the arithmetic of the bounds themselves, in each value and in its exponent.
UNIT = 8 * 2.0**-53
# A proof starts with ranges whose ends have the ratio COARSE, up to FAR times the least scalar. One more range ends at
# FARTHEST.
COARSE, FAR, FARTHEST = 1.2, 1e8, 1e20
# Distances of the edges from an answer grow by the share GRADED. Ranges that remain are split into SPLIT parts, at most
# ROUNDS times.
GRADED, SPLIT, ROUNDS = 0.25, 8, 6
# A sample with more ranges left is not split again: rounding leaves more than one answer.
MOST_RANGES = 256
# Entries of the bounds that are computed at a time on a CPU.
CHUNK_ELEMENTS = 2**20


def excluded(problem: Problem, edges: Tensor, prior: LabelPrior, telling: int = TELLING) -> Tensor:
    """Return in which of the ranges between neighbouring `edges` (N, K + 1) no scalar explains the gradient (N, K).

    `telling`: how many classes are examined, those with the largest errors; more classes exclude more and take longer.
    """
    low, high, error, size = _bounds(problem, edges, min(problem.classes, max(telling, prior.free + 4)))
    unit = problem.unit[:, None, None]
    most = ACCEPT * math.sqrt(prior.equations(problem.classes)) * (1 + 1e-9)
    negative = (high + NEGATIVE * (error + unit * size) < 0).any(dim=2)
    margin = most * error
    if prior.rest == "zero":
        away = (low > margin) | (high < -margin)
        out = negative | (away.sum(dim=2) > prior.free)
    else:
        tied = ~_free(low, high, prior)
        error = error + unit * _mean_bound(problem, edges, prior, size, margin, tied)
        margin = most * error
        above = (low - margin).topk(prior.free + 1, dim=2).values[..., -1] > (high + margin).amin(dim=2)
        out = negative | above
    if low.shape[2] < problem.classes:
        return out
    return out | (_least_residual(low, high, error, prior) > most)


def _free(low: Tensor, high: Tensor, prior: LabelPrior) -> Tensor:
    """Return which entries (N, K, C) are free, the largest, all over a range; none where that is not clear."""
    ranked = low.topk(prior.free, dim=2)
    free = torch.zeros_like(low, dtype=torch.bool).scatter(2, ranked.indices, True)
    clear = ranked.values[..., -1:] > high.masked_fill(free, -math.inf).amax(dim=2, keepdim=True)
    return free & clear


def _mean_bound(
    problem: Problem, edges: Tensor, prior: LabelPrior, size: Tensor, margin: Tensor, tied: Tensor
) -> Tensor:
    """Return an upper bound (N, K, 1) on the mean of the entries tŷ that the prior ties together.

    All entries sum to t − Σc, and none is above t + max c. If all classes are examined there is a second bound: the
    value that the tied entries share is near each of them, and near their mean, by margins that grow with this value.
    """
    ratios, last = problem.ratios, edges[:, 1:, None]
    count = problem.classes - prior.free
    whole = last + ratios.sum(dim=1).abs()[:, None, None]
    mean = (whole + prior.free * (last + ratios.abs().amax(dim=1)[:, None, None])) / count
    if size.shape[2] < problem.classes:
        return mean
    left = 1 - ACCEPT * math.sqrt(prior.equations(problem.classes)) * 2 * problem.unit[:, None, None]
    near = (size + margin).kthvalue(prior.free + 1, dim=2, keepdim=True).values
    near = (near + (margin * tied).sum(dim=2, keepdim=True) / count) / left.clamp(min=1e-300)
    return torch.where(left > 0, torch.minimum(mean, near.nan_to_num(math.inf)), mean)


def _least_residual(low: Tensor, high: Tensor, error: Tensor, prior: LabelPrior) -> Tensor:
    """Return a lower bound (N, K) on the norm of residuals whose entries lie between these bounds (N, K, C).

    It is the norm of the midpoints less that of the half-widths, or 0 where it is not clear which entries are free.
    """
    free = _free(low, high, prior)
    weights = (1 / error).masked_fill(free, 0)
    middle = torch.where(free, 0, (low + high) / 2)
    if prior.rest == "equal":
        square = weights.square()
        middle = middle - (square * middle).sum(dim=2, keepdim=True) / square.sum(dim=2, keepdim=True)
    wide = ((high - low) / 2 * weights).norm(dim=2)
    return torch.where(free.any(dim=2), (middle * weights).norm(dim=2) - wide, 0).nan_to_num(0)


def _bounds(problem: Problem, edges: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return bounds (N, K, S) over each range for the S = `count` classes with the largest errors.

    These are the least and the greatest tŷ, the greatest rounding error without the contribution of ŷ, and the greatest
    |tŷ|.
    """
    telling = problem.ratios.abs().topk(count, dim=1).indices
    # Subtract the largest logit: the exponents of likely classes are then small, and so are their errors.
    problem = replace(problem, logits=problem.logits - problem.logits.amax(dim=1, keepdim=True))
    logits, ratios = (value.gather(1, telling).unsqueeze(1) for value in (problem.logits, problem.ratios))
    every = problem.probabilities(edges)
    mean = every @ problem.logits.unsqueeze(2)
    at = edges.unsqueeze(2)
    probability = every.gather(2, telling.unsqueeze(1).expand(-1, edges.shape[1], -1))
    value, slope = at * probability, 1 / at + logits - mean
    begin, end, last = value[:, :-1], value[:, 1:], at[:, 1:]
    above = _rise_above_ends(slope[:, :-1], slope[:, 1:], last - at[:, :-1])
    bias = 0.0 if problem.bias is None else 2 * problem.bias.abs().max()
    sizes = (at * mean).abs()
    own = UNIT * (1 + last * logits.abs() + torch.maximum(sizes[:, :-1], sizes[:, 1:]) + bias)
    low = torch.minimum(begin, end) * (1 - own)
    high = torch.maximum(begin, end) * (above + own).clamp(max=LARGEST).exp()
    unit, floor, noise = (one[:, None, None] for one in (problem.unit, problem.floor, problem.noise))
    unsure, growth = 1 + UNIT - torch.minimum(probability[:, :-1], probability[:, 1:]), problem.rate * at
    if (growth < 1).all():
        grown = high * growth[:, 1:].exp()
    else:
        # The logarithm of tp exp(rate t), too, is concave.
        grown = value * growth.clamp(max=LARGEST).exp()
        steeper = slope + problem.rate
        rise = _rise_above_ends(steeper[:, :-1], steeper[:, 1:], last - at[:, :-1])
        grown = torch.maximum(grown[:, :-1], grown[:, 1:]) * (rise + own).clamp(max=LARGEST).exp()
    steep = problem.unit * problem.scale + problem.sway
    moved = last * (high / last * unit + steep[:, None, None] * grown * unsure).clamp(max=1 / ACCEPT)
    error = moved + unit * ratios.abs() + (last + 1) * floor + noise
    low, high = low - ratios, high - ratios
    return low, high, error, torch.maximum(low.abs(), high.abs())


def _rise_above_ends(first: Tensor, last: Tensor, width: Tensor) -> Tensor:
    """Return how far a concave function with these end slopes can rise above the larger of its end values."""
    rising, falling = first.clamp(min=0), (-last).clamp(min=0)
    return width * rising * falling / (rising + falling).clamp(min=1e-300)


def proved(problem: Problem, scalars: Tensor, accepted: Tensor, prior: LabelPrior, largest: float = math.inf) -> Tensor:
    """Return for which samples (N,) every scalar that explains the gradient gives the label that was found.

    `scalars` (N, K): those that were found with the problem's sign, where `accepted`. Outside a range around them, no
    scalar up to 1e20 times the least one explains the gradient, or up to the `largest` one that is possible. Within
    this range all labels agree to the prior's tolerance, and every scalar gives the feature that was found.
    """
    some = accepted.any(dim=1)
    first = scalars.where(accepted, math.inf).amin(dim=1).where(some, 1)
    last = scalars.where(accepted, 0).amax(dim=1).where(some, 1)
    near = _allowed_change(problem, first, last, prior.tolerance).where(some, 0)
    lowest = torch.maximum(first * (1 - near), last / (1 + KNOWN_LENGTH))
    highest = torch.minimum(last * (1 + near), first / (1 - KNOWN_LENGTH))
    inner = torch.stack([lowest, highest], dim=1)
    count = math.ceil(math.log(FAR / 0.97) / math.log(COARSE)) + 1
    comb = torch.linspace(math.log(0.97), math.log(FAR), count, dtype=scalars.dtype, device=scalars.device).exp()
    comb = torch.cat([comb, comb.new_tensor([FARTHEST])])
    # Ranges around the answer grow with their distance from it.
    steps = near[:, None] * (1 + GRADED) ** torch.arange(1, 100, dtype=scalars.dtype, device=scalars.device)
    around = torch.cat([first[:, None] * (1 - steps.clamp(max=0.5)), last[:, None] * (1 + steps)], dim=1)
    least = problem.least[:, None]
    begin, end = 0.97 * least, torch.maximum((FARTHEST * least).clamp(max=largest), inner[:, 1:])
    around = torch.where(some[:, None], torch.minimum(torch.maximum(around, begin), end), begin)
    edges = torch.cat([torch.minimum(least * comb, end), around, torch.where(some[:, None], inner, begin)], dim=1)
    edges = edges.sort(dim=1).values
    results = []
    chunk = entries_at_once(problem.ratios.device, CHUNK_ELEMENTS, 8 * COPIES) // (edges.shape[1] * problem.classes)
    for rows in torch.arange(len(problem), device=scalars.device).split(max(1, chunk)):
        part, own = problem[rows], inner[rows]
        closed = _labels_agree(part, own, some[rows], prior.tolerance)
        results.append(closed & _excluded_outside(part, edges[rows], own, some[rows], prior))
    return torch.cat(results)


def _allowed_change(problem: Problem, first: Tensor, last: Tensor, tolerance: float) -> Tensor:
    """Return the relative change (N,) of a scalar that changes its label by a quarter of the tolerance (L1)."""
    at = torch.stack([first, last], dim=1)
    p, pull = problem.probabilities(at), problem.pulls(at)
    logits = at.unsqueeze(2) * problem.logits.unsqueeze(1)
    moves = (p * (logits - (p * logits).sum(dim=2, keepdim=True))).abs() + pull.abs()
    return (tolerance / 4 / moves.sum(dim=2).amax(dim=1).clamp(min=1e-300)).clamp(max=0.1)


def _labels_agree(problem: Problem, inner: Tensor, some: Tensor, tolerance: float) -> Tensor:
    """Return whether all labels in the inner ranges (N, 2) agree to the tolerance; log p is concave."""
    at = torch.stack([inner[:, 0], inner.prod(dim=1).sqrt(), inner[:, 1]], dim=1)
    p = problem.probabilities(at)
    slope = problem.logits.unsqueeze(1) - (p @ problem.logits.unsqueeze(2))
    above = _rise_above_ends(slope[:, 0], slope[:, 2], (inner[:, 1] - inner[:, 0])[:, None])
    wide = p[:, ::2].amax(dim=1) * above.exp() - p[:, ::2].amin(dim=1)
    wide = wide + problem.ratios.abs() * (1 / inner[:, :1] - 1 / inner[:, 1:])
    return (wide.sum(dim=1) <= tolerance) | ~some


def _excluded_outside(problem: Problem, edges: Tensor, inner: Tensor, some: Tensor, prior: LabelPrior) -> Tensor:
    """Return whether all ranges between edges (N, K + 1) outside the inner one are excluded, split if necessary."""
    samples = torch.arange(len(problem), device=edges.device)
    whole = torch.ones_like(some)
    for telling in (TELLING, *(problem.classes,) * ROUNDS):
        within = some[samples, None] & (edges[:, :-1] >= inner[samples, :1]) & (edges[:, 1:] <= inner[samples, 1:])
        empty = edges[:, 1:] <= edges[:, :-1]
        left = ~(within | empty | excluded(problem[samples], edges, prior, telling))
        row, place = left.nonzero(as_tuple=True)
        if len(row) == 0:
            return whole
        owner = samples[row]
        # A sample with too many ranges left is not proved.
        many = torch.bincount(owner, minlength=len(problem)) > MOST_RANGES
        whole &= ~many
        row, place = row[~many[owner]], place[~many[owner]]
        samples = samples[row]
        begin, end = edges[row, place, None], edges[row, place + 1, None]
        steps = torch.linspace(0, 1, SPLIT + 1, dtype=edges.dtype, device=edges.device)
        edges = torch.where(steps == 1, end, begin * (end / begin) ** steps)
    whole[samples] = False
    return whole
