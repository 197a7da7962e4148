"""Soft labels from last-layer gradients of single samples: one call, three solvers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm as norm

from gradleak.answers import Answer
from gradleak.answers import LabelStatus as Status
from gradleak.cases import NOISE, Attack, Case
from gradleak.errors import InputError, unknown
from gradleak.labels.priors import LabelPrior, Score, resolve
from gradleak.labels.soft import exact, intervals, search, unscaled
from gradleak.labels.soft.exact import Candidates
from gradleak.labels.soft.explanations import Explanation, explanations, reason_of, shaped
from gradleak.labels.soft.path import label_path
from gradleak.labels.soft.problem import ACCEPT, Problem
from gradleak.labels.soft.rank_one import RankOne, reduce_gradients
from gradleak.labels.verdict import Verdict, check_noise, check_scale
from gradleak.precision import Precision, coarser, precision_of, rounding_unit, shown_rounding

Solver = Literal["exact", "lbfgs", "pso"]
SOLVERS: tuple[Solver, ...] = ("exact", "lbfgs", "pso")
Certify = Literal["search", "proof"]
# A fit that misses by this many rounding units is not one sample's gradient (rounding alone misses by less than one).
RANK_ONE = 64
# The same where the precision is told: entries are off by at most a unit then, and the direction by less.
RANK_ONE_TOLD = 2
# Digits are looked at in so many rows.
ROWS = 4
# Sizes are never taken for less: their squares are numbers still.
LEAST = 1e-150
UNCHECKED = (
    "without a prior nothing checks this label: it is right if the client computed with these very weights, "
    "and sent both gradients unchanged"
)


@dataclass(frozen=True)
class SoftLabels:
    """What N gradients say about their samples; everything in float64.

    `labels` (N, C), `features` (N, I): the best explanation, NaN where there is none; `scalars` (N,): λ with x = λ
    g_r, r the row whose entries have the largest absolute sum; `scales` (N,): the factor on the gradient, given or
    found; `residuals` (N,): relative error of the gradient that they give; `open` (N,): how far the label may be off
    (L1), inf where nothing bounds it; of an "ambiguous" label it is an estimate from the slope of the residuals, and
    where a class is saturated half of the error was seen; `candidates`: for each sample the distinct labels (M, C)
    that were found to explain its gradient within rounding, the best first (where a label is open and the scale is
    known, the ends of what is open); `status` and, where it is not "unique", `reasons`. Where all labels found name one
    class, the reason gives the class and the range of its share.
    """

    labels: Tensor
    features: Tensor
    scalars: Tensor
    scales: Tensor
    residuals: Tensor
    open: Tensor
    candidates: tuple[Tensor, ...] = field(repr=False)
    status: tuple[Status, ...]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, status: Status) -> Tensor:
        """Return which samples have this status, (N,)."""
        return torch.tensor([one == status for one in self.status], device=self.labels.device)

    def cloned(self) -> SoftLabels:
        """Return the same in tensors of its own."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        own = {name: value.clone() if isinstance(value, Tensor) else value for name, value in own.items()}
        # One copy of all candidates, cut into those of each sample.
        candidates = torch.cat(self.candidates).split([len(one) for one in self.candidates])
        return SoftLabels(**own | {"candidates": tuple(candidates)})

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for each sample."""
        facts = zip(self.status, self.reasons, self.open.tolist(), self.scales.tolist(), strict=True)
        return tuple(
            Answer(
                status,
                reason,
                claimed=claimed,
                labels=self.labels[n : n + 1],
                features=self.features[n : n + 1],
                scale=scale,
            )
            for n, (status, reason, claimed, scale) in enumerate(facts)
        )

    @property
    def verdicts(self) -> list[Verdict]:
        """What is said of each sample."""
        return [
            Verdict(*facts)
            for facts in zip(self.status, self.residuals.tolist(), self.open.tolist(), self.reasons, strict=True)
        ]


def recover_soft_labels(
    weight_gradient: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    bias_gradient: Tensor | None = None,
    prior: str | LabelPrior | Score | None = "smoothing",
    solver: Solver = "exact",
    nonnegative: bool = True,
    noise: float | None = 0.0,
    scale: float | None = 1.0,
    certify: Certify = "search",
    precision: str | Precision | None = None,
) -> SoftLabels:
    """Recover the soft label and the feature of a single sample (C, I), or of each of N (N, C, I), from its gradient.

    `prior`: "smoothing", "mixup", "onehot", a `Prior`, or a callable that scores labels (…, C) with 0 for the right
    shape. Where a `bias_gradient` and the scale are known the label follows in closed form, and the prior is what it is
    checked against. None, any label at all, leaves nothing to check it with but that no entry is negative: the status
    is then "found", never "unique". Such a label is right if the client computed with this very weight and bias, and
    both gradients were sent unchanged; weights one step old or a clipped tensor give a wrong one.
    `nonnegative`: no entry of the feature is negative, as after a ReLU or a sigmoid, which fixes the scalar's sign; a
    sample whose gradient shows features of both signs is searched on both sides all the same.
    `noise`: standard deviation of what a client is known to have added to every entry; None estimates it from how far
    the gradient is from rank one, so that a batch, too, is taken for one noisy sample.
    `scale`: the factor on the gradient. 1 says that the client sends the gradient of its mean loss, as it is: an
    assumption, under which a clipped gradient may give a wrong label that nothing tells from the right one. None finds
    the factor, between 1e-9 and 1e9, together with the label, from the same equations, where these are enough for both.
    `certify`: what "unique" rests on. "search", that a fine grid shows no other answer; "proof", that intervals exclude
    every other scalar up to 1e20 times the least one: this takes longer, and an answer that they do not prove is
    "ambiguous". Where no equation is left to spare, only a proof makes an answer unique. A label that follows from a
    bias gradient in closed form has nothing to prove.
    `precision`: what the client is known to compute in, as "bfloat16" (`gradleak.precision.PRECISIONS`), where that is
    coarser than the gradient's type. It bounds the relative error of what the client rounded, and so the label's.
    """
    gradients = weight_gradient.unsqueeze(0) if weight_gradient.ndim == 2 else weight_gradient
    _check(gradients, weight, bias, bias_gradient, noise, scale)
    _check_solver(solver, bias_gradient, nonnegative, noise, scale)
    _check_certify(certify, solver, prior, scale)
    rounding = _rounding(precision, gradients.dtype, solver)
    # Many small steps take a sixth less time here; what is handed out is of the ordinary kind.
    with torch.inference_mode():
        if prior is None and (bias_gradient is None or scale is None):
            raise InputError("without a prior any label fits, but where a bias gradient and the scale are known")
        wanted = None if prior is None else resolve(prior, weight.shape[0])
        if bias is not None and bias_gradient is not None:
            rows = bias_gradient.unsqueeze(0) if bias_gradient.ndim == 1 else bias_gradient
            found = _with_bias(gradients, weight, bias, rows, wanted, noise, scale, rounding)
        elif solver == "exact":
            assert wanted is not None
            found = _exact(gradients, weight, bias, wanted, nonnegative, noise, scale, certify, rounding)
        else:
            assert wanted is not None
            found = _published(gradients, weight, bias, wanted, solver)
    return found.cloned()


@dataclass(frozen=True)
class _Rounding:
    """How the client's numbers are rounded: their `unit`, the `least` that is told from zero, and what follows.

    `told`: whether it is coarser than the gradient's type; `allowed`: by how many units a gradient may miss rank one.
    """

    unit: float
    least: float
    told: bool
    allowed: float


def _rounding(precision: str | Precision | None, dtype: torch.dtype, solver: Solver) -> _Rounding:
    facts = torch.finfo(dtype)
    unit = rounding_unit(precision, dtype)
    # An entry below the least number that the precision holds is off by as much.
    least = facts.smallest_normal * facts.eps
    if precision is None or not coarser(precision, dtype):
        return _Rounding(unit, least, False, RANK_ONE)
    if solver != "exact":
        raise InputError(f"the published search '{solver}' takes no precision; the solver 'exact' does")
    return _Rounding(unit, max(least, precision_of(precision).least), True, RANK_ONE_TOLD)


def _check_solver(
    solver: Solver, bias_gradient: Tensor | None, nonnegative: bool, noise: float | None, scale: float | None
) -> None:
    if solver not in SOLVERS:
        raise unknown("solver", solver, SOLVERS)
    if solver == "exact":
        return
    taken = {
        "bias_gradient": bias_gradient is None,
        "nonnegative=False": nonnegative,
        "noise": noise == 0,
        "scale": scale == 1,
    }
    for name, fits in taken.items():
        if not fits:
            raise InputError(f"the published search '{solver}' takes no {name}; the solver 'exact' does")


def _check_certify(certify: Certify, solver: Solver, prior: object, scale: float | None) -> None:
    if certify == "search":
        return
    if certify != "proof":
        raise unknown("certify", certify, ("search", "proof"))
    if solver != "exact" or scale is None or (callable(prior) and not isinstance(prior, LabelPrior)):
        raise InputError('certify="proof" is for the solver "exact", a known scale, and a prior by its name or shape')


def _check(
    gradients: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bias_gradient: Tensor | None,
    noise: float | None,
    scale: float | None,
) -> None:
    if weight.ndim != 2 or weight.shape[0] < 2:
        raise InputError(f"weight must be (C, I) with at least two classes; got {tuple(weight.shape)}")
    if not gradients.is_floating_point() or not weight.is_floating_point():
        raise InputError(f"gradients and weight must be floating point; got {gradients.dtype} and {weight.dtype}")
    if len(gradients) == 0:
        raise InputError("weight gradients hold no sample")
    if not math.isfinite(weight.sum()) and not weight.isfinite().all():
        raise InputError("weight holds NaN or infinite values")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"bias must be (C,) = ({weight.shape[0]},); got {tuple(bias.shape)}")
    if bias_gradient is not None and (bias is None or bias_gradient.numel() != len(gradients) * weight.shape[0]):
        raise InputError("a bias gradient needs the bias as well, and one row of C entries a sample")
    check_noise(noise)
    check_scale(scale)


def _exact(
    gradients: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prior: LabelPrior | Score,
    nonnegative: bool,
    noise: float | None,
    scale: float | None,
    certify: Certify,
    rounding: _Rounding,
) -> SoftLabels:
    reduced = reduce_gradients(gradients, weight)
    fitted = _rank_one(reduced, gradients, noise, rounding)
    both = fitted & ~reduced.same_sign if nonnegative else fitted
    # A sample whose scalar may have either sign is two problems; one that cannot be fitted is none.
    plus, minus = fitted.nonzero()[:, 0], both.nonzero()[:, 0]
    disturbed = _noise(reduced, weight, noise)
    problem = _rounded(problem_of(reduced, weight, bias, gradients.dtype, disturbed, scale or 1.0), rounding)
    signed = [(rows, sign) for rows, sign in ((plus, 1), (minus, -1)) if len(rows)]
    if scale is None:
        sides = [(rows, sign, unscaled.solve(problem.side(rows, sign), prior)) for rows, sign in signed]
        return _told(reduced, problem, gradients, fitted, unscaled.merged(problem, sides), None, prior, rounding)
    parts = [(rows, sign, exact.solve(problem.side(rows, sign), prior)) for rows, sign in signed]
    merged = _merged(problem, parts)
    best = merged.scalars[:, 0]
    candidates, widest, label = explanations(problem, prior, merged)
    # Where all equations are used up, every root is an answer, and a root may have been missed.
    spare = not isinstance(prior, LabelPrior) or prior.equations(problem.classes) > 1
    checked = torch.full_like(best, spare, dtype=torch.bool)
    proved = _proved(problem, prior, parts) if certify == "proof" else None
    found = Explanation(best, best.reciprocal(), label, widest, torch.zeros_like(best), checked, candidates, proved)
    return _told(reduced, problem, gradients, fitted, found, scale, prior, rounding)


def _proved(
    problem: Problem, prior: LabelPrior | Score, parts: list[tuple[Tensor, int, Candidates]]
) -> tuple[bool, ...]:
    """Return of which samples it is proved, on either side of zero, that nothing else explains them."""
    assert isinstance(prior, LabelPrior)
    proved = torch.ones(len(problem), dtype=torch.bool, device=problem.ratios.device)
    for rows, sign, found in parts:
        proved[rows] &= intervals.proved(problem.side(rows, sign), found.scalars, found.accepted, prior)
    return tuple(proved.tolist())


def _rank_one(reduced: RankOne, gradients: Tensor, noise: float | None, rounding: _Rounding) -> Tensor:
    """Return which gradients (N,) are one sample's, up to the rounding of their entries; all where there is noise."""
    there = reduced.size > _faint(gradients, rounding)
    if noise != 0:
        return there
    least = rounding.least * math.sqrt(math.prod(gradients.shape[1:]))
    missed, allowed = reduced.misfit * reduced.size, rounding.allowed
    return there & (missed.sub_(reduced.size, alpha=allowed * rounding.unit) <= allowed * least)


