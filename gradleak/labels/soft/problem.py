"""One sample's gradient as equations for its scalar, with the rounding error of each.

With G = c vᵀ and x = t v (see `rank_one`), the client's own equation t (p(t) − y) = c must hold for a label y. What is
left of an entry that a prior ties down is compared with the entry's own rounding error:

    eᵢ(t) = u (pᵢ (1 + (1 − pᵢ) t ‖W‖) + |yᵢ| + |cᵢ| / t) + noise / t, and the least number that the precision holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradleak.labels.soft.path import ScalarPath

# A scalar is accepted if its residuals are below this many rounding errors in the mean square; measured on networks,
# the true one stays below 3 (the tests draw it anew).
ACCEPT = 6.0
# No entry of a label is below zero by more than so many.
NEGATIVE = 10 * ACCEPT


@dataclass(frozen=True)
class Problem(ScalarPath):
    """Everything that N samples' scalars are found from, one sign of the scalar a line: x = t v, t = ‖x‖.

    `logits` a = W v and `ratios` c (N, C); `bias` b (C,) or None; `unit` (N,): rounding unit of the gradient; `floor`
    (N,): the least number that its precision holds; `scale` (N,): ‖W‖ in units of the logits; `noise` (N,): the
    standard deviation of the entries of c; `sway` (N,): that of the entries of a.
    """

    logits: Tensor
    ratios: Tensor
    bias: Tensor | None
    unit: Tensor
    floor: Tensor
    scale: Tensor
    noise: Tensor
    sway: Tensor

    def side(self, rows: Tensor, sign: int) -> Problem:
        """Return the problems of some samples, in their order, each scalar on this side of zero."""
        part = self if len(rows) == len(self) else self[rows]
        return part if sign > 0 else replace(part, logits=-part.logits, ratios=-part.ratios)

    def oriented(self, rows: Tensor, sign: Tensor) -> Problem:
        """Return the problems of these samples, of each the scalar's sign (n, 1) turned."""
        part = self[rows]
        return replace(part, logits=sign * part.logits, ratios=sign * part.ratios)

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Logits and ratios (N, 1, C), beside scalars (N, K, 1)."""
        return self.logits.unsqueeze(1), self.ratios.unsqueeze(1)

    @cached_property
    def total(self) -> Tensor:
        """The sum of the entries of c (N,), 0 but for rounding and noise."""
        return self.ratios.sum(dim=1)

    @cached_property
    def least(self) -> Tensor:
        """The least scalar for which a label can exist, (N,): the positive entries of p − y sum to at most 1."""
        positive = self.ratios.clamp(min=0).sum(dim=1)
        least = torch.maximum(positive, positive - self.total)
        # Noise adds to both sums; what is left of the bound without it is never taken for less than a tenth.
        return torch.maximum(least.sub(self.noise, alpha=self.classes**0.5), least / 10)

    def rounding(self, probability: Tensor, label: Tensor, at: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the error eᵢ(t) (N, K, C) of pᵢ − w cᵢ, given p, y, t and w (N, K, 1); w is 1 / t if not given."""
        unit, steep, floor, pulled = self._levels
        own = torch.addcmul(unit, at, steep).lerp(unit, probability)
        rest = torch.addcmul(floor, unit, label.abs())
        rest = rest.addcdiv(pulled, at) if weights is None else rest.addcmul(pulled, weights)
        return rest.addcmul_(probability, own)

    @cached_property
    def _levels(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What errors are made of: u, u ‖W‖ and what noise adds to it, floor (N, 1, 1), and what w brings (N, 1, C)."""
        steep = torch.addcmul(self.sway, self.unit, self.scale)
        levels = torch.stack([self.unit, steep, self.floor, self.floor + self.noise])
        unit, steep, floor, disturbed = levels.reshape(4, -1, 1, 1)
        return unit, steep, floor, torch.addcmul(disturbed, unit, self.rows[1].abs())

    def explained(self, scalars: Tensor) -> tuple[Tensor, Tensor]:
        """Return ŷ(t) and its rounding error (N, K, C) for t (N, K)."""
        at = scalars.unsqueeze(2)
        probability, pull = self.sides(at)
        label = probability - pull
        return label, self.rounding(probability, label, at)

    def sides(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return p(t) and c / t (N, K, C), whose difference is the label, for t (N, K, 1)."""
        logits, ratios = self.rows
        scores = at * logits
        if self.bias is not None:
            scores += self.bias
        return scores.softmax(dim=2), ratios / at
