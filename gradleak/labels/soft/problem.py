"""Reduce a sample's gradient to two vectors, and state it as equations for its scalar with their rounding errors.

With G = c vᵀ and x = t v (see `RankOne`), the client's equation t (p(t) − y) = c must hold for a label y. An entry
that the prior constrains leaves a residual, which is compared with the rounding error of the entry

    eᵢ(t) = u (pᵢ + |yᵢ| + |cᵢ| / t) + noise / t + least number of the precision + mᵢ(t).

mᵢ(t) = pᵢ (1 − pᵢ) s exp(rate t) is the error of pᵢ by the error s of the logits. Where s is small this is the slope of
the softmax times s. The slope vanishes where one class has all probability, but a larger error may still give the
probability to another class: an error of ACCEPT s changes the odds of a class by a factor of up to exp(ACCEPT s), so pᵢ
moves by at most ACCEPT pᵢ (1 − pᵢ) s exp(ACCEPT s). Noise of the logits has no bound and enters the exponent with the
factor ACCEPT. Rounding errors have one and enter it with the factor WORST.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from scipy.special import gammaincinv
from torch import Tensor

from gradleak.devices import entries_at_once
from gradleak.errors import InputError

# On a CPU a chunk and its temporaries fit the second-level cache, which halves the time.
CHUNK_ELEMENTS = 2**18
# Temporaries of a chunk's size that are held at once, in float64.
COPIES = 16
GOLDEN = (math.sqrt(5) - 1) / 2
# The same for gradients that are converted to float64.
GRADIENT_ELEMENTS, GRADIENT_COPIES = 2**20, 4
# Gradients are scaled to a largest entry of 1, so only zero gradients have shorter vectors than this.
LEAST = 1e-12
# The probability that an upper bound on unknown noise is too low.
UNLIKELY = 1e-5
# A scalar is accepted if the root mean square of its residuals is below this many rounding errors. On networks the true
# scalar stays below TRUE, which the tests measure again.
ACCEPT, TRUE = 6.0, 4.0
# An entry of a label may be negative by this many rounding errors at most.
NEGATIVE = 10 * ACCEPT
# The rounding error of a logit is at most about this many times u t ‖W‖.
WORST = 2.0
# The largest exponent whose power is a number of float64.
LARGEST = 700.0


@dataclass(frozen=True)
class RankOne:
    """The best rank-one fit G ≈ c vᵀ of each of N gradients, with ‖v‖ = 1 and Σv ≥ 0.

    With x = t v the label is ŷ(t) = softmax(t W v + b) − c / t. This is Eqn. 4 of wang2024 with the scalar t = ‖x‖.

    Attributes:
        direction: v (N, I).
        logits: a = W v (N, C).
        errors: c (N, C).
        size: ‖G‖ (N,).
        misfit: ‖G − c vᵀ‖ / ‖G‖ (N,).
        same_sign: Whether all features can have the same sign (N,).
    """

    direction: Tensor
    logits: Tensor
    errors: Tensor
    size: Tensor
    misfit: Tensor
    same_sign: Tensor


def reduce_gradients(weight_gradients: Tensor, weight: Tensor) -> RankOne:
    """Return the best rank-one fits of gradients (N, C, I), computed in float64."""
    if weight_gradients.ndim != 3 or weight_gradients.shape[1:] != weight.shape:
        raise InputError(
            f"weight gradients must be (C, I) or (N, C, I) with weight's (C, I) = {tuple(weight.shape)}; "
            f"got {tuple(weight_gradients.shape)}"
        )
    entries = entries_at_once(weight_gradients.device, GRADIENT_ELEMENTS, 8 * GRADIENT_COPIES)
    chunk = max(1, entries // weight.numel())
    parts = [_reduce(part) for part in weight_gradients.split(chunk)]
    direction, errors, size, misfit = (joined(list(values)) for values in zip(*parts, strict=True))
    # Features that are only noise may have the other sign, so compare their share of the squared length with the
    # misfit.
    wrong = direction.clamp(max=0).square().sum(dim=1)
    return RankOne(direction, direction @ weight.double().T, errors, size, misfit, wrong <= 1e-6 + misfit.square())


def _reduce(gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return direction, errors, size and misfit; each statement below passes over the gradients once."""
    gradients = gradients.double()
    largest = torch.linalg.vector_norm(gradients, torch.inf, dim=(1, 2), keepdim=True)
    # Squares of small numbers would underflow.
    scale = largest.clamp_(min=math.ulp(0.0))
    gradients = gradients / scale
    rows = torch.linalg.vector_norm(gradients, dim=2, keepdim=True)
    longest = rows.argmax(dim=1, keepdim=True)
    # One power iteration is enough: a sample's rows are parallel up to rounding, so the longest is almost exact.
    direction = gradients.mT @ (gradients @ gradients.take_along_dim(longest, dim=1).mT)
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp_(min=LEAST)
    direction /= length.copysign_(direction.sum(dim=1, keepdim=True))
    errors = gradients @ direction
    size = torch.linalg.vector_norm(rows, dim=(1, 2))
    # Subtract entry by entry: ‖G‖² − ‖c‖² would keep only eight digits.
    rest = torch.linalg.vector_norm(gradients.addcmul(errors, direction.mT, value=-1), dim=(1, 2))
    misfit = rest.div_(size.clamp(min=LEAST))
    return direction.squeeze(2), (errors * scale).squeeze(2), size * scale.flatten(), misfit