def _faint(gradients: Tensor, rounding: _Rounding) -> float:
    """Return the size below which rounding to the precision's smallest numbers explains a gradient with any label."""
    floor = max(_floor(gradients.dtype), rounding.least if rounding.told else 0.0)
    return ACCEPT * floor * math.sqrt(gradients.shape[1])


def _floor(dtype: torch.dtype) -> float:
    """Return the least number that a type holds.

    Many exponentials flush what is not a normal number to zero; half precision cannot afford that.
    """
    facts = torch.finfo(dtype)
    return facts.smallest_normal * (facts.eps if facts.bits < 32 else 1)


def _told(
    reduced: RankOne,
    problem: Problem,
    gradients: Tensor,
    fitted: Tensor,
    found: Explanation,
    scale: float | None,
    prior: LabelPrior | Score | None,
    rounding: _Rounding,
) -> SoftLabels:
    """Put what was found into the terms of the gradient, and say what it is worth."""
    if rounding.told:
        found = replace(found, open=_coarsely_open(problem, found, prior))
    # Where nothing was found the scalar is NaN, and so is all that follows from it.
    lost = found.scalars.isnan()
    at, weights = found.scalars[:, None], found.weights[:, None]
    # The gradient that label and feature give is t κ (p − y) along the direction, and 1 / w = t κ.
    missed = torch.addcdiv(problem.ratios, problem.probabilities(at)[:, 0] - found.labels, weights, value=-1)
    residuals = norm(missed, dim=1) / norm(problem.ratios, dim=1).clamp_(min=LEAST)
    faint = reduced.size <= _faint(gradients, rounding)
    facts = torch.stack([reduced.size, faint, fitted, reduced.misfit, found.open, found.loose, found.checked]).tolist()
    proved = found.proved or (None,) * len(found.candidates)
    reasons = tuple(reason_of(*own) for own in zip(*facts, found.candidates, proved, strict=True))
    sums = gradients.sum(dim=2).abs()
    row = sums.argmax(dim=1, keepdim=True)
    if not rounding.told:
        shown = _shown(gradients, sums, reasons)
        reasons = tuple(_doubted(reason, unit) for reason, unit in zip(reasons, shown.tolist(), strict=True))
        # The error of such a label has no bound until the precision is given.
        found = replace(found, open=found.open.masked_fill(shown > 0, math.inf))
    return SoftLabels(
        labels=found.labels.masked_fill(lost[:, None], math.nan),
        features=at * reduced.direction,
        scalars=(at / reduced.errors.gather(1, row))[:, 0],
        scales=(weights * at).reciprocal()[:, 0] if scale is None else torch.full_like(residuals, scale),
        residuals=residuals.hypot(reduced.misfit),
        open=found.open.masked_fill(lost, math.inf),
        candidates=found.candidates,
        status=tuple(
            "failed" if len(own) == 0 else "ambiguous" if reason else "unique"
            for own, reason in zip(found.candidates, reasons, strict=True)
        ),
        reasons=reasons,
    )


