"""Check whether a vector lies in the row span of a weight gradient with rounding errors or noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# The rank is where the ratio of neighbouring singular values is largest. The ratio must exceed LEAST_GAP, and the
# larger value must exceed ROUNDED times the largest one. The smallest singular values of pure noise decrease quickly,
# so after the share INNER of the values the ratio must exceed WIDE.
LEAST_GAP, ROUNDED, INNER, WIDE = 1.5, 3e-7, 0.9, 100
# Largest ratio of rows to columns; gradients with more rows are compressed to this ratio.
FOLDED = 4
# Least tolerance of the spans of later layers, as a share of a random vector's miss, and of those of a classifier. The
# last layer of a language model excludes false prefixes by their counts; that of a classifier cannot.
SLACK, CLASSIFIED = 0.03, 1e-3
# Directions outside the span with which most vectors are excluded at a low cost, if their part along these is larger
# than NEAR, which exceeds the rounding errors of single precision.
DIRECTIONS, NEAR = 16, 1e-2
# Pure noise (R, D) of standard deviation σ has singular values up to about σ (√R + √D), uneven noise up to EDGE times
# more.
EDGE = 2.0


@dataclass(frozen=True)
class Span:
    """The row span of a gradient (R, D), with columns scaled to similar size.

    A vector's miss is its distance from the span after scaling, divided by its length.

    Attributes:
        basis: Orthonormal columns (D, K) that span the scaled rows.
        sizes: Their singular values (K,).
        units: The scale of each column (D,).
        noise: The standard deviation of an entry's noise after scaling, estimated outside the span.
        rounding: The miss of a vector in the span by rounding alone.
        slack: The miss that is always allowed.
    """

    basis: Tensor
    sizes: Tensor
    units: Tensor
    noise: float
    rounding: float
    slack: float = 0.0

    @property
    def rank(self) -> int:
        """The dimension K: the number of independent inputs that the gradient is a sum over."""
        return self.basis.shape[1]

    @property
    def power(self) -> float:
        """The miss of a random vector; at 0 the span is the whole space, and the check is void."""
        return math.sqrt(1 - self.rank / len(self.basis))

    @property
    def worst(self) -> float:
        """The largest miss that noise may explain, over all vectors of length one."""
        least = float(self.sizes[-1]) if self.rank else 1.0
        return self._allowed(torch.tensor([1 / least], dtype=self.basis.dtype)).item() if self.power else 1.0

    def inside(self, vectors: Tensor) -> Tensor:
        """Return which vectors (N, D) lie in the span, which means that noise explains their miss.

        Vectors (N, D − 1) get a last entry of 1, the input of the bias. A vector in the span is a weighted sum of the
        gradient's rows. Directions with small singular values need large weights, which amplify the rows' noise.
        """
        if self.power == 0:
            return vectors.new_ones(len(vectors), dtype=torch.bool)
        if vectors.shape[1] + 1 == len(self.basis):
            vectors = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)
        scaled = vectors / self.units
        scaled = scaled / scaled.norm(dim=1, keepdim=True)
        along = scaled @ self.basis
        misses: Tensor = (scaled - along @ self.basis.T).norm(dim=1)
        return misses.less(self._allowed((along / self.sizes).norm(dim=1)))

    def near(self, vectors: Tensor) -> Tensor:
        """Return which vectors (N, D) or (N, D − 1) may lie in the span, at a low cost and in any precision."""
        width = vectors.shape[1]
        scales = self.units.square().reciprocal().to(vectors)
        outside = (self._outside / self.units[:, None]).to(vectors)
        parts, squares = vectors @ outside[:width], vectors.square() @ scales[:width]
        if width < len(self.basis):
            parts, squares = parts + outside[-1], squares + scales[-1]
        return parts.square().sum(dim=1) < max(self.worst, NEAR) ** 2 * squares

    @cached_property
    def _outside(self) -> Tensor:
        """Orthonormal directions (D, S) outside the span; a vector's part along them is no longer than its miss."""
        count = min(DIRECTIONS, len(self.basis) - self.rank)
        random = torch.randn(len(self.basis), count, generator=torch.Generator().manual_seed(0)).to(self.basis)
        outside: Tensor = torch.linalg.qr(torch.cat([self.basis, random], dim=1)).Q[:, self.rank :]
        return outside

    def _allowed(self, rows: Tensor) -> Tensor:
        """Return the largest misses (N,) that noise explains, for sums of rows with weights of these lengths (N,)."""
        outside = len(self.basis) - self.rank
        expected = rows * self.noise * math.sqrt(outside) + self.rounding
        # Noise and above all rounding errors are uneven. So the limit is up to 20 times the expected miss, if that is
        # far below the miss of a random vector.
        return (expected * (self.power / expected).pow(0.25).clamp(min=1.3, max=20)).clamp(min=self.slack)


