"""Recover the soft labels and features of single samples from last-layer gradients, with a choice of three solvers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm as norm

from gradleak.answers import Answer
from gradleak.answers import LabelStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.cases import NOISE, Attack, Case
from gradleak.errors import InputError, unknown
from gradleak.labels.priors import LabelPrior, Score, check_noise, check_scale, resolve
from gradleak.labels.soft import exact, intervals, search
from gradleak.labels.soft.equations import conditions
from gradleak.labels.soft.explanations import NO_LABEL, Explanation, checked, explanations, merged, reason_of, shaped
from gradleak.labels.soft.path import label_path
from gradleak.labels.soft.problem import ACCEPT, Problem, RankOne, noise_bound, reduce_gradients
from gradleak.leak import Leak
from gradleak.precision import Precision, coarser, precision_of, rounding_unit, shown_rounding

Solver = Literal["exact", "lbfgs", "pso"]
SOLVERS: tuple[Solver, ...] = ("exact", "lbfgs", "pso")
Certify = Literal["search", "proof"]
# A gradient farther from rank one than this many rounding units is not one sample's. Rounding alone stays below one
# unit.
RANK_ONE = 64
# The same for a precision that is given: entries are wrong by one unit at most, and the direction by less.
RANK_ONE_COARSE = 2
# Rows of a gradient whose digits are searched for signs of coarse rounding.
ROWS_EXAMINED = 4
# Lengths are at least this, so that their squares do not underflow.
LEAST = 1e-150
# Two rows of the weight differ by at most twice, and usually by √2 times, the length of the longest row after the mean
# row is subtracted.
SPREAD = math.sqrt(2)
BIAS_MISSING = "; the layer may have a bias, which was not given"
UNCHECKED = (
    "without a prior nothing checks this label: it is right if the client computed with these very weights, "
    "and sent both gradients unchanged"
)


@dataclass(frozen=True)
class SoftLabels:
    """The labels and features of N samples, in float64, and how certain they are.

    Attributes:
        labels: The best explanation of each gradient (N, C), NaN where there is none.
        features: The inputs of the last layer (N, I), NaN where there is no explanation. The feature of a "unique"
            label has a relative error of at most 10 %.
        scalars: λ (N,) with x = λ g_r, where g_r is the row with the largest absolute sum of its entries.
        scales: The factor on each gradient (N,), given or recovered.
        residuals: Relative error of the gradient that the answer gives (N,).
        open: Bound on the L1 error of each label (N,), inf where there is none. It covers rounding, six standard
            deviations of the noise, and all labels found. An "ambiguous" label may be off by more if the search missed
            an explanation, as it may where no equation is left for a check.
        loose: Bound on the relative error of each feature (N,), inf where there is none.
        candidates: For each sample the distinct labels (M, C) that explain its gradient within rounding, the best
            first. If a label is not determined and the scale is known, these include the ends of the label's range.
        status: "unique", "ambiguous", "found" or "failed" for each sample, see `gradleak.answers.MEANINGS`.
        reasons: Why the answer is not "unique", else "". If all labels found name the same class, the reason gives this
            class and the range of its share.
    """

    labels: Tensor
    features: Tensor
    scalars: Tensor
    scales: Tensor
    residuals: Tensor
    open: Tensor
    loose: Tensor
    candidates: tuple[Tensor, ...] = field(repr=False)
    status: tuple[Status, ...]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, status: Status) -> Tensor:
        """Return which samples have this status (N,)."""
        return torch.tensor([one == status for one in self.status], device=self.labels.device)

    def cloned(self) -> SoftLabels:
        """Return a copy that shares no memory with this one."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        tensors: dict[str, Any] = {name: value.clone() for name, value in values.items() if torch.is_tensor(value)}
        # One copy of all candidates takes less time than one of each.
        candidates = torch.cat(self.candidates).split([len(one) for one in self.candidates])
        return replace(self, **tensors, candidates=tuple(candidates))

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for each sample."""
        facts = zip(self.status, self.reasons, self.open.tolist(), self.scales.tolist(), strict=True)
        return tuple(
            Answer(
                status, reason, claimed, labels=self.labels[n : n + 1], features=self.features[n : n + 1], scale=scale
            )
            for n, (status, reason, claimed, scale) in enumerate(facts)
        )


@checked_arguments(weight_gradient="C I | N C I", weight="C I", bias="C", bias_gradient="C | N C")
def recover_soft_labels(
    weight_gradient: Leak | Tensor,
    weight: Tensor | None = None,
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
    """Recover the soft label and the feature of one sample, or of each of N samples, from its last-layer gradient.

    `recover_soft_labels(leak)` takes the last layer's weight and bias and their gradients from a leak. Gradients of N
    samples are given as tensors.

    Args:
        weight_gradient: The leak of one sample; or the gradient of the last layer's weight for one sample (C, I), or
            for each of N samples (N, C, I).
        weight: The last layer's weight (C, I). With a leak, neither weight nor bias nor bias gradient is given.
        bias: The last layer's bias (C,), if it has one.
        bias_gradient: Gradient of the bias, C entries for each sample. If it is given and the scale is known, the label
            follows in closed form, and the prior only checks the label.
        prior: What is known of the label's shape: "smoothing", "mixup", "onehot", a `Prior`, or a function that maps
            labels (…, C) to scores, 0 for the right shape. A function makes a label "unique" only if it sets two
            conditions on the labels near it, since the unknown scalar uses up one. None allows any label, and needs a
            bias gradient and a known scale. The only check is then that no entry is negative, so the status is "found"
            and never "unique". Such a label is right if the client computed with exactly this weight and bias and sent
            both gradients unchanged. Weights that are one step old, or a clipped tensor, give a wrong label.
        solver: "exact", or one of the searches that wang2024 publishes, "lbfgs" and "pso".
        nonnegative: Whether no entry of the feature is negative, as after a ReLU or a sigmoid. This fixes the scalar's
            sign. Samples whose gradients show features of both signs are still searched with both.
        noise: Standard deviation of the noise that the client is known to have added to every entry. None takes an
            upper bound from the gradient's distance from rank one; a batch would then be mistaken for one noisy sample.
        scale: The factor on the gradient. 1 assumes that the client sends the gradient of its mean loss unchanged; a
            clipped gradient may then give a wrong label without notice. None solves for a factor between 1e-9 and 1e9
            together with the label, if there are enough equations for both.
        certify: What "unique" rests on. "search": a fine grid shows no other answer. "proof": intervals exclude every
            other scalar up to 1e20 times the least possible one; this takes longer, and answers without a proof are
            "ambiguous". If no equation is left for a check, only a proof makes an answer unique. A label that follows
            from a bias gradient in closed form needs no proof.
        precision: The precision in which the client is known to compute, such as "bfloat16"
            (`gradleak.precision.PRECISIONS`), if it is coarser than the gradient's type. It bounds the relative error
            of the client's numbers, and so the error of the label.

    Returns:
        The labels (N, C), features (N, I) and statuses of the samples.

    >>> draws = torch.Generator().manual_seed(0)
    >>> weight, x = torch.randn(10, 8, generator=draws), torch.rand(8, generator=draws)
    >>> label = 0.9 * torch.eye(10)[3] + 0.01
    >>> found = recover_soft_labels(torch.outer((weight @ x).softmax(0) - label, x), weight)
    >>> found.status, round(float(found.labels[0, 3]), 4)
    (('unique',), 0.91)
    """
    layer = last_layer(weight_gradient, weight, bias, bias_gradient)
    weight, bias, bias_gradient = layer.weight, layer.bias, layer.bias_gradient
    if isinstance(weight_gradient, Leak):
        if weight_gradient.batch_size != 1:
            raise InputError(f"the leak has a batch of {weight_gradient.batch_size} samples: use recover_batch")
        if solver != "exact":
            bias_gradient = None  # the published searches do not use it
    gradients = layer.gradient.unsqueeze(0) if layer.gradient.ndim == 2 else layer.gradient
    if weight.shape[0] < 2:
        raise InputError(f"weight must be (C, I) with at least two classes; got {tuple(weight.shape)}")
    if bias_gradient is not None and (bias is None or bias_gradient.numel() != len(gradients) * weight.shape[0]):
        raise InputError("a bias gradient needs the bias as well, and one row of C entries a sample")
    check_noise(noise)
    check_scale(scale)
    if solver not in SOLVERS:
        raise unknown("solver", solver, SOLVERS)
    coarse = precision is not None and coarser(precision, gradients.dtype)
    if solver != "exact" and (bias_gradient is not None or not nonnegative or noise != 0 or scale != 1 or coarse):
        raise InputError(
            f"the published search '{solver}' takes no noise, scale, precision or bias gradient, and only features "
            "that are never negative; the solver 'exact' takes them"
        )
    if certify not in ("search", "proof"):
        raise unknown("certify", certify, ("search", "proof"))
    if certify == "proof" and (solver != "exact" or scale is None or not isinstance(prior, str | LabelPrior | None)):
        raise InputError('certify="proof" is for the solver "exact", a known scale, and a prior by its name or shape')
    if prior is None and (bias_gradient is None or scale is None):
        raise InputError("without a prior any label fits, but where a bias gradient and the scale are known")
    # Inference mode saves a sixth of the time, as there are many small steps. The caller gets ordinary tensors.
    with torch.inference_mode():
        wanted = None if prior is None else resolve(prior, weight.shape[0])
        clients = Clients(gradients, weight, bias, wanted, noise, scale, precision if coarse else None)
        if bias_gradient is not None:
            found = _with_bias(clients, bias_gradient.reshape(len(gradients), -1))
        elif solver == "exact":
            found = _exact(clients, nonnegative, certify)
        else:
            found = _published(clients, solver)
    reasons = tuple(reason + layer.doubt if reason == NO_LABEL else reason for reason in found.reasons)
    return replace(found.cloned(), reasons=reasons)


@dataclass(frozen=True)
class LastLayer:
    """The last layer and its gradients, from a leak or from tensors.

    Attributes:
        gradient: Gradient of the weight (C, I) or (N, C, I).
        weight: (C, I).
        bias: (C,) or None.
        bias_gradient: Gradient of the bias, None if there is none or it is frozen.
        doubt: A further cause of failure, to be added to the reason: a bias that may be missing; "" if none is missing.
    """

    gradient: Tensor
    weight: Tensor
    bias: Tensor | None
    bias_gradient: Tensor | None
    doubt: str = ""


def last_layer(
    source: Leak | Tensor, weight: Tensor | None, bias: Tensor | None, bias_gradient: Tensor | None
) -> LastLayer:
    """Return the last layer of a leak, or the one that is given by tensors, of which `source` is the weight's gradient.

    Raises:
        InputError: If a leak and tensors are given, or a gradient without its weight, or if the leak has no separate
            gradient of the last layer's weight.
    """
    if not isinstance(source, Leak):
        if weight is None:
            raise InputError("the gradient of a weight needs the weight as well; a leak holds both")
        return LastLayer(source, weight, bias, bias_gradient, BIAS_MISSING if bias is None else "")
    if not (weight is None and bias is None and bias_gradient is None):
        raise InputError("a leak holds the last layer's weight, bias and bias gradient: give none of them beside it")
    source.check_one_step("the recovery of soft labels")
    if reason := source.withheld("weight"):
        raise InputError(f"the update has no gradient of the last layer's weight: {reason}")
    return LastLayer(
        source.weight_gradient,
        source.weight,
        source.bias,
        None if source.bias is None or source.withheld("bias") else source.bias_gradient,
    )


@dataclass(frozen=True)
class Clients:
    """The gradients of N clients, and the knowledge of the server.

    Attributes:
        gradients: The gradients (N, C, I).
        weight: (C, I).
        bias: (C,) or None.
        prior: The shape of the labels, None if any label is possible.
        noise: The standard deviation of the noise, None if it is unknown.
        scale: The factor on the gradients, None if it is unknown.
        precision: The precision of the clients' numbers if it is known to be coarser than the gradients' type.
    """

    gradients: Tensor
    weight: Tensor
    bias: Tensor | None
    prior: LabelPrior | Score | None
    noise: float | None = 0.0
    scale: float | None = 1.0
    precision: str | Precision | None = None

    @property
    def least(self) -> float:
        """The smallest number that is distinguished from zero; entries below it are wrong by up to this number."""
        facts = torch.finfo(self.gradients.dtype)
        least = facts.smallest_normal * facts.eps
        return least if self.precision is None else max(least, precision_of(self.precision).least)

    @property
    def floor(self) -> float:
        """The smallest positive number that can be relied on.

        Many implementations of exp flush subnormal numbers to zero, so only half precision, which needs them, counts on
        them.
        """
        facts = torch.finfo(self.gradients.dtype)
        floor = facts.smallest_normal * (facts.eps if facts.bits < 32 else 1)
        return floor if self.precision is None else max(floor, self.least)

    @property
    def faintest(self) -> float:
        """The size below which a gradient can be explained by rounding to the smallest numbers, with any label."""
        return ACCEPT * self.floor * math.sqrt(self.gradients.shape[1])

    def rank_one(self, reduced: RankOne) -> Tensor:
        """Return which gradients (N,) have rank one up to rounding; with noise, all that are not too small."""
        there = reduced.size > self.faintest
        if self.noise != 0:
            return there
        allowed = RANK_ONE if self.precision is None else RANK_ONE_COARSE
        unit = rounding_unit(self.precision, self.gradients.dtype)
        missed = reduced.misfit * reduced.size - allowed * unit * reduced.size
        return there & (missed <= allowed * self.least * math.sqrt(math.prod(self.gradients.shape[1:])))

    def deviation(self, reduced: RankOne, entries: int) -> Tensor:
        """Return the standard deviation of the noise (N,), or an upper bound if a fit leaves this number of entries."""
        if self.noise is None:
            return noise_bound(reduced.misfit * reduced.size, entries)
        return torch.full_like(reduced.size, self.noise)

    def problem(self, reduced: RankOne, noise: Tensor) -> Problem:
        """Return the equations for the scalars, after division of the gradients by their scale; `noise` (N,)."""
        size, weight, scale = reduced.size, self.weight.double(), self.scale or 1.0
        rows, sway = norm(weight, dim=1).amax(), noise
        if noise.any():
            apart = SPREAD * norm(weight - weight.mean(dim=0), dim=1).amax()
            sway = noise * apart / norm(reduced.errors, dim=1).clamp_(min=torch.finfo(torch.float64).tiny)
        return Problem(
            logits=reduced.logits,
            ratios=reduced.errors / scale,
            bias=None if self.bias is None else self.bias.double(),
            unit=torch.full_like(size, rounding_unit(self.precision, self.gradients.dtype)),
            floor=torch.full_like(size, self.floor / min(scale, 1.0)),
            scale=rows.expand_as(size),
            noise=noise / scale,
            sway=sway,
        )


def _exact(clients: Clients, nonnegative: bool, certify: Certify) -> SoftLabels:
    """Solve with the solver "exact", and also for the scale if it is unknown."""
    gradients, prior = clients.gradients, clients.prior
    assert prior is not None
    reduced = reduce_gradients(gradients, clients.weight)
    fitted = clients.rank_one(reduced)
    both = fitted & ~reduced.same_sign if nonnegative else fitted
    # A sample whose scalar may have either sign is solved twice, and one whose gradient is not of rank one is not
    # solved.
    signed = [(rows, sign) for rows, sign in ((fitted.nonzero()[:, 0], 1), (both.nonzero()[:, 0], -1)) if len(rows)]
    classes, width = clients.weight.shape
    disturbed = clients.deviation(reduced, (classes - 1) * (width - 1))
    problem = clients.problem(reduced, disturbed)
    solve = exact.solve_with_scale if clients.scale is None else exact.solve
    parts = [(rows, sign, solve(problem.side(rows, sign), prior)) for rows, sign in signed]
    found = explanations(problem, prior, merged(problem, parts))
    if clients.noise != 0:
        share = disturbed / norm(reduced.errors, dim=1).clamp(min=LEAST)
        found = _with_noise(found, share, share * (math.sqrt(width) + ACCEPT))
    if certify == "proof":
        assert isinstance(prior, LabelPrior)
        # The largest feature that the gradient's type can hold.
        largest = torch.finfo(gradients.dtype).max * math.sqrt(width)
        proved = torch.ones_like(fitted)
        for rows, sign, side in parts:
            proved[rows] &= intervals.proved(problem.side(rows, sign), side.scalars, side.accepted, prior, largest)
        found = replace(found, proved=tuple(proved.tolist()))
    return _as_labels(clients, reduced, problem, fitted, found)


def _as_labels(clients: Clients, reduced: RankOne, problem: Problem, fitted: Tensor, found: Explanation) -> SoftLabels:
    """Express explanations in terms of the gradients, and assign each a status and a reason."""
    # Without an explanation the scalar is NaN, and so are all results computed from it.
    at, weights = found.scalars[:, None], found.weights[:, None]
    probability, error = problem.certainty(at, weights, found.labels)
    opened = _open(error.nan_to_num_(nan=math.inf), found.open, clients.prior)
    # Label and feature give the gradient t κ (p − y) along the direction, and t κ = 1 / w.
    missed = torch.addcdiv(problem.ratios, probability - found.labels, weights, value=-1)
    residuals = norm(missed, dim=1).div_(norm(problem.ratios, dim=1).clamp_(min=LEAST)).hypot_(reduced.misfit)
    faintest = clients.faintest
    facts = torch.stack([reduced.size, fitted, reduced.misfit, opened, found.loose, found.checked]).tolist()
    proved = found.proved or (None,) * len(found.candidates)
    reasons = tuple(reason_of(faintest, *own) for own in zip(*facts, found.candidates, proved, strict=True))
    sums = clients.gradients.sum(dim=2).abs()
    row = sums.argmax(dim=1, keepdim=True)
    labels, opened, loose = found.labels, torch.maximum(opened, found.spread), found.loose + found.length
    if clients.precision is None and not all(reasons):
        shown = _shown_by_digits(clients.gradients, sums)
        # Until the precision is given, the error of such a label has no bound.
        opened.masked_fill_(shown > 0, math.inf)
        reasons = tuple(
            reason or _reason_with_rounding(unit) for reason, unit in zip(reasons, shown.tolist(), strict=True)
        )
    if not all(map(len, found.candidates)):
        lost = found.scalars.isnan()
        labels = labels.masked_fill(lost[:, None], math.nan)
        opened, loose = opened.masked_fill_(lost, math.inf), loose.masked_fill_(lost, math.inf)
    scale = clients.scale
    return SoftLabels(
        labels=labels,
        features=at * reduced.direction,
        scalars=(at / reduced.errors.gather(1, row))[:, 0],
        scales=(weights * at).reciprocal()[:, 0] if scale is None else torch.full_like(residuals, scale),
        residuals=residuals,
        open=opened,
        loose=loose,
        candidates=found.candidates,
        status=tuple(
            "failed" if len(own) == 0 else "ambiguous" if reason else "unique"
            for own, reason in zip(found.candidates, reasons, strict=True)
        ),
        reasons=reasons,
    )


def _unchecked(found: SoftLabels, which: Tensor) -> SoftLabels:
    """Replace "unique" by "found" for the labels in closed form that no prior checks, `which` (N,)."""
    where = [one == "unique" and no for one, no in zip(found.status, which.tolist(), strict=True)]
    return replace(
        found,
        status=tuple("found" if one else status for one, status in zip(where, found.status, strict=True)),
        reasons=tuple(UNCHECKED if one else reason for one, reason in zip(where, found.reasons, strict=True)),
    )


def _open(error: Tensor, change: Tensor, prior: LabelPrior | Score | None) -> Tensor:
    """Return the uncertainty (N,), L1, of labels by the errors of their entries (N, C).

    `change` (N,): the change of each label over the range of its scalar.
    """
    if not isinstance(prior, LabelPrior):
        return change + error.sum(dim=1) + ACCEPT * error.topk(2, dim=1).values.sum(dim=1)
    if prior.rest == "equal":
        # The error of the value that many entries share counts for each of them, and once more for the free entries.
        return torch.add(change, norm(error, dim=1), alpha=2 * ACCEPT).clamp_(max=2)
    opened = torch.add(change, error.topk(max(prior.free, 2), dim=1).values.sum(dim=1), alpha=ACCEPT)
    return torch.where(opened > prior.tolerance, 2.0, 0.0) if prior.free == 1 else opened.clamp_(max=2)


def _with_noise(found: Explanation, share: Tensor, loose: Tensor) -> Explanation:
    """Add to explanations the error `loose` (N,) of their features by noise, which has this `share` (N,) in p − y."""
    # If noise hides p − y, the feature may have any direction, and so may the logits.
    return replace(found, loose=found.loose + loose, open=found.open.masked_fill(ACCEPT * share >= 1, 2.0))


def _shown_by_digits(gradients: Tensor, sums: Tensor) -> Tensor:
    """Return the rounding units (N,) that the digits of gradients show, 0 if all digits are used.

    `sums` (N, C): the absolute sums of rows. The rows with the largest sums have the fewest zeros.
    """
    rows = sums.topk(min(ROWS_EXAMINED, sums.shape[1]), dim=1).indices
    return shown_rounding(gradients.take_along_dim(rows[:, :, None], dim=1))


def _reason_with_rounding(unit: float) -> str:
    return f"the gradient's digits show that the client rounded to {unit:.0e}: tell the precision" if unit else ""


def _published(clients: Clients, solver: Solver) -> SoftLabels:
    """Run the published search sample by sample, as its code does: in the gradient's precision, on one column."""
    gradients, weight, bias, prior = clients.gradients, clients.weight, clients.bias, clients.prior
    assert prior is not None
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
    # Where the search ended without an answer, the scalar is NaN, and so are all results.
    at = scalars[:, None].to(path.ratios)
    labels, features = path.labels(at)[:, 0].double(), path.features(at)[:, 0].double()
    scores = features @ weight.double().T + (0 if bias is None else bias.double())
    rebuilt = (scores.softmax(dim=1) - labels).unsqueeze(2) * features.unsqueeze(1)
    lost = scalars.isnan().tolist()
    return SoftLabels(
        labels=labels,
        features=features,
        scalars=scalars,
        scales=torch.ones_like(scalars),
        residuals=(rebuilt - gradients.double()).flatten(1).norm(dim=1) / size,
        open=torch.full_like(scalars, math.inf),
        loose=torch.full_like(scalars, math.inf),
        candidates=tuple(labels[n : n + 1][: int(not none)] for n, none in enumerate(lost)),
        status=tuple("failed" if none else "found" for none in lost),
        reasons=tuple(
            f"the search ended {'without a' if none else 'at a'} loss below its threshold, which is no certificate"
            for none in lost
        ),
    )


