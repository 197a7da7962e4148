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
    rank = places.shape[1]
    damping = torch.full_like(shares, 1e-3)
    rows, errors = span.rows, span.errors

    def residual(q: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p = (q @ span.logits.T).softmax(dim=1)
        e = rows * (p - base - s[:, None] * step)
        size = e.norm(dim=1, keepdim=True).clamp(min=TINY)
        e = e / size
        r = e - (e @ errors) @ errors.T
        return p, size, e, r

    p, size, e, r = residual(places, shares)
    cost = r.square().sum(dim=1)
    for _ in range(steps):
        mean = p @ span.logits
        jacobian = (rows * p / size).unsqueeze(2) * (span.logits - mean.unsqueeze(1))
        if free:
            jacobian = torch.cat([jacobian, (-rows * step / size).unsqueeze(2)], dim=2)
        along = (e.unsqueeze(1) @ jacobian)[:, 0]
        out = (r.unsqueeze(1) @ jacobian)[:, 0]
        inside = errors.T @ jacobian
        square = jacobian.mT @ jacobian - inside.mT @ inside
        cross = out.unsqueeze(2) * along.unsqueeze(1)
        square = square - cross - cross.mT + cost[:, None, None] * along.unsqueeze(2) * along.unsqueeze(1)
        slope = out - cost[:, None] * along
        diagonal = square.diagonal(dim1=1, dim2=2).clamp(min=TINY)
        # A share has another unit than places, and may weigh more by many orders.
        largest = torch.cat([diagonal[:, :rank].amax(dim=1, keepdim=True).expand(-1, rank), diagonal[:, rank:]], dim=1)
        units = torch.maximum(diagonal, 1e-12 * largest).rsqrt()
        scaled = units.unsqueeze(2) * square * units.unsqueeze(1)
        damped = scaled + torch.diag_embed((damping[:, None] + 1e-15).expand(-1, units.shape[1]))
        change = units * torch.linalg.solve_ex(damped, units * slope)[0].nan_to_num(0, 0, 0)
        new_places = places - change[:, :rank]
        new_shares = shares - change[:, rank] if free else shares
        new = residual(new_places, new_shares)
        new_cost = new[3].square().sum(dim=1)
        better = new_cost < cost
        wide = better[:, None]
        places, shares = torch.where(wide, new_places, places), torch.where(better, new_shares, shares)
        p, size, e, r = (torch.where(wide, one, other) for one, other in zip(new, (p, size, e, r), strict=True))
        cost = torch.where(better, new_cost, cost)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e12)
    return places, shares, cost
