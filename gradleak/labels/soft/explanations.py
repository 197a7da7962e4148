"""Judge the points that were found, and list the distinct labels that explain a gradient.

A point is judged by whether it explains the gradient, and by how far rounding leaves its label open. If there is not
exactly one label, the reason is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.labels.priors import KNOWN, LabelPrior, Score
from gradleak.labels.soft.equations import Fit, conditions, entries, explains, possible, shared, valid, weighted_mean
from gradleak.labels.soft.problem import ACCEPT, NEGATIVE, TRUE, Problem, padded

# The accepted range of a scalar ends at this many times the scalar.
FARTHEST = 1e8
# Scalars that are tried on either side of one whose label has a negative entry, up to the ends of its range.
POINTS_INSIDE = 64
# Gradient scales κ between 1 / LARGEST_SCALE and LARGEST_SCALE are considered.
LARGEST_SCALE = 1e9
# Above this relative uncertainty the gradient's scale is undetermined.
UNDETERMINED = 0.5
# The same label with two features that differ by this relative distance counts as two explanations.
KNOWN_FEATURE = 0.1
# So do scalars that differ by this share of the true one: a little less, since rounding turns the feature as well.
KNOWN_LENGTH = 0.099
# The claimed error of a feature's length in standard deviations.
BOUND = 4.0
# A scalar that is larger or smaller by this factor gives another feature.
APART = 1.12
# No such scalar explains the gradient if the accepted range, by the slope of the residuals, is narrower than this.
STEEP = 1e-3
NO_LABEL = "no scalar gives a label of the assumed kind: the kind is wrong, or the gradient was rescaled"


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


@dataclass(frozen=True)
class Explanation:
    """The best explanation of each of N samples, its uncertainty, and the alternatives.

    Attributes:
        scalars: t (N,), NaN where there is no explanation.
        weights: w = 1 / (κ t) (N,).
        labels: (N, C).
        open: L1 uncertainty of the label by rounding (N,).
        loose: Relative uncertainty of the feature (N,).
        length: Relative uncertainty of the feature's length by the range of its scalar (N,), if the scale is known.
        spread: The largest L1 distance of another label that explains the gradient (N,).
        checked: Whether an equation was left to verify the answer with (N,).
        candidates: All distinct labels of each sample (M, C).
        proved: Whether it is proved for each sample that there is no other label; None if no proof was asked for.
    """

    scalars: Tensor
    weights: Tensor
    labels: Tensor
    open: Tensor
    loose: Tensor
    length: Tensor
    spread: Tensor
    checked: Tensor
    candidates: tuple[Tensor, ...]
    proved: tuple[bool, ...] | None = None


def shaped(labels: Tensor, prior: LabelPrior | Score) -> Tensor:
    """Return the labels (…, C) nearest to these that have the prior's shape and sum to 1."""
    if not isinstance(prior, LabelPrior):
        return labels
    values, free = labels.topk(prior.free, dim=-1)
    if prior.rest == "equal":
        # Most of the remaining classes have small probabilities and small errors, and the median is one of these.
        rest = labels.scatter(-1, free, math.nan).nanmedian(dim=-1, keepdim=True).values.expand_as(labels)
    else:
        rest = torch.zeros_like(labels)
    result = rest.scatter(-1, free, values).clamp_(min=0)
    missing = (1 - result.sum(dim=-1, keepdim=True)).div_(prior.free)
    return result.scatter_add_(-1, free, missing.expand_as(free)).clamp_(min=0)


