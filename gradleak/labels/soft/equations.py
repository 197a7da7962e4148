"""State the equations of one sample's label as residuals in rounding errors, with their derivatives.

If the gradient's scale κ is known, the label is ŷ(t) = p(t) − c / t. The only unknown is the scalar t. If κ is unknown,
the label is ŷ(t, w) = p(t) − w c with w = 1 / (κ t), which is linear in w. The entries that the prior constrains must
be equal to zero, or to each other. Each of them gives a residual that is compared with its rounding error, so a point
is accepted because it explains the digits and not because its residuals are small.

A caller's score of the label may take the place of a prior's equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.problem import ACCEPT, NEGATIVE, Problem, golden

# The second diagonal entry of R (QR decomposition) is at least RANK_TOLERANCE times its column's length. Lengths below
# LEAST would underflow when squared.
RANK_TOLERANCE, LEAST = 1e-16, 1e-150
# The equations do not determine t if orthogonalisation shortens its column to less than this share.
SINGULAR = 1e-13
# Reciprocal errors above LARGE would overflow when squared.
LARGE = 1e150
# A step that no bracket limits multiplies t by a factor in this range, so that t stays positive.
RANGE = (0.02, 4.0)
# A score is examined on PLANES circles of POINTS points around a label, with a radius of RADIUS of its errors. The
# error is at least FINEST, so that the score's own arithmetic does not matter.
PLANES, POINTS, RADIUS, FINEST = 4, 64, 50.0, 1e-9


@dataclass(frozen=True)
class Fit:
    """K points for each of N samples, with their residuals and the derivatives of these.

    Attributes:
        problem: The samples' equations.
        prior: The shape of the label.
        scalars: t (N, K).
        weights: w = 1 / (κ t) (N, K); None if the scale is known, when w = 1 / t.
        free: The free classes (N, K, F); None if the largest entries of each label are free.
        stack: The residuals and their derivatives by t, and by log w if w is an unknown (2 or 3, N, K, C), in rounding
            errors. They are 0 for the free classes.
        accuracy: One over the rounding error (N, K, C), 0 for the free classes.
        fixed: Whether t is known, and only w is an unknown.
    """

    problem: Problem
    prior: LabelPrior
    scalars: Tensor
    weights: Tensor | None
    free: Tensor | None
    stack: Tensor
    accuracy: Tensor
    fixed: bool = False

    @staticmethod
    def at(
        problem: Problem,
        prior: LabelPrior,
        scalars: Tensor,
        weights: Tensor | None = None,
        free: Tensor | None = None,
        fixed: bool = False,
        sides: tuple[Tensor, Tensor] | None = None,
    ) -> Fit:
        """Evaluate the equations at these points, where p and w c (N, K, C) may be given as `sides`."""
        at, by = scalars.unsqueeze(2), None if weights is None else weights.unsqueeze(2)
        probability, pull = sides or problem.sides(at, by)
        stack = entries(problem, probability, pull, at if weights is None else None)
        label = stack[0]
        named = label.topk(prior.free, dim=2).indices if free is None else free
        rest = shared(label, named, prior)
        accuracy = problem.rounding(probability, rest, at, by).reciprocal_().scatter_(2, named, 0)
        if prior.rest == "equal":
            stack -= weighted_mean(stack, accuracy.clamp_(max=LARGE))
        return Fit(problem, prior, scalars, weights, free, stack.mul_(accuracy), accuracy, fixed)

    @cached_property
    def lengths(self) -> Tensor:
        """The root mean squares over the equations (2 or 3, N, K): of the residuals, and of each derivative."""
        lengths: Tensor = torch.linalg.vector_norm(self.stack, dim=3) / math.sqrt(self.equations)
        return lengths

    @property
    def equations(self) -> int:
        """The number of equations that determine t."""
        return max(1, self.prior.equations(self.problem.classes) - (self.weights is not None))

    def moved(self, ends: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return t (N, K) after a Gauss-Newton step; without `ends` the step changes it by a factor in RANGE."""
        slope = self.stack[1]
        if self.weights is None:
            across, square = (self.stack * slope).sum(dim=3).unbind()
            square.clamp_(min=1e-300)
        else:
            # Remove what a change of w can do; the second pass removes the rounding error of the first.
            pull, own = self.stack[2], slope
            size = pull.square().sum(dim=2, keepdim=True).clamp_(min=LEAST)
            for _ in range(2):
                own = torch.addcmul(own, (own * pull).sum(dim=2, keepdim=True) / size, pull, value=-1)
            across, square = (own * self.stack[0]).sum(dim=2), own.square().sum(dim=2)
            # A scalar that the equations do not determine stays where it is.
            idle = square <= SINGULAR**2 * slope.square().sum(dim=2)
            across, square = across.masked_fill_(idle | self.fixed, 0).nan_to_num_(0), square.clamp_(min=LEAST)
        scalars = torch.addcdiv(self.scalars, across, square, value=-1)
        lower, upper = ends or (RANGE[0] * self.scalars, RANGE[1] * self.scalars)
        return scalars.clamp_(lower, upper)

    def at_scalars(self, scalars: Tensor) -> Fit:
        """Return the fit at other scalars, with the best w there given the rounding errors of this fit."""
        if self.weights is None:
            return Fit.at(self.problem, self.prior, scalars, free=self.free)
        probability, pull = self.problem.sides(scalars.unsqueeze(2), self.weights.unsqueeze(2))
        both = torch.stack([probability, pull])
        if self.prior.rest == "equal":
            both -= weighted_mean(both, self.accuracy)
        both *= self.accuracy
        # The equations are linear in w. Keep a weight that they hardly determine.
        across, size = (both * both[1]).sum(dim=3).unbind()
        change = torch.where((size > 1) & (across > 0), across / size.clamp(min=1e-300), 1)
        weights, sides = self.weights * change, (probability, pull.mul_(change.unsqueeze(2)))
        return Fit.at(self.problem, self.prior, scalars, weights, self.free, self.fixed, sides)

    def picked(self, row: Tensor, column: Tensor) -> Fit:
        """Return the points in these rows and columns as n samples with one point each."""
        scalars = self.scalars[row, column, None]
        weights, free = (None if one is None else one[row, column, None] for one in (self.weights, self.free))
        stack, accuracy = self.stack[:, row, column, None], self.accuracy[row, column, None]
        return Fit(self.problem[row], self.prior, scalars, weights, free, stack, accuracy, self.fixed)

    def replaced(self, row: Tensor, column: Tensor, points: Fit) -> Fit:
        """Replace points by those (n, 1) of another fit, in place."""
        self.scalars[row, column] = points.scalars[:, 0]
        self.stack[:, row, column] = points.stack[:, :, 0]
        self.accuracy[row, column] = points.accuracy[:, 0]
        if self.weights is not None and points.weights is not None:
            self.weights[row, column] = points.weights[:, 0]
        return replace(self)

    def inverse(self) -> Tensor:
        """Return the inverse (N, K, 2, 2) of R in the QR decomposition of the two derivatives.

        Orthogonalising the columns loses no digits, unlike the normal equations.
        """
        slope, pull = self.stack[1], self.stack[2]
        # An infinite length removes the derivative by a scalar that is known.
        one = slope.norm(dim=2).clamp(min=math.inf if self.fixed else LEAST)
        direction = slope / one.unsqueeze(2)
        across, left = torch.zeros_like(one), pull
        for _ in range(2):
            more = (direction * left).sum(dim=2)
            left, across = left - more.unsqueeze(2) * direction, across + more
        two = torch.maximum(left.norm(dim=2), RANK_TOLERANCE * pull.norm(dim=2)).clamp(min=LEAST)
        inverse = torch.stack([1 / one, -across / one / two, torch.zeros_like(one), 1 / two], dim=2)
        both: Tensor = inverse.unflatten(2, (2, 2))
        return both


