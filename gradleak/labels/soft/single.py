"""Soft labels from last-layer gradients of single samples: one call, three solvers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gradleak.errors import InputError, unknown
from gradleak.labels.priors import LabelPrior, Score, resolve
from gradleak.labels.soft import exact, search
from gradleak.labels.soft.exact import Candidates, Problem
from gradleak.labels.soft.explanations import explanations, reason_of, shaped
from gradleak.labels.soft.path import label_path
from gradleak.labels.soft.rank_one import RankOne, reduce_gradients

LabelStatus = Literal["unique", "ambiguous", "failed"]
Solver = Literal["exact", "lbfgs", "pso"]
SOLVERS: tuple[Solver, ...] = ("exact", "lbfgs", "pso")
# A fit that misses by this many rounding units is not one sample's gradient (rounding alone misses by less than one).
RANK_ONE = 64


@dataclass(frozen=True)
class SoftLabels:
    """What N gradients say about their samples; everything in float64.

    `labels` (N, C), `features` (N, I): the best explanation, NaN where there is none; `scalars` (N,): λ with x = λ
    g_r, r the row whose entries have the largest absolute sum; `residuals` (N,): relative error of the gradient that
    label and feature give; `candidates`: for each sample every label (M, C) that explains its gradient within
    rounding, the best first; `status` and, where it is not "unique", `reasons`.
    """

    labels: Tensor
    features: Tensor
    scalars: Tensor
    residuals: Tensor
    candidates: tuple[Tensor, ...] = field(repr=False)
    status: tuple[LabelStatus, ...]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, status: LabelStatus) -> Tensor:
        """Return which samples have this status, (N,)."""
        return torch.tensor([one == status for one in self.status], device=self.labels.device)


def recover_soft_labels(
    weight_gradient: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    bias_gradient: Tensor | None = None,
    prior: str | LabelPrior | Score = "smoothing",
    solver: Solver = "exact",
    nonnegative: bool = True,
    noise: float | None = 0.0,
) -> SoftLabels:
    """Recover the soft label and the feature of a single sample (C, I), or of each of N (N, C, I), from its gradient.

    `prior`: "smoothing", "mixup", "onehot", a `Prior`, or a callable that scores labels (…, C) with 0 for the right
    shape.
    `nonnegative`: no entry of the feature is negative, as after a ReLU or a sigmoid, which fixes the scalar's sign; a
    sample whose gradient shows features of both signs is searched on both sides all the same.
    `noise`: standard deviation of what a client is known to have added to every entry; None estimates it from how far
    the gradient is from rank one, so that a batch, too, is taken for one noisy sample.
    With `bias_gradient` the label follows in closed form, and no prior and no solver is used.
    """
    if solver not in SOLVERS:
        raise unknown("solver", solver, SOLVERS)
    gradients = weight_gradient.unsqueeze(0) if weight_gradient.ndim == 2 else weight_gradient
    _check(gradients, weight, bias, bias_gradient, noise)
    with torch.no_grad():
        if bias is not None and bias_gradient is not None:
            rows = bias_gradient.unsqueeze(0) if bias_gradient.ndim == 1 else bias_gradient
            return _with_bias(gradients, weight, bias, rows)
        wanted = resolve(prior, weight.shape[0])
        if solver == "exact":
            return _exact(gradients, weight, bias, wanted, nonnegative, noise)
        return _published(gradients, weight, bias, wanted, solver)


def _check(
    gradients: Tensor, weight: Tensor, bias: Tensor | None, bias_gradient: Tensor | None, noise: float | None
) -> None:
    if weight.ndim != 2 or weight.shape[0] < 2:
        raise InputError(f"weight must be (C, I) with at least two classes; got {tuple(weight.shape)}")
    if not gradients.is_floating_point() or not weight.is_floating_point():
        raise InputError(f"gradients and weight must be floating point; got {gradients.dtype} and {weight.dtype}")
    if len(gradients) == 0:
        raise InputError("weight gradients hold no sample")
    if not weight.isfinite().all():
        raise InputError("weight holds NaN or infinite values")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"bias must be (C,) = ({weight.shape[0]},); got {tuple(bias.shape)}")
    if bias_gradient is not None and (bias is None or bias_gradient.numel() != len(gradients) * weight.shape[0]):
        raise InputError("a bias gradient needs the bias as well, and one row of C entries a sample")
    if noise is not None and noise < 0:
        raise InputError(f"noise is a standard deviation and not negative; got {noise:g}")


def _exact(
    gradients: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    prior: LabelPrior | Score,
    nonnegative: bool,
    noise: float | None,
) -> SoftLabels:
    reduced = reduce_gradients(gradients, weight)
    limit = RANK_ONE * torch.finfo(gradients.dtype).eps / 2
    fitted = (reduced.size > 0) & (reduced.misfit <= (limit if noise == 0 else math.inf))
    both = ~reduced.same_sign | (not nonnegative)
    # A sample whose scalar may have either sign is two problems; one that cannot be fitted is none.
    plus, minus = fitted.nonzero()[:, 0], (fitted & both).nonzero()[:, 0]
    problem = _problem(reduced, weight, bias, gradients.dtype, _noise(reduced, weight, noise))
    sides = [
        (rows, sign, exact.solve(problem.oriented(rows, sign), prior))
        for rows, sign in ((plus, 1), (minus, -1))
        if len(rows)
    ]
    merged = _merged(len(gradients), gradients.device, sides)
    count = merged.accepted.sum(dim=1)
    best = merged.scalars[:, 0].where(count > 0, math.nan)
    at = best.where(count > 0, 1)[:, None]
    label = shaped(problem.labels(at), prior)[:, 0]
    rebuilt = (problem.probabilities(at)[:, 0] - label) * at
    residuals = ((rebuilt - reduced.errors).norm(dim=1) / reduced.size).square().add(reduced.misfit.square()).sqrt()
    candidates, widest = explanations(problem, prior, merged)
    reasons = tuple(
        reason_of(*facts)
        for facts in zip(
            (reduced.size > 0).tolist(),
            (~fitted).tolist(),
            reduced.misfit.tolist(),
            [len(one) for one in candidates],
            widest.tolist(),
            strict=True,
        )
    )
    row = gradients.sum(dim=2).abs().argmax(dim=1, keepdim=True)
    lost = (count == 0)[:, None]
    return SoftLabels(
        labels=label.masked_fill(lost, math.nan),
        features=best[:, None] * reduced.direction,
        scalars=best / reduced.errors.gather(1, row)[:, 0],
        residuals=residuals.masked_fill(count == 0, math.nan),
        candidates=candidates,
        status=tuple(
            "failed" if len(own) == 0 else "ambiguous" if reason else "unique"
            for own, reason in zip(candidates, reasons, strict=True)
        ),
        reasons=reasons,
    )


def _noise(reduced: RankOne, weight: Tensor, noise: float | None) -> Tensor:
    """Return the standard deviation of the noise on each sample's entries (N,)."""
    if noise is not None:
        return torch.full_like(reduced.size, noise)
    classes, features = weight.shape
    entries = max(1, (classes - 1) * (features - 1))  # those that a rank-one fit does not take up
    return reduced.misfit * reduced.size / math.sqrt(entries)