def _unchecked(found: SoftLabels) -> SoftLabels:
    """Return labels that follow in closed form and have no prior to be checked against, without a certificate."""
    unchecked = [status == "unique" for status in found.status]
    return replace(
        found,
        status=tuple("found" if one else status for one, status in zip(unchecked, found.status, strict=True)),
        reasons=tuple(UNCHECKED if one else reason for one, reason in zip(unchecked, found.reasons, strict=True)),
    )


def _coarsely_open(problem: Problem, found: Explanation, prior: LabelPrior | Score | None) -> Tensor:
    """Return how far coarse numbers leave the labels open (N,), L1, at the very scalars that give them as well."""
    if isinstance(prior, LabelPrior) and prior.free == 1 and prior.rest != "equal":
        # A class is all that such a label has: where one class explains the gradient, nothing of it is open.
        return torch.zeros_like(found.open)
    error = problem.explained(found.scalars[:, None])[1][:, 0]
    return found.open + 2 * error.sum(dim=1).nan_to_num(nan=0.0)


def _shown(gradients: Tensor, sums: Tensor, reasons: tuple[str, ...]) -> Tensor:
    """Return the rounding units (N,) that the gradients of otherwise unique labels show by their digits, else 0.

    `sums` (N, C): the absolute sums of rows; the largest have the fewest zeros.
    """
    certain = torch.tensor([not reason for reason in reasons], device=gradients.device)
    rows = sums.topk(min(ROWS, sums.shape[1]), dim=1).indices
    return shown_rounding(gradients.take_along_dim(rows[:, :, None], dim=1)).where(certain, 0)


