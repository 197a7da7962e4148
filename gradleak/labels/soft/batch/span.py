"""Represent a gradient by its singular vectors, and fit the errors of samples to their span."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.devices import repeated

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Span:
    """The singular vectors of a gradient whose rows were divided by their lengths.

    Attributes:
        errors: The left singular vectors U (C, B), which span the samples' errors.
        logits: W V (C, B), with the right singular vectors V, which span the samples' features.
        mean: Vᵀ1 (B,).
        rows: One over the rows' lengths (C,).
    """

    errors: Tensor
    logits: Tensor
    mean: Tensor
    rows: Tensor

    @property
    def rank(self) -> int:
        """The number of samples to be found."""
        return self.errors.shape[1]


def descended(
    span: Span, base: Tensor, step: Tensor, places: Tensor, shares: Tensor, free: int, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate the errors of P labels into the span, by Levenberg-Marquardt steps.

    With e = R (softmax(A q) − y₀ − s y₁), where R are the row weights and A the span's logits, the residual is (I −
    UUᵀ) e / ‖e‖.

    Args:
        span: The span to rotate into.
        base: y₀ (P, C).
        step: y₁ (P, C).
        places: Coordinates q of the features in the span (P, B).
        shares: s (P,).
        free: 1 if s is unknown, else 0.
        steps: The number of steps.

    Returns:
        q (P, B), s (P,) and the squared sine of the angle between e and the span (P,).
    """
    count, rank = places.shape
    rows, errors, logits = span.rows, span.errors, span.logits
    easier, harder = places.new_tensor([5.0, 0.25]).unbind()
    jacobian = places.new_empty(count, len(rows), rank + free)
    share_slope = -rows * step

    def residual(q: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return p, e scaled to length 1, and its residual (3, P, C), and the length of e before (P, 1)."""
        state = q.new_empty(3, count, len(rows))
        p, e, r = state
        torch.softmax(q @ logits.T, dim=1, out=p)
        unscaled = (p - base).sub_(s[:, None] * step).mul_(rows)
        length = unscaled.norm(dim=1, keepdim=True).clamp_(min=TINY)
        torch.div(unscaled, length, out=e)
        torch.sub(e, (e @ errors) @ errors.T, out=r)
        return state, length

    def stepped(
        places: Tensor, shares: Tensor, state: Tensor, length: Tensor, cost: Tensor, damping: Tensor
    ) -> tuple[Tensor, ...]:
        """Return places, shares, their residual's state and length, cost and damping after a step."""
        p, e, r = state
        torch.mul((rows * p).div_(length).unsqueeze(2), logits - (p @ logits).unsqueeze(1), out=jacobian[:, :, :rank])
        if free:
            torch.div(share_slope, length, out=jacobian[:, :, rank])
        along = (e.unsqueeze(1) @ jacobian)[:, 0]
        out = (r.unsqueeze(1) @ jacobian)[:, 0]
        inside = errors.T @ jacobian
        cross, pulled = out.unsqueeze(2) * along.unsqueeze(1), cost[:, None] * along
        square = (jacobian.mT @ jacobian).sub_(inside.mT @ inside).sub_(cross).sub_(cross.mT)
        square += pulled.unsqueeze(2) * along.unsqueeze(1)
        units = square.diagonal(dim1=1, dim2=2).clamp(min=TINY)
        # The share has another unit than the coordinates q, and its diagonal entry may be larger by many orders.
        of_places = units[:, :rank]
        torch.maximum(of_places, 1e-12 * of_places.amax(dim=1, keepdim=True), out=of_places)
        units.rsqrt_()
        square.mul_(units.unsqueeze(2)).mul_(units.unsqueeze(1)).diagonal(dim1=1, dim2=2).add_(damping[:, None] + 1e-15)
        change = torch.linalg.solve_ex(square, units * (out - pulled))[0].nan_to_num_(0, 0, 0).mul_(units)
        new_places = places - change[:, :rank]
        new_shares = shares - change[:, rank] if free else shares
        new_state, new_length = residual(new_places, new_shares)
        new_cost = new_state[2].square().sum(dim=1)
        better = new_cost < cost
        wide = better[:, None]
        places, shares = torch.where(wide, new_places, places), torch.where(better, new_shares, shares)
        state, length = torch.where(wide, new_state, state), torch.where(wide, new_length, length)
        cost = torch.where(better, new_cost, cost)
        damping = (damping / torch.where(better, easier, harder)).clamp_(1e-12, 1e12)
        return places, shares, state, length, cost, damping

    state, length = residual(places, shares)
    start = (places, shares, state, length, state[2].square().sum(dim=1), torch.full_like(shares, 1e-3))
    places, shares, _, _, cost, _ = repeated(stepped, start, steps)
    return places, shares, cost