def explanations(problem: Problem, prior: LabelPrior | Score, merged: Candidates) -> Explanation:
    """List each sample's distinct labels, given its candidates with the best one first."""
    at_all, low, high, misfit, opened, *with_scale = merged.values.unbind()
    best, accepted, weights = at_all[:, 0], merged.accepted, with_scale[0] if with_scale else None
    widest = opened.where(accepted, 0).amax(dim=1)
    counts = accepted.sum(dim=1).tolist()
    most = max(1, *counts)
    scalars, kept = at_all[:, :most], accepted[:, :most]
    # The distances of the ends of the best scalar's range, as shares of the scalar.
    reach = (merged.values[1:3, :, 0] / best).sub_(1).abs_()
    wide = weights is None and bool((reach[1] > STEEP).any())
    if weights is None and (widest > KNOWN).any():
        ends = accepted & (opened > KNOWN)
        # If a label is uncertain, the ends of its accepted range are explanations as well.
        low, high = (_true_ends(problem, prior, at_all, end, ends) for end in (low, high))
        # These ends represent all candidates between them; keep only the best of these.
        first = torch.arange(accepted.shape[1], device=accepted.device) == 0
        accepted = accepted & (~ends | first)
        scalars = torch.cat([value[:, :most] for value in (at_all, low, high)], dim=1)
        kept = torch.cat([mask[:, :most] for mask in (accepted, ends, ends)], dim=1)
    loose = torch.zeros_like(best)
    if wide:
        # If another feature explains the gradient as well as the true one does, or if this one does not, it is unknown.
        beside, sign = best[:, None] * best.new_tensor([1 / APART, 1, APART]), best.sign()[:, None]
        side = replace(problem, logits=sign * problem.logits, ratios=sign * problem.ratios)
        near = explains(side, beside.abs(), prior, TRUE)
        scalars = torch.cat([scalars, beside[:, ::2]], dim=1)
        kept = torch.cat([kept, near[:, ::2]], dim=1)
        loose.masked_fill_(~near[:, 1], math.inf)
    by = None if weights is None else weights[:, :most, None]
    probability, pull = problem.sides(scalars.unsqueeze(2), by)
    labels = shaped(probability - pull, prior)
    # If the scale is unknown, `loose` says how far the scalar is, too.
    at = scalars if weights is None else torch.ones_like(scalars)
    # Usually all accepted candidates are the same label, reached from several starts.
    first_label = labels[:, :1]
    distance = (labels - first_label).abs().sum(dim=2).where(kept, 0)
    apart = ((distance > KNOWN) | _scaled(at, at[:, :1])) & kept
    found = [own if count else own[:0] for own, count in zip(first_label, counts, strict=True)]
    for n in [n for n, several in enumerate(apart.any(dim=1).tolist()) if several]:
        own, here = labels[n, kept[n]], at[n, kept[n]]
        different = (own[None] - own[:, None]).abs().sum(dim=2) > KNOWN
        different |= _scaled(here[None], here[:, None])
        distinct: list[int] = []
        for index, row in enumerate(different.tolist()):
            if all(row[other] for other in distinct):
                distinct.append(index)
        found[n] = own[distinct]
    spread = distance.amax(dim=1)
    if weights is None:
        # A single equation is used up by the scalar: every root is an answer, and a root may have been missed.
        if isinstance(prior, LabelPrior):
            checked = torch.full_like(best, prior.equations(problem.classes) > 1, dtype=torch.bool)
        else:
            at = at_all[:, :1]
            _, error = problem.certainty(at, at.reciprocal(), labels[:, 0])
            _, slope = entries(problem, probability[:, :1], pull[:, :1], at.unsqueeze(2))
            checked = conditions(labels[:, 0], error, prior, slope[:, 0] * at) > 1
            spread = spread.where(checked, 2)
        # The range ends where the root mean square of the residuals does not fit; independent errors leave less open.
        equations = prior.equations(problem.classes) if isinstance(prior, LabelPrior) else 1
        share = BOUND / ACCEPT / math.sqrt(equations)
        length = reach.amax(dim=0).mul_(misfit[:, 0].clamp(min=1).mul_(share))
        return Explanation(best, best.reciprocal(), labels[:, 0], widest, loose, length, spread, checked, tuple(found))
    loose, checked = with_scale[1].where(accepted, 0).amax(dim=1), (with_scale[2][:, 0] > 0) & accepted[:, 0]
    # No equation checks such a label, so its error is only bounded by the largest L1 distance of two labels, 2.
    opened = torch.where(checked, widest, 2)
    return Explanation(
        best, weights[:, 0], labels[:, 0], opened, loose, torch.zeros_like(best), spread, checked, tuple(found)
    )


def _scaled(scalars: Tensor, answers: Tensor) -> Tensor:
    """Return whether answers give other features than these scalars do, each of which may be the true one."""
    return (answers / scalars - 1).abs() > KNOWN_LENGTH


def _true_ends(problem: Problem, prior: LabelPrior | Score, inside: Tensor, ends: Tensor, which: Tensor) -> Tensor:
    """Move the ends (N, K) of accepted ranges towards their scalars until the ends explain the gradient, too."""
    row, column = which.nonzero(as_tuple=True)
    if len(row) == 0:
        return ends
    near, far = inside[row, column], ends[row, column]
    sign = near.sign()
    part = problem.oriented(row, sign[:, None])
    good, bad = near.abs(), far.abs()
    whole = possible(part, bad[:, None], prior)[:, 0]
    for _ in range(50):
        middle = (good * bad).sqrt()
        inside_still = possible(part, middle[:, None], prior)[:, 0]
        good, bad = torch.where(inside_still, middle, good), torch.where(inside_still, bad, middle)
    result = ends.clone()
    result[row, column] = sign * torch.where(whole, far.abs(), good)
    return result


def reason_of(
    faintest: float,
    size: float,
    fitted: bool,
    misfit: float,
    widest: float,
    loose: float,
    checked: bool,
    candidates: Tensor,
    proved: bool | None,
) -> str:
    """Return why an answer is not unique, or "" if it is; `candidates` (M, C) are the labels that were found.

    `faintest`: the size up to which a gradient is lost in the smallest numbers of its precision.
    """
    if not size > 0:
        return "the gradient is zero: prediction and label agree, and nothing else is known"
    if size <= faintest:
        return f"the gradient, of size {size:.0e}, is lost in the smallest numbers that its precision holds"
    if not fitted:
        return f"not one sample's gradient: it misses rank one by {misfit:.1e}, more than rounding; a batch, or noise"
    if len(candidates) == 0:
        return NO_LABEL
    if widest > KNOWN:
        allowed = f"labels at an L1 distance of {min(widest, 2):.1g}{_share_of(candidates)}"
        return f"within its rounding errors, the gradient allows {allowed}"
    if len(candidates) > 1:
        return f"{len(candidates)} labels, or features, explain the gradient"
    if loose > 1:
        return "the gradient's digits do not determine the feature"
    if loose > KNOWN_FEATURE:
        return f"within its rounding errors, the gradient determines the feature only to {loose:.0%}"
    if proved is not None:
        return "" if proved else "intervals do not exclude that another scalar explains the gradient"
    return "" if checked else "no equation is left that could tell this answer from another"


def _share_of(candidates: Tensor) -> str:
    """Return the class that all labels (M, C) name and the range of its share, or "" if they name different ones."""
    most, named = candidates.max(dim=1)
    first, *others = named.tolist()
    if any(other != first for other in others):
        return ""
    low, high = most.aminmax()
    share = f", with a share from {float(low):.2g} to {float(high):.2g}" if float(high - low) > KNOWN / 2 else ""
    return f"; all labels found name class {first}{share}"