def entries(problem: Problem, probability: Tensor, pull: Tensor, at: Tensor | None) -> Tensor:
    """Return the label with its derivatives by t and log w (3, N, K, C), given p and w c (N, K, C).

    With `at` (N, K, 1), w = 1 / t is no unknown, and the derivative is that by t (2, N, K, C).
    """
    stack = probability.new_empty(3 if at is None else 2, *probability.shape)
    label, slope, *by_weight = stack.unbind()
    torch.sub(probability, pull, out=label)
    torch.mul(probability, problem.rows[0], out=slope)
    slope.addcmul_(probability, slope.sum(dim=2, keepdim=True), value=-1)
    if at is None:
        torch.neg(pull, out=by_weight[0])
    else:
        slope.addcdiv_(pull, at)
    return stack


def shared(label: Tensor, free: Tensor, prior: LabelPrior) -> Tensor:
    """Return the value (N, K, 1) that entries of labels (N, K, C) should have, and overwrite the free ones by 0."""
    if prior.rest == "zero":
        return label.new_zeros(*label.shape[:2], 1)
    return label.scatter_(2, free, 0).sum(dim=2, keepdim=True) / (label.shape[2] - prior.free)


def weighted_mean(values: Tensor, accuracy: Tensor) -> Tensor:
    """Return the inverse-variance weighted mean (…, N, K, 1), so that entries with large errors do not blur others."""
    square = accuracy.square()
    return (values * square).sum(dim=-1, keepdim=True) / square.sum(dim=-1, keepdim=True).clamp_(min=1e-300)


def explains(problem: Problem, scalars: Tensor, prior: LabelPrior | Score, most: float = ACCEPT) -> Tensor:
    """Return whether scalars (N, K), with the problem's sign, give a label that explains the gradient.

    `most`: the largest root mean square of the residuals.
    """
    at = scalars.unsqueeze(2)
    sides = probability, pull = problem.sides(at)
    label = probability - pull
    error = problem.rounding(probability, label, at)
    if isinstance(prior, LabelPrior):
        fits = Fit.at(problem, prior, scalars, sides=sides).lengths[0] < most
    else:
        fits = prior(label) <= most**2 * level(label, error, prior)
    return fits & valid(problem, scalars, label, error)


def possible(problem: Problem, scalars: Tensor, prior: LabelPrior | Score) -> Tensor:
    """Return whether scalars (N, K) in an accepted range may explain the gradient; a score is not compared again."""
    if isinstance(prior, LabelPrior):
        return explains(problem, scalars, prior)
    return problem.labels(scalars).amin(dim=2) >= 0


def valid(problem: Problem, scalars: Tensor, label: Tensor, error: Tensor) -> Tensor:
    """Return whether labels (N, K, C) have no negative entry and sum to 1, within their rounding error (N, K)."""
    balanced = problem.total.abs()[:, None] <= 2 * ACCEPT * scalars * error.sum(dim=2)
    return (label.add(error, alpha=NEGATIVE) >= 0).all(dim=2) & balanced


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
