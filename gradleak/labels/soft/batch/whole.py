"""Fit all samples of a batch to its gradient together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.labels.priors import KNOWN
from gradleak.labels.soft.batch.normal import derivatives, projected, squared
from gradleak.labels.soft.batch.rounds import Search
from gradleak.labels.soft.batch.span import TINY

STEPS = 10
# A fit whose misfit exceeds FAR rounding errors gets up to PATIENT more steps, with more damping.
FAR_OFF, PATIENT = 1e3, 30
# Directions whose eigenvalue is below this share of the largest are recomputed: the normal equations have lost half of
# their digits.
WEAK = 1e-9
# A movement cannot be excluded if it changes the gradient by fewer rounding errors than this.
HIDDEN = 6.0
# An unknown whose derivative is shorter than this has no effect on the gradient.
LEAST = 1e-100


@dataclass(frozen=True)
class Whole:
    """All samples of a batch, as the joint fit gives them.

    Attributes:
        labels: (n, C).
        places: Coordinates q of the features in the span (n, B).
        open: Uncertainty of each label (n,), L1, that a given residual does not show.
        loose: Uncertainty of each feature relative to its length (n,), that a given residual does not show.
        scale: The factor on the gradient.
        deviation: Standard deviation of the residuals.
        shares: The L1 error of each label (n,) by residuals with a standard deviation of 1.
        scatter: The error of each feature (n,) by such residuals.
    """

    labels: Tensor
    places: Tensor
    open: Tensor
    loose: Tensor
    scale: float
    deviation: float
    shares: Tensor
    scatter: Tensor


def fitted(search: Search) -> Whole:
    """Fit all samples to the gradient together; if some are missing, return the others as they were found."""
    places, shares = search.found.places, search.found.shares
    base, step = search.families.parts(search.found.family)
    if len(shares) != search.span.rank:
        unbounded = torch.full_like(shares, math.inf)
        return Whole(base + shares[:, None] * step, places, unbounded, unbounded, 1.0, math.inf, unbounded, unbounded)
    scale = search.scale or search.estimated()
    best = _normal(search, places, shares, base, step, scale)
    damping = 1e-14
    for index in range(STEPS + PATIENT):
        near = best.misfit < FAR_OFF * search.unit * search.size * search.span.rank
        if near and index >= STEPS:
            break
        damped = best.square + damping * torch.diag(best.square.diagonal())
        change = torch.linalg.solve_ex(damped, best.slope)[0]
        new_scale = scale
        if search.scale is None:
            new_scale, change = scale * math.exp(-max(-1.0, min(1.0, float(change[-1])))), change[:-1]
        change = change.reshape(len(shares), -1)
        new_places = places - change[:, : search.span.rank]
        new_shares = shares - change[:, -1] if search.families.free else shares
        new_fit = _normal(search, new_places, new_shares, base, step, new_scale)
        if new_fit.misfit < best.misfit:
            places, shares, scale, best = new_places, new_shares, new_scale, new_fit
            damping = max(damping / 10, 1e-14)
        elif near:
            break
        else:
            damping = max(100 * damping, 1e-6)
    variance = torch.full_like(places, math.inf)
    if best.square.isfinite().all():
        inverse = torch.linalg.pinv(best.square, hermitian=True).diagonal().clamp(min=0)
        variance = inverse[: len(inverse) - (search.scale is None)].reshape(len(shares), -1)
    apart = variance[:, -1].sqrt() * step.abs().sum(dim=1) if search.families.free else torch.zeros_like(shares)
    scatter = variance[:, : search.span.rank].sum(dim=1).sqrt()
    deviation = best.misfit / math.sqrt(max(1, search.reduced.numel() - len(best.slope)))
    hidden, loose = _undetermined_by(search, places, step, scale, best)
    labels = base + shares[:, None] * step
    return Whole(labels, places, hidden.where(hidden > KNOWN, 0), loose, scale, deviation, apart, scatter)


def _undetermined_by(search: Search, places: Tensor, step: Tensor, scale: float, fit: _Fit) -> tuple[Tensor, Tensor]:
    """Return how far labels (n,), in L1, and features (n,), relative to their length, can move within rounding.

    The normal equations have lost the directions that move the gradient least, so these are computed from the samples.
    """
    count, rank = places.shape
    norms = fit.square.diagonal().sqrt()
    if not (fit.square.isfinite().all() and (norms > LEAST).all()):
        return places.new_full((count,), 2.0), places.new_full((count,), math.inf)
    values, directions = torch.linalg.eigh(fit.square / norms / norms[:, None])
    weak = values < WEAK * values[-1]
    zeros = places.new_zeros(count)
    if not weak.any():
        return zeros, zeros
    moves = (directions[:, weak] / norms[:, None]).T
    sample_moves = moves[:, : len(norms) - (search.scale is None)].reshape(len(moves), count, -1)
    effects = torch.einsum("bcj,wbj->wcb", fit.slopes, sample_moves) @ places
    effects = effects + torch.einsum("bc,wbj->wcj", fit.errors, sample_moves[:, :, :rank])
    if search.scale is None:
        effects = effects + moves[:, -1, None, None] * (search.span.rows[:, None] * search.reduced * rank / scale)
    left, singular, _ = torch.linalg.svd(effects.flatten(1), full_matrices=False)
    # A change of the gradient is hidden below the misfit of the fit, and always below the gradient's rounding.
    threshold = max(fit.misfit, search.unit * search.size * rank / scale)
    rotated = torch.einsum("wk,wbj->kbj", left, sample_moves)
    reach = HIDDEN * threshold / singular.clamp(min=TINY)
    feature_moves = (reach[:, None] * rotated[:, :, :rank].norm(dim=2)).norm(dim=0) / places.norm(dim=1).clamp(min=TINY)
    if not search.families.free:
        return zeros, feature_moves
    label_moves = (reach[:, None] * rotated[:, :, -1]).norm(dim=0) * step.abs().sum(dim=1)
    return label_moves.clamp(max=2), feature_moves


@dataclass(frozen=True)
class _Fit:
    """The samples' derivatives T (n, C, J) and weighted errors d (n, C), and the normal equations of all unknowns.

    These are JᵀJ, Jᵀr and ‖r‖ with r = R (G V − Σ d qᵀ / B).
    """

    slopes: Tensor
    errors: Tensor
    square: Tensor
    slope: Tensor
    misfit: float


def _normal(search: Search, places: Tensor, shares: Tensor, base: Tensor, step: Tensor, scale: float) -> _Fit:
    """Return the normal equations for samples at q (n, B) and s (n,), and for log κ if the scale is unknown."""
    span = search.span
    p = (places @ span.logits.T).softmax(dim=1)
    errors = span.rows * (p - base - shares[:, None] * step)
    slopes = derivatives(span.rows, span.logits, p[None], step[None] if search.families.free else None)
    every = slopes, places[None], errors[None]
    observed = span.rows[:, None] * search.reduced * span.rank / scale
    rest = observed - errors.T @ places
    square, slope = squared(*every)[0], -projected(*every, rest[None])[0]
    if search.scale is None:
        column = projected(*every, observed[None]).T
        square = torch.cat([square, column], dim=1)
        square = torch.cat([square, torch.cat([column.T, observed.square().sum().reshape(1, 1)], dim=1)])
        slope = torch.cat([slope, -(observed * rest).sum().reshape(1)])
    return _Fit(slopes[0], errors, square, slope, float(rest.norm()))