def _with_bias(clients: Clients, bias_gradients: Tensor) -> SoftLabels:
    """Recover labels from the bias gradient in closed form; search for the scale alone if it is unknown.

    With g_b = κ (p − y) and G = g_b xᵀ, the feature is x = Gᵀ g_b / ‖g_b‖² and the label y = softmax(W x + b) − g_b /
    κ.
    """
    gradients, weight, prior, noise = clients.gradients, clients.weight, clients.prior, clients.noise
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
    fitted = clients.rank_one(reduced)
    disturbed = clients.deviation(reduced, (len(weight) - 1) * weight.shape[1])
    problem = clients.problem(reduced, disturbed)
    share = loose = torch.zeros_like(size)
    if noise != 0:
        share = disturbed / strength
        # Noise of the bias gradient changes the feature's length by this share, and with it the gaps of the logits.
        longer = share * (1 + len(weight) * share / ACCEPT)
        sway = problem.sway.hypot(longer * _usual_gap(problem, size[:, None]))
        problem = replace(problem, noise=problem.noise * size, sway=sway)
        loose = share * (math.sqrt(weight.shape[1]) + ACCEPT) / size + ACCEPT * longer
    if clients.scale is None:
        assert prior is not None
        rows = fitted.nonzero()[:, 0]
        sides = [(rows, 1, exact.solve_with_scale(problem[rows], prior, size[rows, None]))] if len(rows) else []
        found = _with_noise(explanations(problem, prior, merged(problem, sides)), share, loose)
        return _as_labels(clients, reduced, problem, fitted, found)
    label, fits = checked(problem, size[:, None], prior)
    fits &= fitted
    label = shaped(label, prior) if isinstance(prior, LabelPrior) else label
    candidates = tuple(one[None][: int(fit)] for one, fit in zip(label, fits.tolist(), strict=True))
    none = torch.zeros_like(size)
    length = ACCEPT * problem.unit
    found = Explanation(size.where(fits, math.nan), 1 / size, label, none, none, length, none, none == 0, candidates)
    found = _with_noise(found, share, loose) if noise != 0 else found
    answer = _as_labels(clients, reduced, problem, fitted, found)
    if isinstance(prior, LabelPrior):
        return answer
    if prior is None:
        return _unchecked(answer, fits)
    _, error = problem.certainty(size[:, None], 1 / size[:, None], label)
    return _unchecked(answer, conditions(label, error, prior) == 0)


def _usual_gap(problem: Problem, at: Tensor) -> Tensor:
    """Return the root mean square difference (N,) of two classes' logits per unit of t, weighted by probabilities."""
    p, logits = problem.probabilities(at)[:, 0], problem.logits
    variance = (p * (logits - (p * logits).sum(dim=1, keepdim=True)).square()).sum(dim=1)
    return (2 * variance / (p - p.square()).sum(dim=1).clamp(min=LEAST)).sqrt()


def _why_not(case: Case) -> str:
    return case.no_label or ("" if case.size == 1 else "it takes one sample")


def knowledge(case: Case) -> dict[str, Any]:
    """Return the options that state what the attacker knows of a case."""
    return {
        "prior": case.prior,
        "nonnegative": case.subject.rectified,
        "noise": case.noise,
        "scale": case.scale,
        "precision": case.precision,
    }


def _attack(case: Case) -> Answer:
    return recover_soft_labels(case.leak, **knowledge(case)).answers[0]


ATTACK = Attack(
    "label of one sample",
    page="certificates",
    finds=("labels", "features"),
    needs="the last layer's gradient of one sample under cross-entropy",
    refused=_why_not,
    run=_attack,
    remedy=NOISE,
)