def noise_bound(residual: Tensor, entries: int) -> Tensor:
    """Return an upper bound on the standard deviation of noise from the norm of what a fit leaves of a gradient.

    `entries`: the degrees of freedom that the fit leaves; the square of the norm has a χ² distribution with so many.
    """
    if entries < 1:
        raise InputError("noise cannot be estimated where a fit of the gradient leaves nothing: state the noise")
    return residual / math.sqrt(2 * float(gammaincinv(entries / 2, UNLIKELY)))


class ScalarPath:
    """The label of each of N samples as a function of its unknown scalar s.

    Attributes:
        logits: W d (N, C).
        ratios: r (N, C), the gradient's rows in units of d.
        bias: b (C,) or None.
    """

    logits: Tensor
    ratios: Tensor
    bias: Tensor | None

    def __len__(self) -> int:
        return len(self.ratios)

    def __getitem__(self, which: slice | Tensor) -> Self:
        """Return the paths of some samples; all tensors but the bias have one row for each sample."""
        own: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        rows = {name: value[which] for name, value in own.items() if torch.is_tensor(value) and name != "bias"}
        return type(self)(**own | rows)

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.ratios.shape[1]

    def probabilities(self, scalars: Tensor) -> Tensor:
        """Return p(s) = softmax(s W d + b) (N, K, C) for s (N, K)."""
        scores = scalars.unsqueeze(-1) * self.logits.unsqueeze(1)
        if self.bias is not None:
            scores = scores + self.bias
        return scores.softmax(dim=-1)

    def pulls(self, scalars: Tensor) -> Tensor:
        """Return r / s (N, K, C), which is p − y, for s (N, K)."""
        return self.ratios.unsqueeze(1) / scalars.unsqueeze(-1)

    def labels(self, scalars: Tensor) -> Tensor:
        """Return ŷ(s) = p(s) − r / s (N, K, C) for s (N, K), by Eqn. 4."""
        return self.probabilities(scalars) - self.pulls(scalars)

    def parts(self, points: int) -> list[Self]:
        """Split the samples so that the labels of each part, at `points` scalars, fit one chunk."""
        entries = entries_at_once(self.ratios.device, CHUNK_ELEMENTS, 8 * COPIES)
        size = max(1, entries // (points * self.classes))
        if size >= len(self):
            return [self]
        return [self[start : start + size] for start in range(0, len(self), size)]


@dataclass(frozen=True)
class Problem(ScalarPath):
    """All that the scalars of N samples are computed from, for one sign of the scalar: x = t v and t = ‖x‖.

    Attributes:
        logits: a = W v (N, C).
        ratios: c (N, C).
        bias: b (C,) or None.
        unit: Rounding unit of the gradient (N,).
        floor: The least number that the gradient's precision holds (N,).
        scale: ‖W‖, the length of its longest row (N,).
        noise: Standard deviation of the noise on the entries of c (N,).
        sway: Standard deviation of the noise on the entries of a (N,).
        usual: Whether errors of probabilities are the usual ones, pᵢ (1 − pᵢ) s, by which likelihoods are compared,
            and not the largest.
    """

    logits: Tensor
    ratios: Tensor
    bias: Tensor | None
    unit: Tensor
    floor: Tensor
    scale: Tensor
    noise: Tensor
    sway: Tensor
    usual: bool = False

    def side(self, rows: Tensor, sign: int) -> Problem:
        """Return the problems of some samples for scalars of this sign, which is absorbed in logits and ratios."""
        part = self if len(rows) == len(self) else self[rows]
        return part if sign > 0 else replace(part, logits=-part.logits, ratios=-part.ratios)

    def oriented(self, rows: Tensor, sign: Tensor) -> Problem:
        """Return the problems of these samples, each for scalars of its own `sign` (n, 1)."""
        part = self[rows]
        return replace(part, logits=sign * part.logits, ratios=sign * part.ratios)

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Logits and ratios (N, 1, C), to be combined with scalars (N, K, 1)."""
        return self.logits.unsqueeze(1), self.ratios.unsqueeze(1)

    @cached_property
    def noisy(self) -> bool:
        """Whether there is noise."""
        return bool(self.noise.any())

    @cached_property
    def total(self) -> Tensor:
        """The sum of the entries of c (N,): 0 except for rounding and noise."""
        return self.ratios.sum(dim=1)

    @cached_property
    def least(self) -> Tensor:
        """The least scalar for which a label can exist (N,): the positive entries of p − y sum to at most 1."""
        positive = self.ratios.clamp(min=0).sum(dim=1)
        least = torch.maximum(positive, positive - self.total)
        # Noise increases both sums. Correct for it, but keep at least a tenth of the bound.
        return torch.maximum(least.sub(self.noise, alpha=self.classes**0.5), least / 10)

    def rounding(self, probability: Tensor, label: Tensor, at: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the error eᵢ(t) (N, K, C) of pᵢ − w cᵢ for p, y, t and w (N, K, 1); w is 1 / t by default."""
        unit, share, floor, pulled, rate = self._levels
        rest = torch.addcmul(floor, unit, label.abs())
        rest = rest.addcdiv(pulled, at) if weights is None else rest.addcmul(pulled, weights)
        growth = (at * rate).clamp_(max=LARGEST)
        factor = 1.0 if self.usual else growth.exp()
        own = torch.lerp(unit + growth.mul_(share).mul_(factor), unit, probability)
        return rest.add_(own.mul_(probability).clamp_(max=1 / ACCEPT))

    def certainty(self, at: Tensor, weights: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return p and the errors of labels (N, C) for t and w (N, 1) of either sign, even if p or 1 − p underflows."""
        unit, share, floor, pulled, rate = (one[:, 0] for one in self._levels)
        scores = at * self.logits
        logs = (scores if self.bias is None else scores + self.bias).log_softmax(dim=1)
        likeliest = logs.argmax(dim=1, keepdim=True)
        others = logs.scatter(1, likeliest, -math.inf).logsumexp(dim=1, keepdim=True)
        probability = logs.exp()
        growth = at.abs() * rate
        logs += (-probability).log1p().scatter_(1, likeliest, others)
        logs += growth.add((growth * share).log_())
        moved = logs.clamp_(max=-math.log(ACCEPT)).exp_()
        rest = torch.addcmul(floor, unit, probability + labels.abs())
        return probability, rest.addcmul_(pulled, weights.abs()).add_(moved)

    @property
    def rate(self) -> Tensor:
        """The logarithm of the factor by which errors of the logits may change odds, per unit of t (N, 1, 1)."""
        return self._levels[-1]

    @cached_property
    def _levels(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The parts of the errors: u, s / (rate t), the floor (N, 1, 1), the factor of w (N, 1, C), `rate`."""
        rate = torch.addcmul(ACCEPT * self.sway, self.unit, self.scale, value=WORST)
        share = torch.addcmul(self.sway, self.unit, self.scale).div_(rate.clamp(min=1e-300))
        levels = torch.stack([self.unit, share, self.floor, self.floor + self.noise, rate])
        unit, share, floor, disturbed, rate = levels[:, :, None, None].unbind()
        return unit, share, floor, torch.addcmul(disturbed, unit, self.rows[1].abs()), rate

    def explained(self, scalars: Tensor) -> tuple[Tensor, Tensor]:
        """Return the label ŷ(t) and its rounding error (N, K, C) for t (N, K)."""
        at = scalars.unsqueeze(2)
        probability, pull = self.sides(at)
        label = probability - pull
        return label, self.rounding(probability, label, at)

    def sides(self, at: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return p(t) and w c (N, K, C), whose difference is the label, for t and w (N, K, 1); by default w = 1 / t."""
        logits, ratios = self.rows
        scores = at * logits
        if self.bias is not None:
            scores += self.bias
        return scores.softmax(dim=2), ratios / at if weights is None else ratios * weights

    def grid_probabilities(self, grid: Tensor) -> Tensor:
        """Return p(t) (N, C, K) on a grid t (N, K): with classes before grid points, sums access memory in order."""
        # Work in place, since memory traffic takes most of the time.
        scores = (self.logits - self.logits.amax(dim=1, keepdim=True)).unsqueeze(2) * grid.unsqueeze(1)
        if self.bias is not None:
            scores += self.bias.unsqueeze(1)
            scores -= scores.amax(dim=1, keepdim=True)
        # Exponentials that underflow take five times as long as others.
        scores.clamp_(min=-700).exp_()
        return scores.mul_(scores.sum(dim=1, keepdim=True).reciprocal_())


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate the parts; return a single part without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def padded(values: Tensor, columns: int) -> Tensor:
    """Return values (…, K) with the first one of each row repeated, to be K = `columns` in all."""
    if values.shape[-1] == columns:
        return values
    return torch.cat([values, values[..., :1].expand(*values.shape[:-1], columns - values.shape[-1])], dim=-1)


def golden(loss: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, steps: int = 60) -> Tensor:
    """Narrow brackets (N, K) around one minimum each by golden-section search, which needs no derivatives."""
    for _ in range(steps):
        width = upper - lower
        left, right = upper - GOLDEN * width, lower + GOLDEN * width
        first = loss(left) < loss(right)
        lower, upper = torch.where(first, lower, left), torch.where(first, right, upper)
    return (lower + upper) / 2