def full(span: Span) -> str:
    """Return why a first layer's span excludes no words."""
    return f"the first layer's gradient has full rank, {span.rank}: too many different prefixes, or noise"


def everything(like: Tensor) -> Span:
    """Return the whole space as the span for a gradient (R, D); every vector lies inside."""
    width = like.shape[1]
    unit = torch.eye(width, dtype=torch.float64, device=like.device)
    return Span(unit, unit.diagonal(), unit.diagonal(), noise=0.0, rounding=0.0)


def span_of(gradient: Tensor, *, equalise: bool = True, least: int = 0, slack: float = SLACK) -> Span:
    """Return the row span of a gradient (R, D).

    Args:
        gradient: (R, D).
        equalise: Whether to divide rows by their lengths. This suits rounding errors, which are relative to a row's
            length, but not added noise, which is the same in all rows.
        least: If positive, the least possible rank, from the span of an earlier layer. The whole space is returned if
            the rank found is smaller. A larger miss is allowed, because vectors that are wrongly rejected are lost.
        slack: The share of a random vector's miss that is then allowed at least.
    """
    rounding = 4 * torch.finfo(gradient.dtype).eps
    rows, width = _folded(gradient, equalise), gradient.shape[1]
    if len(rows) == 0:
        empty = rows.new_zeros(width, 0), rows.new_zeros(0), rows.new_ones(width)
        return Span(*empty, noise=0.0, rounding=rounding)
    units = rows.square().mean(dim=0).sqrt()
    units = units.where(units > 0, units.max())
    if not equalise:
        units = torch.full_like(units, float(units.square().mean().sqrt()))
    rows = rows / units
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    sizes = values.flip(0).clamp(min=0).sqrt()
    rank, most = _rank(sizes, min(len(rows), width)), min(len(rows), width)
    noise = _noise(sizes, rank, len(rows))
    # Beyond the widest gap, singular values that exceed those of noise also belong to the span.
    while rank < most and float(sizes[rank]) > EDGE * noise * (math.sqrt(len(rows)) + math.sqrt(width)):
        rank += 1
        noise = _noise(sizes, rank, len(rows))
    if rank < least or rank >= most:
        rank, noise = width, 0.0
    allowed = slack * math.sqrt(1 - rank / width) if least else 0.0
    return Span(vectors.flip(1)[:, :rank], sizes[:rank], units, noise, rounding, allowed)


def _folded(gradient: Tensor, equalise: bool) -> Tensor:
    """Return the nonzero rows (R, D) of a gradient in float64, divided by their lengths if `equalise`.

    Many rows are compressed to fewer sums with random signs, which keeps the span and the statistics of the noise.
    """
    rows = gradient[(gradient != 0).any(dim=1)]
    most = FOLDED * gradient.shape[1]
    signs = torch.randint(2, (len(rows), 1), generator=torch.Generator().manual_seed(0)).to(rows.device) * 2 - 1
    total = torch.zeros(min(len(rows), most), gradient.shape[1], dtype=torch.float64, device=rows.device)
    for part, sign in zip(rows.split(most), signs.split(most), strict=True):
        scaled = part.double()
        if equalise:
            scaled = scaled / scaled.norm(dim=1, keepdim=True)
        total[: len(scaled)] += sign * scaled
    return total


def _noise(sizes: Tensor, rank: int, rows: int) -> float:
    """Return the standard deviation of an entry of the noise, from the part outside the span; 0 if there is none."""
    outside = (rows - rank) * (len(sizes) - rank)
    return float(sizes[rank:].norm()) / math.sqrt(outside) if outside > 0 else 0.0


def _rank(sizes: Tensor, most: int) -> int:
    """Return the number of singular values before the widest gap; all D if there is no gap."""
    count, largest = len(sizes), float(sizes[0])
    end = min(most, count - 1)
    ratios = sizes[:end] / sizes[1 : end + 1].clamp(min=1e-12 * largest)
    ratios[sizes[:end] < ROUNDED * largest] = 0
    last = ratios[int(INNER * most) :]
    last[last < WIDE] = 0
    widest = int(ratios.argmax())
    return widest + 1 if float(ratios[widest]) > LEAST_GAP else count
