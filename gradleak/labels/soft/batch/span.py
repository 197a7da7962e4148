"""What the singular vectors of a gradient span, and how a sample's error is turned into that span."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Span:
    """What the singular vectors leave of a gradient, its rows divided by their size.

    `errors` (C, B): U; `logits` (C, B): W V; `mean` (B,): Vᵀ1; `rows` (C,): one over the rows' sizes.
    """

    errors: Tensor
    logits: Tensor
    mean: Tensor
    rows: Tensor

    @property
    def rank(self) -> int:
        """The number of samples that are looked for."""
        return self.errors.shape[1]


def descended(
    span: Span, base: Tensor, step: Tensor, places: Tensor, shares: Tensor, free: int, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the errors of P labels into the span, by Levenberg-Marquardt; return q, s and the squared sine of the angle.

    With e = R (softmax(A q) − y₀ − s y₁), R the rows' weights, the residual is (I − UUᵀ) e / ‖e‖.
    """
    count, rank = places.shape
    rows, errors, logits = span.rows, span.errors, span.logits
    damping = torch.full_like(shares, 1e-3)
    easier, harder = damping.new_tensor([5.0, 0.25]).unbind()
    jacobian = places.new_empty(count, len(rows), rank + free)
    against = -rows * step

    def residual(q: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return p, e of length one and its residual (3, P, C), and the length that e had (P, 1)."""
        state = q.new_empty(3, count, len(rows))
        p, e, r = state
        torch.softmax(q @ logits.T, dim=1, out=p)
        whole = (p - base).sub_(s[:, None] * step).mul_(rows)
        size = whole.norm(dim=1, keepdim=True).clamp_(min=TINY)
        torch.div(whole, size, out=e)
        torch.sub(e, (e @ errors) @ errors.T, out=r)
        return state, size

    state, size = residual(places, shares)
    cost = state[2].square().sum(dim=1)
    for _ in range(steps):
        p, e, r = state
        torch.mul((rows * p).div_(size).unsqueeze(2), logits - (p @ logits).unsqueeze(1), out=jacobian[:, :, :rank])
        if free:
            torch.div(against, size, out=jacobian[:, :, rank])
        along = (e.unsqueeze(1) @ jacobian)[:, 0]
        out = (r.unsqueeze(1) @ jacobian)[:, 0]
        inside = errors.T @ jacobian
        cross, pulled = out.unsqueeze(2) * along.unsqueeze(1), cost[:, None] * along
        square = (jacobian.mT @ jacobian).sub_(inside.mT @ inside).sub_(cross).sub_(cross.mT)
        square += pulled.unsqueeze(2) * along.unsqueeze(1)
        units = square.diagonal(dim1=1, dim2=2).clamp(min=TINY)
        # A share has another unit than places, and may weigh more by many orders.
        of_places = units[:, :rank]
        torch.maximum(of_places, 1e-12 * of_places.amax(dim=1, keepdim=True), out=of_places)
        units.rsqrt_()
        square.mul_(units.unsqueeze(2)).mul_(units.unsqueeze(1)).diagonal(dim1=1, dim2=2).add_(damping[:, None] + 1e-15)
        change = torch.linalg.solve_ex(square, units * (out - pulled))[0].nan_to_num_(0, 0, 0).mul_(units)
        new_places = places - change[:, :rank]
        new_shares = shares - change[:, rank] if free else shares
        new_state, new_size = residual(new_places, new_shares)
        new_cost = new_state[2].square().sum(dim=1)
        better = new_cost < cost
        wide = better[:, None]
        places, shares = torch.where(wide, new_places, places), torch.where(better, new_shares, shares)
        state, size = torch.where(wide, new_state, state), torch.where(wide, new_size, size)
        cost = torch.where(better, new_cost, cost)
        damping = (damping / torch.where(better, easier, harder)).clamp_(1e-12, 1e12)
    return places, shares, cost
