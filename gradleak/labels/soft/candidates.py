"""Judge points that were found: whether each explains its gradient, and how far rounding leaves its label open."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.equations import Fit, entries, explains, possible, shared, valid, weighted_mean
from gradleak.labels.soft.path import padded
from gradleak.labels.soft.problem import ACCEPT, NEGATIVE, Problem
from gradleak.labels.verdict import KNOWN

# The accepted range of a scalar ends at this many times the scalar.
FARTHEST = 1e8
# Scalars that are tried on either side of one whose label has a negative entry, up to the ends of its range.
POINTS_INSIDE = 64
# Gradient scales κ between 1 / LARGEST_SCALE and LARGEST_SCALE are considered.
LARGEST_SCALE = 1e9
# Above this relative uncertainty the gradient's scale is undetermined.
UNDETERMINED = 0.5


@dataclass(frozen=True)
class Candidates:
    """K points for each of N samples, in no particular order, and how well each explains its gradient.

    Attributes:
        values: (5, N, K), or (8, N, K) if the scale is unknown. One tensor is quick to join, sort and select. Its rows:
            t; the least and the largest scalar around t that are still accepted; the root mean square residual in
            rounding errors, inf if the point does not explain the gradient; the uncertainty of the label by rounding
            (L1). If the scale is unknown: w = 1 / (κ t), the relative uncertainty of t, and 1 where the label gives
            more equations than there are unknowns, else 0.
    """

    values: Tensor

    @property
    def scalars(self) -> Tensor:
        """t (N, K)."""
        return self.values[0]

    @property
    def misfit(self) -> Tensor:
        """Root mean square residual or minus log-likelihood (N, K), inf if the point does not explain the gradient."""
        return self.values[3]

    @property
    def accepted(self) -> Tensor:
        """Whether the point explains the gradient (N, K)."""
        return self.misfit < math.inf


def joined(parts: list[Candidates], dim: int = 1) -> Candidates:
    """Join the candidates of different samples (`dim` 1), or more candidates of the same ones (`dim` 2)."""
    if len(parts) == 1:
        return parts[0]
    most = max(part.values.shape[2] for part in parts)
    values = [padded(part.values, most) if dim == 1 else part.values for part in parts]
    return Candidates(torch.cat(values, dim=dim))


def merged(problem: Problem, sides: list[tuple[Tensor, int, Candidates]]) -> Candidates:
    """Merge the candidates of both signs, accepted ones first and best first; other candidates have NaN scalars.

    `sides`: the samples' indices, the sign of their scalars, and what was found.
    """
    if not sides:
        return Candidates(
            problem.unit.new_tensor([math.nan, *[math.inf] * 7])[:, None, None].repeat(1, len(problem), 1)
        )
    columns = []
    for rows, sign, found in sides:
        side = found.values
        if sign < 0:
            side = side.clone()
            side[:3] *= -1
            side[5:6] *= -1
        if len(rows) < len(problem):
            whole = side.new_full((len(side), len(problem), side.shape[2]), math.inf)
            whole[:, rows] = side
            side = whole
        columns.append(Candidates(side))
    both = joined(columns, dim=2)
    values = both.values.gather(2, both.misfit.argsort(dim=1, stable=True).expand_as(both.values))
    values[0].masked_fill_(values[3] == math.inf, math.nan)
    return Candidates(values)


def judged(problem: Problem, scalars: Tensor, lengths: Tensor, prior: LabelPrior | Score) -> Candidates:
    """Return for scalars (N, K) their accepted range, how the label changes over it, and whether they are valid.

    `lengths` (2, N, K): the misfit and its slope.
    """
    misfit, steep = lengths.unbind()
    reach = (ACCEPT**2 - misfit.square()).clamp_(min=0).sqrt_() / steep.clamp(min=1e-300)
    low = torch.maximum(scalars - reach, problem.least[:, None])
    high = torch.minimum(scalars + reach, scalars * FARTHEST)
    label, error = problem.explained(torch.cat([scalars, low, high], dim=1))
    label, count = label.unflatten(1, (3, -1)), scalars.shape[1]
    own = label[:, :1]
    moved, error = (label - own).abs_().sum(dim=3).amax(dim=1), error[:, :count]
    good = valid(problem, scalars, own[:, 0], error)
    fits = misfit < ACCEPT
    if problem.noisy and isinstance(prior, LabelPrior):
        # Under noise large scalars have large errors and small residuals, so compare likelihoods by the usual errors.
        noise, usual, at = problem.noise[:, None], replace(problem, usual=True), scalars.unsqueeze(2)
        sides = probability, pull = usual.sides(at)
        unlikely = prior.equations(problem.classes) / 2 * Fit.at(usual, prior, scalars, sides=sides).lengths[0].square()
        unlikely += usual.rounding(probability, probability - pull, at).log().sum(dim=2)
        unlikely += problem.classes * (scalars / noise).log()
        misfit = torch.where(noise > 0, unlikely, misfit)
    fine = fits & good
    found = torch.stack([scalars, low, high, misfit.where(fine, math.inf), moved])
    beside = (fits ^ fine) & (moved > KNOWN)
    if beside.any():
        # Flat logits fit the gradient equally well over a wide range of scalars, and the best fit may have an invalid
        # label.
        row, column = beside.nonzero(as_tuple=True)
        found[0, row, column], some = _valid_inside(problem[row], found[:3, row, column, None], prior)
        found[3, row, column] = misfit[row, column].where(some, math.inf)
    return Candidates(found)


def _valid_inside(problem: Problem, ranges: Tensor, prior: LabelPrior | Score) -> tuple[Tensor, Tensor]:
    """Return the nearest scalars (n,) with a valid label, and whether there are any.

    `ranges` (3, n, 1): scalars whose label has a negative entry, and the ends of their ranges.
    """
    at, *ends = ranges
    steps = torch.linspace(0, 1, POINTS_INSIDE, dtype=at.dtype, device=at.device)
    points = torch.cat([at * (end / at) ** steps for end in ends], dim=1)
    good = possible(problem, points, prior)
    near = (points / at).log().abs().masked_fill(~good, math.inf).argmin(dim=1, keepdim=True)
    some = good.any(dim=1)
    return torch.where(some, points.gather(1, near)[:, 0], at[:, 0]), some


def judged_with_scale(fit: Fit) -> Candidates:
    """Return points (t, w) with the uncertainty of the label and of t, and whether each is accepted."""
    found, label = _judged_once(fit)
    largest = label.amax(dim=2)
    # If the least free entry equals the rest, any class may be the free one.
    if fit.prior.rest == "equal":
        tied = found.accepted & (largest <= 1 / label.shape[2] + KNOWN)
    else:
        tied = found.accepted & (largest >= 1 - KNOWN) & (fit.prior.free == 2)
    if not tied.any():
        return found
    # Judge such labels again with the likeliest class as the free one, which leaves the most undetermined.
    kept = label.topk(fit.prior.free, dim=2).indices[:, :, :-1]
    likely = fit.problem.probabilities(fit.scalars).scatter(2, kept, -1).argmax(dim=2, keepdim=True)
    free = torch.cat([kept, likely], dim=2)
    again, _ = _judged_once(Fit.at(fit.problem, fit.prior, fit.scalars, fit.weights, free, fit.fixed))
    values = again.values.clone()
    values[3].masked_fill_(~tied, math.inf)
    return joined([found, Candidates(values)], dim=2)


def _judged_once(fit: Fit) -> tuple[Candidates, Tensor]:
    """Return points as candidates, and their labels (N, K, C).

    The label's change over the accepted range follows from its derivatives.
    """
    prior, scalars, weights, free = fit.prior, fit.scalars, fit.weights, fit.free
    assert weights is not None
    assert free is not None
    at, by = scalars.unsqueeze(2), weights.unsqueeze(2)
    probability, pull = fit.problem.sides(at, by)
    stack = entries(fit.problem, probability, pull, None)
    label, slopes = stack[0], stack[1:]
    error = fit.problem.rounding(probability, shared(label.clone(), free, prior), at, by)
    free = torch.zeros_like(label, dtype=torch.bool).scatter_(2, free, True)
    misfit = fit.lengths[0].nan_to_num(math.inf)
    reach = ((ACCEPT**2 - misfit.square()).clamp(min=0) * fit.equations).sqrt()
    inverse = fit.inverse()
    loose = (reach * inverse[:, :, 0].norm(dim=2) / scalars).nan_to_num(math.inf)
    edge = (misfit > ACCEPT / 2) & (misfit < ACCEPT)
    if edge.any():
        # If the next step still moves the scalar, this is not the middle of the accepted range, and its width is
        # unknown.
        loose = loose.masked_fill(edge & ((fit.moved(None) / scalars - 1).abs() > KNOWN), math.inf)
    change = slopes.movedim(0, 3).masked_fill(~free.unsqueeze(3), 0) @ inverse
    opened = reach * change.norm(dim=3).sum(dim=2)
    # An entry may exceed 1 by its rounding error, and by its movement within the accepted range.
    slack = opened.nan_to_num(0).clamp(max=KNOWN).unsqueeze(2)
    undetermined = reach * inverse[:, :, 1].norm(dim=2) > UNDETERMINED
    if prior.free == 2:
        undetermined |= loose > UNDETERMINED
    rest = torch.zeros_like(at)
    if prior.rest == "equal":
        rest, drift = (value := weighted_mean(stack, fit.accuracy))[0], value[1:, :, :, 0].movedim(0, 2)
        sure = fit.accuracy.square().sum(dim=2).clamp(min=1e-300).rsqrt()
        moved = reach * (drift.unsqueeze(2) @ inverse)[:, :, 0].norm(dim=2) + 3 * sure
        opened = 2 * (fit.problem.classes - prior.free) * moved
    if prior.free == 2 or prior.rest == "equal":
        opened = torch.where(undetermined, 2, opened)
    # A class without probability has no equation for t, and all such classes together have one, for the value they
    # share. The class of a one-hot label is verified by its sign alone.
    alive = (probability > ACCEPT * error) & ~free
    known = alive.sum(dim=2)
    if prior.rest == "equal":
        known = known + (~alive & ~free).any(dim=2)
    unknowns = 2 - fit.fixed + (prior.rest == "equal")
    checked = (known > unknowns) | (prior == LabelPrior(1, "zero"))
    # One bad residual among many classes, as with a wrong class named, hardly changes their root mean square.
    checked &= fit.stack[0].abs().amax(dim=2) < ACCEPT
    label = torch.where(free, label, rest)
    slipped = NEGATIVE * error
    good = ((label >= -slipped) & (label <= 1 + slipped + slack) & (label + slipped >= rest)).all(dim=2)
    # With w = 0, an infinite scale, rounding would explain any gradient, so some entry of w c must exceed it.
    good &= (pull.abs() > ACCEPT * error).any(dim=2) & ((weights * scalars).log().abs() <= math.log(LARGEST_SCALE))
    good &= (misfit < ACCEPT) & scalars.isfinite() & weights.isfinite()
    opened = opened.nan_to_num(math.inf).clamp(max=2)
    found = [scalars, scalars, scalars, misfit.where(good, math.inf), opened, weights, loose, checked.to(scalars)]
    label = label.clamp(min=0)
    missing = 1 - label.sum(dim=2, keepdim=True)
    return Candidates(torch.stack(found)), torch.where(free, label + missing / prior.free, label).clamp(min=0)


def checked(problem: Problem, scalars: Tensor, prior: LabelPrior | Score | None) -> tuple[Tensor, Tensor]:
    """Return the labels (N, C) at known scalars (N, 1), and whether they fit the prior (N,)."""
    label, error = problem.explained(scalars)
    fits = valid(problem, scalars, label, error) if prior is None else explains(problem, scalars, prior)
    return label[:, 0], fits[:, 0]