def _problem(reduced: RankOne, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, noise: Tensor) -> Problem:
    like, facts = torch.ones_like(reduced.size), torch.finfo(dtype)
    rows = weight.double().norm(dim=1).max()
    strength = reduced.errors.norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    return Problem(
        logits=reduced.logits,
        ratios=reduced.errors,
        bias=None if bias is None else bias.double(),
        unit=like * facts.eps / 2,
        # Many exponentials flush what is not a normal number to zero; half precision cannot afford that.
        floor=like * facts.smallest_normal * (facts.eps if facts.bits < 32 else 1),
        scale=like * rows,
        noise=noise,
        sway=noise * rows / strength,
    )


def _merged(samples: int, device: torch.device, sides: list[tuple[Tensor, int, Candidates]]) -> Candidates:
    """Put what was found on either side of zero beside each other, the accepted ones first, the best of them ahead."""
    merged = {}
    none = torch.full((samples, 1), math.inf, dtype=torch.float64, device=device)
    for name in Candidates.__annotations__:
        columns = [none.isfinite() if name == "accepted" else none]
        for rows, sign, found in sides:
            value = getattr(found, name)
            column = value.new_full((samples, value.shape[1]), False if value.dtype == torch.bool else math.inf)
            column[rows] = value * sign if name in ("scalars", "low", "high") else value
            columns.append(column)
        merged[name] = torch.cat(columns, dim=1)
    order = merged["misfit"].where(merged["accepted"], math.inf).argsort(dim=1, stable=True)
    return Candidates(**{name: value.gather(1, order) for name, value in merged.items()})


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
        labels.masked_fill(nan, math.nan),
        features.masked_fill(nan, math.nan),
        scalars,
        ((rebuilt - gradients.double()).flatten(1).norm(dim=1) / size).masked_fill(lost, math.nan),
        tuple(labels[n : n + 1][: int(not none)] for n, none in enumerate(lost.tolist())),
        tuple("failed" if none else "unique" for none in lost.tolist()),
        tuple("the search ended without a loss below its threshold" if none else "" for none in lost.tolist()),
    )


def _with_bias(gradients: Tensor, weight: Tensor, bias: Tensor, bias_gradients: Tensor) -> SoftLabels:
    """g_b = p − y and G = g_b xᵀ, so x = Gᵀ g_b / ‖g_b‖² and y = softmax(W x + b) − g_b: nothing is searched."""
    gradients, bias_gradients = gradients.double(), bias_gradients.double()
    square = bias_gradients.square().sum(dim=1, keepdim=True)
    features = torch.einsum("nci,nc->ni", gradients, bias_gradients) / square
    labels = (features @ weight.double().T + bias.double()).softmax(dim=1) - bias_gradients
    rebuilt = bias_gradients.unsqueeze(2) * features.unsqueeze(1)
    residuals = (rebuilt - gradients).flatten(1).norm(dim=1) / gradients.flatten(1).norm(dim=1)
    row = gradients.sum(dim=2).abs().argmax(dim=1, keepdim=True)
    zero = (square[:, 0] == 0).tolist()
    mixed = (residuals > 1e-3).tolist()
    reasons = tuple(
        reason_of(not none, several, residual, 1, 0)
        for none, several, residual in zip(zero, mixed, residuals.tolist(), strict=True)
    )
    lost = torch.tensor([bool(reason) for reason in reasons], device=labels.device)
    labels = labels.masked_fill(lost[:, None], math.nan)
    return SoftLabels(
        labels,
        features.masked_fill(lost[:, None], math.nan),
        1 / bias_gradients.gather(1, row)[:, 0],
        residuals,
        tuple(label[None] if not reason else label[None][:0] for label, reason in zip(labels, reasons, strict=True)),
        tuple("failed" if reason else "unique" for reason in reasons),
        reasons,
    )