def _doubted(reason: str, unit: float) -> str:
    """Return why a label is not unique whose gradient shows this rounding unit, "" where it shows none."""
    if reason or not unit:
        return reason
    return f"the gradient's digits show that the client rounded to {unit:.0e}: tell the precision"


def _noise(reduced: RankOne, weight: Tensor, noise: float | None) -> Tensor:
    """Return the standard deviation of the noise on each sample's entries (N,)."""
    if noise is not None:
        return torch.full_like(reduced.size, noise)
    classes, features = weight.shape
    entries = max(1, (classes - 1) * (features - 1))  # those that a rank-one fit does not take up
    return reduced.misfit * reduced.size / math.sqrt(entries)


def problem_of(
    reduced: RankOne,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    noise: Tensor,
    scale: float = 1.0,
) -> Problem:
    """Return what the scalars of these gradients are found from, the `scale` on them taken off."""
    size, facts = reduced.size, torch.finfo(dtype)
    rows = norm(weight.double(), dim=1).amax()
    strength = norm(reduced.errors, dim=1).clamp_(min=torch.finfo(torch.float64).tiny)
    return Problem(
        logits=reduced.logits,
        ratios=reduced.errors / scale,
        bias=None if bias is None else bias.double(),
        unit=torch.full_like(size, facts.eps / 2),
        floor=torch.full_like(size, _floor(dtype) / min(scale, 1.0)),
        scale=rows.expand_as(size),
        noise=noise / scale,
        sway=noise * rows / strength,
    )


