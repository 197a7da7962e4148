"""The scalar search solved: every scalar that explains a gradient, with a certificate.

With G = c vᵀ and x = t v (see `rank_one`), the client's own equation t (p(t) − y) = c must hold for a label y of the
shape that the prior allows. Entries that the prior ties down give residuals rᵢ(t) = pᵢ(t) − cᵢ / t − yᵢ. Each is
compared with its own rounding error, so that a scalar is accepted for the digits it explains and not for being small:

    eᵢ(t) = u (pᵢ (1 + (1 − pᵢ) t ‖W‖) + |yᵢ| + |cᵢ| / t) + noise / t, and the least number that the precision holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.path import ScalarPath, golden

# A class more than 40 below the top has no influence left, so softmax changes on a relative scale of 1/40 of t at the
# finest; far out, where ‖p − y‖ < 1e-4, little happens.
GRIDS = ((1.0, 1e4, 0.01), (1e4, 1e8, 0.03))
FINER = (1.0, 1e8, 0.001)
# A one-hot label that is all but predicted: only the odds among the other classes, as small as they get, tell t.
FARTHER = (1e8, 1e300, 0.04)
SATURATED = 1e3
FEW, FEW_STEP = 4, 0.1
# How many of a sample's grid minima are polished: the least in units of their rounding error.
KEPT = 8
STEPS = 8
# A scalar is accepted if its residuals are below this many rounding errors in the mean square; measured on networks,
# the true one stays below 3 (the tests draw it anew).
ACCEPT = 6.0


@dataclass(frozen=True)
class Problem(ScalarPath):
    """Everything that N samples' scalars are found from, one sign of the scalar a line: x = t v, t = ‖x‖.

    `logits` a = W v and `ratios` c (N, C); `bias` b (C,) or None; `unit` (N,): rounding unit of the gradient; `floor`
    (N,): the least number that its precision holds; `scale` (N,): ‖W‖ in units of the logits; `noise` (N,): the
    standard deviation of the entries of c; `sway` (N,): that of the entries of a.
    """

    logits: Tensor
    ratios: Tensor
    bias: Tensor | None
    unit: Tensor
    floor: Tensor
    scale: Tensor
    noise: Tensor
    sway: Tensor

    def oriented(self, rows: Tensor, sign: Tensor | int) -> Problem:
        """Return the problems of some samples, the scalar's sign turned: of all, or of each by its own (n, 1)."""
        part = self[rows]
        return replace(part, logits=sign * part.logits, ratios=sign * part.ratios)

    @property
    def least(self) -> Tensor:
        """The least scalar for which a label can exist, (N,): the positive entries of p − y sum to at most 1."""
        positive, negative = self.ratios.clamp(min=0).sum(dim=1), -self.ratios.clamp(max=0).sum(dim=1)
        least = torch.maximum(positive, negative)
        # Noise adds to both sums; what is left of the bound without it is never taken for less than a tenth.
        return torch.maximum(least - self.noise * self.ratios.shape[1] ** 0.5, least / 10)

    def grid(self, steps: Tensor) -> Tensor:
        """Return scalars (N, K): `steps` times the least one, up to where softmax has one class left."""
        top = self.logits.topk(2, dim=1).values
        spread = 0.0 if self.bias is None else self.bias.max() - self.bias.min()
        last = (SATURATED + spread) / (top[:, 0] - top[:, 1]).clamp(min=torch.finfo(top.dtype).tiny)
        return torch.minimum(self.least[:, None] * steps, torch.maximum(last, self.least * 10)[:, None])

    def rounding(
        self, scalars: Tensor, probability: Tensor, pull: Tensor, label: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Return the error eᵢ(t) (N, K, C) of pᵢ − w cᵢ at t (N, K), given p, w c and y; w is 1 / t if not given."""
        unit, floor, scale, noise, sway = (
            value[:, None, None] for value in (self.unit, self.floor, self.scale, self.noise, self.sway)
        )
        at = scalars.unsqueeze(2)
        own = probability * (unit + (1 - probability) * at * (unit * scale + sway)) + unit * (label.abs() + pull.abs())
        pulled = (floor + noise) / at if weights is None else (floor + noise) * weights.unsqueeze(2)
        return own + floor + pulled

    def explained(self, scalars: Tensor) -> tuple[Tensor, Tensor]:
        """Return ŷ(t) and its rounding error (N, K, C) for t (N, K)."""
        probability, pull = self.probabilities(scalars), self.pulls(scalars)
        label = probability - pull
        return label, self.rounding(scalars, probability, pull, label)


@dataclass(frozen=True)
class Candidates:
    """K scalars for each of N samples, the least misfit first, and how well each explains its gradient.

    `scalars` (N, K); `misfit` (N, K): root mean square residual in rounding errors; `low`, `high` (N, K): how far
    the scalar can move and stay accepted; `open` (N, K): the L1 distance that the label moves with it; `accepted`
    (N, K).
    """

    scalars: Tensor
    misfit: Tensor
    low: Tensor
    high: Tensor
    open: Tensor
    accepted: Tensor


def solve(problem: Problem, prior: LabelPrior | Score) -> Candidates:
    """Find the scalars that explain each sample, finer and farther where the first grid shows none."""
    # One or two equations have roots side by side: those need a finer comb.
    comb = FEW_STEP if isinstance(prior, LabelPrior) and prior.equations(problem.classes) < FEW else 1.0
    found = _search(problem, prior, tuple((start, stop, step * comb) for start, stop, step in GRIDS))
    for grid in (FINER, FARTHER):
        missing = (~found.accepted.any(dim=1)).nonzero()[:, 0]
        if len(missing) == 0:
            break
        again = _search(problem[missing], prior, (grid,), steps=5 * STEPS)
        found = _replaced(found, missing, again)
    return found


def _replaced(found: Candidates, where: Tensor, again: Candidates) -> Candidates:
    """Put what was found again in place of what was found, where it explains the gradient."""
    better = again.accepted.any(dim=1)
    values = []
    for old, new in ((getattr(found, name), getattr(again, name)) for name in Candidates.__annotations__):
        value = old.clone()
        value[where[better]] = new[better]
        values.append(value)
    return Candidates(*values)


def _search(
    problem: Problem, prior: LabelPrior | Score, grids: tuple[tuple[float, float, float], ...], steps: int = STEPS
) -> Candidates:
    comb = torch.cat([_log_steps(*grid, like=problem.logits) for grid in grids])
    ends = [_brackets(part, part.grid(comb), prior) for part in problem.parts(len(comb))]
    lower, upper = (torch.cat(values) for values in zip(*ends, strict=True))
    parts = problem.parts(lower.shape[1])
    sizes = [len(part) for part in parts]
    polished = [
        _polish(part, low, high, prior, steps)
        for part, low, high in zip(parts, lower.split(sizes), upper.split(sizes), strict=True)
    ]
    return Candidates(*(torch.cat([getattr(one, name) for one in polished]) for name in Candidates.__annotations__))


def _log_steps(start: float, stop: float, step: float, like: Tensor) -> Tensor:
    # Three steps early, so that a minimum at the least scalar itself has a neighbour on either side.
    begin = math.log(start) - (3 * step if start == 1 else -step)
    count = math.ceil((math.log(stop) - begin) / step) + 1
    return torch.linspace(begin, math.log(stop), count, dtype=like.dtype, device=like.device).exp()


def _brackets(part: Problem, grid: Tensor, prior: LabelPrior | Score) -> tuple[Tensor, Tensor]:
    """Return the ends (N, KEPT) of the grid cells around each sample's least minima on its grid (N, K)."""
    loss = _grid_loss(part, grid, prior)
    inner = loss[:, 1:-1]
    left, right = loss[:, :-2], loss[:, 2:]
    # Rounding makes ripples where nothing happens; a minimum is deeper than that.
    dips = (inner <= left) & (inner <= right) & (inner < torch.maximum(left, right) * (1 - 1e-9))
    # The ends count as minima: a label that the gradient hardly ties down is explained all the way out.
    ranked = torch.cat([loss[:, :1], torch.where(dips, inner, math.inf), loss[:, -1:]], dim=1)
    index = ranked.topk(min(KEPT, ranked.shape[1]), dim=1, largest=False).indices
    return grid.gather(1, (index - 1).clamp(min=0)), grid.gather(1, (index + 1).clamp(max=grid.shape[1] - 1))


def _grid_loss(part: Problem, grid: Tensor, prior: LabelPrior | Score) -> Tensor:
    """Return Σ |t rᵢ| (N, K): the misfit in the gradient's own units, which does not fade as t grows.

    Nothing is squared: of a saturated softmax, probabilities of 1e-200 are what tells t. Negative entries count
    where the residuals do not see them, so that ripples in a flat stretch of labels that are none are not taken for
    minima.
    """
    if not isinstance(prior, LabelPrior):
        scores: Tensor = prior(part.labels(grid))
        return scores * grid.square()  # a score is a square, more often than not
    # Classes before grid points, so that every reduction runs along memory; in place, for passes over it are what
    # costs.
    label = (part.logits - part.logits.amax(dim=1, keepdim=True)).unsqueeze(2) * grid.unsqueeze(1)
    if part.bias is not None:
        label += part.bias.unsqueeze(1)
        label -= label.amax(dim=1, keepdim=True)
    # Exponentials that are zero anyway take five times as long as others.
    label.clamp_(min=-700).exp_()
    label *= 1 / label.sum(dim=1, keepdim=True)
    label.addcmul_(part.ratios.unsqueeze(2), -1 / grid.unsqueeze(1))
    negative, rest = torch.zeros_like(grid), torch.zeros_like(grid)
    if prior.rest == "equal":
        rest = label.sum(dim=1)
    for _ in range(prior.free):
        value = label.amax(dim=1)
        negative -= value.clamp(max=0)
        rest -= value
        label.masked_fill_(label == value.unsqueeze(1), -math.inf)
    if prior.rest == "equal":
        rest /= part.classes - prior.free
        negative -= rest.clamp(max=0)
        label -= rest.unsqueeze(1)
    label.masked_fill_(label == -math.inf, 0)
    size: Tensor = label.abs_().sum(dim=1) + negative
    return size * grid


def _polish(problem: Problem, lower: Tensor, upper: Tensor, prior: LabelPrior | Score, steps: int) -> Candidates:
    """Narrow every bracket (N, K) to its minimum, all at once, and judge what is found there."""
    if isinstance(prior, LabelPrior):
        # Two starts a bracket: two minima may share one.
        first, ratio = (value.repeat(1, 2) for value in (lower, upper / lower))
        starts = first * ratio ** torch.tensor([0.1, 0.9]).to(lower).repeat_interleave(lower.shape[1])
        scalars, misfit, steep = _newton(problem, starts, first, first * ratio, prior, steps)
    else:
        scalars, misfit, steep = _scored(problem, lower, upper, prior)
    label, valid = _valid(problem, scalars)
    reach = (ACCEPT**2 - misfit.square()).clamp(min=0).sqrt() / steep.clamp(min=1e-300)
    low = torch.maximum(scalars - reach, problem.least[:, None])
    high = torch.minimum(scalars + reach, scalars * GRIDS[-1][1])
    moved = torch.maximum(*((problem.labels(at) - label).abs().sum(dim=2) for at in (low, high)))
    accepted = (misfit < ACCEPT) & valid
    order = misfit.argsort(dim=1)
    return Candidates(*(value.gather(1, order) for value in (scalars, misfit, low, high, moved, accepted)))


def explains(problem: Problem, scalars: Tensor, prior: LabelPrior | Score) -> Tensor:
    """Whether scalars (N, K) on the problem's own side of zero give a label that explains the gradient."""
    if not isinstance(prior, LabelPrior):
        return problem.labels(scalars).amin(dim=2) >= 0
    misfit, _ = _misfit(problem, *_residuals(problem, scalars, prior), prior)
    return (misfit < ACCEPT) & _valid(problem, scalars)[1]


def _newton(
    problem: Problem, scalars: Tensor, lower: Tensor, upper: Tensor, prior: LabelPrior, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gauss-Newton steps, each residual weighed by its rounding error; also return the misfit and its slope.

    Where the misfit still falls at the end, as on the steep side of an exponential, the steps go on.
    """
    residual, slope = _residuals(problem, scalars, prior)
    for _ in range(steps):
        before = residual.square().sum(dim=2)
        step = (residual * slope).sum(dim=2) / slope.square().sum(dim=2).clamp(min=1e-300)
        scalars = torch.minimum(torch.maximum(scalars - step, lower), upper)
        residual, slope = _residuals(problem, scalars, prior)
    misfit, steep = _misfit(problem, residual, slope, prior)
    falling = (residual.square().sum(dim=2) < before / 2) & (misfit > ACCEPT)
    if steps > STEPS or not falling.any():
        return scalars, misfit, steep
    row, column = falling.nonzero(as_tuple=True)
    at, low, high = (value[row, column, None] for value in (scalars, lower, upper))
    again = _newton(problem[row], at, low, high, prior, 6 * STEPS)
    for whole, part in zip((scalars, misfit, steep), again, strict=True):
        whole[row, column] = part[:, 0]
    return scalars, misfit, steep


def _misfit(problem: Problem, residual: Tensor, slope: Tensor, prior: LabelPrior) -> tuple[Tensor, Tensor]:
    """Return the root mean squares (N, K) of residuals and of their slopes, over the prior's equations."""
    count = prior.equations(problem.classes)
    misfit, steep = ((value.square().sum(dim=2) / count).sqrt() for value in (residual, slope))
    return misfit, steep


def _residuals(problem: Problem, scalars: Tensor, prior: LabelPrior) -> tuple[Tensor, Tensor]:
    """Return rᵢ(t) and drᵢ/dt (N, K, C) in units of their rounding error; 0 for the free entries."""
    probability, pull = problem.probabilities(scalars), problem.pulls(scalars)
    label = probability - pull
    logits = problem.logits.unsqueeze(1)
    slope = probability * (logits - (probability * logits).sum(dim=2, keepdim=True)) + pull / scalars.unsqueeze(2)
    free = torch.zeros_like(label, dtype=torch.bool).scatter(2, label.topk(prior.free, dim=2).indices, True)
    count = label.shape[2] - prior.free
    equal = prior.rest == "equal"
    rest = label.masked_fill(free, 0).sum(dim=2, keepdim=True) / count if equal else torch.zeros_like(label[..., :1])
    error = problem.rounding(scalars, probability, pull, rest)
    if equal:
        # The mean of the rest is theirs who know it best: one entry with a large error must not blur the others.
        weight = error.pow(-2).masked_fill(free, 0)
        weight = weight / weight.sum(dim=2, keepdim=True).clamp(min=1e-300)
        label = label - (weight * label).sum(dim=2, keepdim=True)
        slope = slope - (weight * slope).sum(dim=2, keepdim=True)
    return (label / error).masked_fill(free, 0), (slope / error).masked_fill(free, 0)


def _valid(problem: Problem, scalars: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels (N, K, C), and whether no entry is below zero, nor the errors' sum off it, beyond rounding."""
    label, error = problem.explained(scalars)
    balanced = problem.pulls(scalars).sum(dim=2).abs() <= 2 * ACCEPT * error.sum(dim=2)
    return label, (label >= -10 * ACCEPT * error).all(dim=2) & balanced


def checked(problem: Problem, scalars: Tensor, prior: LabelPrior | Score | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the labels (N, C) at known scalars (N, 1), how far they are open, and whether they fit the prior (N,)."""
    label, valid = _valid(problem, scalars)
    error = problem.explained(scalars)[1]
    if isinstance(prior, LabelPrior):
        valid = valid & explains(problem, scalars, prior)
    elif prior is not None:
        valid = valid & (prior(label) <= ACCEPT**2 * _level(label, error, prior))
    return label[:, 0], 2 * error.sum(dim=2)[:, 0], valid[:, 0]


def _level(label: Tensor, error: Tensor, score: Score) -> Tensor:
    """Return what rounding makes of a label's score (N, K)."""
    generator = torch.Generator().manual_seed(0)
    signs = 2 * torch.randint(2, (8, label.shape[2]), generator=generator).to(label) - 1
    found = score(label)
    level = torch.stack([(score(label + error * sign) - found).abs() for sign in signs]).mean(dim=0)
    return level.clamp(min=1e-300)


def _scored(problem: Problem, lower: Tensor, upper: Tensor, score: Score) -> tuple[Tensor, Tensor, Tensor]:
    """Narrow brackets for a score of which nothing is known; its unit is what rounding of the label makes of it."""

    def value(at: Tensor) -> Tensor:
        return score(problem.labels(at))

    scalars = golden(value, lower, upper)
    label, error = problem.explained(scalars)
    found, level = score(label), _level(label, error, score)
    # The gentler side counts: a score that is zero on an interval leaves the label open, seen from its very end too.
    step = 1e-4 * scalars
    beside = torch.minimum(value(scalars + step), value(scalars - step))
    return scalars, (found / level).clamp(min=0).sqrt(), (beside / level).clamp(min=0).sqrt() / step
