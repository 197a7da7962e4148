"""List the distinct labels that explain a gradient, and give the reason if there is not exactly one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.candidates import Candidates
from gradleak.labels.soft.equations import entries, explains, possible
from gradleak.labels.soft.problem import ACCEPT, TRUE, Problem
from gradleak.labels.soft.scores import conditions
from gradleak.labels.verdict import KNOWN

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
        different = _apart(own.unsqueeze(0), own.unsqueeze(1), here.unsqueeze(0), here.unsqueeze(1)).tolist()
        distinct: list[int] = []
        for index, row in enumerate(different):
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


def _apart(labels: Tensor, others: Tensor, scalars: Tensor, other_scalars: Tensor) -> Tensor:
    """Return whether explanations differ in their labels (…, C) or, judged by their scalars (…,), in their features."""
    return ((labels - others).abs().sum(dim=-1) > KNOWN) | _scaled(scalars, other_scalars)


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
        return "no scalar gives a label of the assumed kind: the kind is wrong, or the gradient was rescaled"
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