def _rounded(problem: Problem, rounding: _Rounding) -> Problem:
    """Return the problem of a client that is known to round more coarsely than the gradient's type does."""
    if not rounding.told:
        return problem
    floor = problem.floor.clamp(min=rounding.least)
    return replace(problem, unit=torch.full_like(problem.unit, rounding.unit), floor=floor)


def _merged(problem: Problem, sides: list[tuple[Tensor, int, Candidates]]) -> Candidates:
    """Put what was found on either side of zero beside each other, the accepted ones first, the best of them ahead.

    The scalars of others are NaN.
    """
    if not sides:
        return Candidates.none(problem)
    columns = []
    for rows, sign, found in sides:
        misfit = found.misfit.where(found.accepted, math.inf)
        side = torch.stack([found.scalars, misfit, found.low, found.high, found.open])
        if sign < 0:
            side[[0, 2, 3]] *= -1
        if len(rows) < len(problem):
            whole = side.new_full((len(side), len(problem), side.shape[2]), math.inf)
            whole[:, rows] = side
            side = whole
        columns.append(side)
    merged = columns[0] if len(columns) == 1 else torch.cat(columns, dim=2)
    merged = merged.gather(2, merged[1].argsort(dim=1, stable=True).expand_as(merged))
    scalars, misfit, low, high, opened = merged
    accepted = misfit < math.inf
    return Candidates(scalars.where(accepted, math.nan), misfit, low, high, opened, accepted)


