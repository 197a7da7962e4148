"""All samples of a batch, fitted to its gradient together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.labels.soft.batch.rounds import Search

STEPS = 10


@dataclass(frozen=True)
class Whole:
    """All samples of a batch: `labels` (n, C), `places` (n, B), and how far each label is open (n,), in L1."""

    labels: Tensor
    places: Tensor
    open: Tensor


def fitted(search: Search) -> Whole:
    """Fit all samples to the gradient together; where some are missing, the others stay as they were found."""
    places, shares = search.found.places, search.found.shares
    base, step = search.families.parts(search.found.family)
    if len(shares) != search.span.rank:
        return Whole(base + shares[:, None] * step, places, torch.full_like(shares, math.inf))
    best = _normal(search, places, shares, base, step)
    for _ in range(STEPS):
        damped = best.square + 1e-14 * torch.diag(best.square.diagonal())
        change = torch.linalg.solve_ex(damped, best.slope)[0].reshape(len(shares), -1)
        new_places = places - change[:, : search.span.rank]
        new_shares = shares - change[:, -1] if search.families.free else shares
        new = _normal(search, new_places, new_shares, base, step)
        if not new.misfit < best.misfit:
            break
        places, shares, best = new_places, new_shares, new
    opened = torch.zeros_like(shares)
    if search.families.free:
        spare = max(1, search.reduced.numel() - len(best.slope))
        variance = torch.linalg.pinv(best.square, hermitian=True).diagonal().clamp(min=0) * best.misfit**2 / spare
        opened = 3 * variance.reshape(len(shares), -1)[:, -1].sqrt() * step.abs().sum(dim=1)
    return Whole(base + shares[:, None] * step, places, opened)


@dataclass(frozen=True)
class _Fit:
    """The normal equations of all samples' unknowns at once: JᵀJ, Jᵀr, ‖r‖ with r = R (G V − Σ d qᵀ / B)."""

    square: Tensor
    slope: Tensor
    misfit: float


def _normal(search: Search, places: Tensor, shares: Tensor, base: Tensor, step: Tensor) -> _Fit:
    """Return the normal equations for samples at q (n, B) and s (n,).

    Sample b adds d_b q_bᵀ, so its unknown j moves T_bj q_bᵀ + d_b e_jᵀ, where T_b is the derivative of d_b and e_j is
    zero for s. The inner products of such matrices are made from those of their factors.
    """
    span, free, count = search.span, search.families.free, len(shares)
    p = (places @ span.logits.T).softmax(dim=1)
    errors = span.rows * (p - base - shares[:, None] * step)
    slopes = (span.rows * p).unsqueeze(2) * (span.logits - (p @ span.logits).unsqueeze(1))
    longer = places
    if free:
        slopes = torch.cat([slopes, (-span.rows * step).unsqueeze(2)], dim=2)
        longer = torch.cat([places, torch.zeros_like(shares)[:, None]], dim=1)
    size = slopes.shape[2]
    flat = slopes.transpose(0, 1).reshape(slopes.shape[1], -1)
    unit = torch.diag((torch.arange(size) < span.rank).to(places))
    inner = (flat.T @ flat).reshape(count, size, count, size) * (places @ places.T)[:, None, :, None]
    across = (flat.T @ errors.T).reshape(count, size, count)[:, :, :, None] * longer[:, None, None, :]
    inner = inner + across + across.permute(2, 3, 0, 1)
    inner = inner + (errors @ errors.T)[:, None, :, None] * unit[None, :, None, :]
    rest = span.rows[:, None] * search.reduced * span.rank - errors.T @ places
    slope = -torch.einsum("bcj,ck,bk->bj", slopes, rest, places)
    slope[:, : span.rank] -= errors @ rest
    total = count * size
    return _Fit(inner.reshape(total, total), slope.reshape(total), float(rest.norm()))