def _published(
    gradients: Tensor, weight: Tensor, bias: Tensor | None, prior: LabelPrior | Score, solver: Solver
) -> SoftLabels:
    """Run the paper's search sample by sample, as it does: in the gradient's precision, on one column of it."""
    size = gradients.flatten(1).double().norm(dim=1)
    leaks = size > 0
    path = label_path(gradients.where(leaks[:, None, None], 1), weight, bias=bias, columns="one", dtype=None)
    mixing = isinstance(prior, LabelPrior) and prior.free > 1
    coefficient = search.COEFFICIENTS["mixup" if mixing else "smoothing"]
    search_one = search.lbfgs if solver == "lbfgs" else search.swarm
    found = [
        search_one(search.ScalarLoss(path[n : n + 1], prior, coefficient)) / coefficient if leak else math.nan
        for n, leak in enumerate(leaks.tolist())
    ]
    scalars = torch.tensor(found, dtype=torch.float64, device=gradients.device)
    lost = scalars.isnan()
    at = scalars.where(~lost, 1)[:, None].to(path.ratios)
    labels, features = path.labels(at)[:, 0].double(), path.features(at)[:, 0].double()
    scores = features @ weight.double().T + (0 if bias is None else bias.double())
    rebuilt = (scores.softmax(dim=1) - labels).unsqueeze(2) * features.unsqueeze(1)
    nan = lost[:, None]
    return SoftLabels(
        labels=labels.masked_fill(nan, math.nan),
        features=features.masked_fill(nan, math.nan),
        scalars=scalars,
        scales=torch.ones_like(scalars),
        residuals=((rebuilt - gradients.double()).flatten(1).norm(dim=1) / size).masked_fill(lost, math.nan),
        open=torch.full_like(scalars, math.inf),
        candidates=tuple(labels[n : n + 1][: int(not none)] for n, none in enumerate(lost.tolist())),
        status=tuple("failed" if none else "found" for none in lost.tolist()),
        reasons=tuple(
            f"the search ended {'without a' if none else 'at a'} loss below its threshold, which is no certificate"
            for none in lost.tolist()
        ),
    )


def _with_bias(
    gradients: Tensor,
    weight: Tensor,
    bias: Tensor,
    bias_gradients: Tensor,
    prior: LabelPrior | Score | None,
    noise: float | None,
    scale: float | None,
    rounding: _Rounding,
) -> SoftLabels:
    """g_b = κ (p − y) and G = g_b xᵀ, so x = Gᵀ g_b / ‖g_b‖² and y = softmax(W x + b) − g_b / κ: x is not searched."""
    reduced = reduce_gradients(gradients, weight)
    errors = bias_gradients.double()
    strength = errors.norm(dim=1).clamp(min=LEAST)
    features = torch.einsum("nci,nc->ni", gradients.double(), errors) / strength[:, None].square()
    size = features.norm(dim=1).clamp(min=LEAST)
    missed = (gradients.double() - errors.unsqueeze(2) * features.unsqueeze(1)).flatten(1).norm(dim=1)
    whole = (reduced.size.square() + strength.square()).sqrt()
    direction = features / size[:, None]
    reduced = replace(
        reduced,
        direction=direction,
        logits=direction @ weight.double().T,
        errors=errors * size[:, None],
        size=torch.where((errors != 0).any(dim=1), whole, 0),
        misfit=missed / whole,
    )
    fitted = _rank_one(reduced, gradients, noise, rounding)
    disturbed = _noise(reduced, weight, noise)
    problem = _rounded(problem_of(reduced, weight, bias, gradients.dtype, disturbed * size, scale or 1.0), rounding)
    problem = replace(problem, sway=disturbed * problem.scale / (strength * size))
    if scale is None:
        assert prior is not None
        rows = fitted.nonzero()[:, 0]
        sides = [(rows, 1, unscaled.solve(problem[rows], prior, size[rows, None]))] if len(rows) else []
        return _told(reduced, problem, gradients, fitted, unscaled.merged(problem, sides), None, prior, rounding)
    label, opened, fits = exact.checked(problem, size[:, None], prior)
    fits &= fitted
    label = label if prior is None else shaped(label, prior)
    candidates = tuple(one[None][: int(fit)] for one, fit in zip(label, fits.tolist(), strict=True))
    none = torch.zeros_like(size)
    answer = Explanation(size.where(fits, math.nan), 1 / size, label, opened, none, none == 0, candidates)
    found = _told(reduced, problem, gradients, fitted, answer, scale, prior, rounding)
    return _unchecked(found) if prior is None else found


def _why_not(case: Case) -> str:
    return case.no_label or ("" if case.size == 1 else "it takes one sample")


def _attack(case: Case) -> Answer:
    leak = case.leak
    return recover_soft_labels(
        leak.weight_gradient,
        leak.weight,
        bias=leak.bias,
        bias_gradient=leak.bias_gradient,
        prior=case.prior,
        nonnegative=case.subject.rectified,
        noise=case.noise,
        scale=case.scale,
        precision=case.precision,
    ).answers[0]


ATTACK = Attack(
    "label of one sample",
    page="identifiability",
    finds=("labels", "features"),
    needs="the last layer's gradient of one sample under cross-entropy",
    refused=_why_not,
    run=_attack,
    remedy=NOISE,
)
