"""Whether a vector lies in the row span of a weight gradient that has been rounded, or worse."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# A gap is a step between neighbours that noise alone does not make, and begins above what is rounded. The last tenth of
# the singular values of a matrix of noise falls off by itself: a step there must be a wide one.
LEAST_GAP, ROUNDED, INNER, WIDE = 1.5, 3e-7, 0.9, 100
# A gradient of more rows than so many times its width is folded to that many.
FOLDED = 4
# What one more check lets pass, as a share of a random vector's miss.
SLACK = 0.03
# The largest singular value of a matrix of noise is its deviation times the roots of its sides; uneven noise has more.
EDGE = 2.0


@dataclass(frozen=True)
class Span:
    """The row span of a gradient (R, D) in units of its columns' sizes.

    `basis` (D, K) and its `sizes` (K,), the singular values; `units` (D,) what entries are divided by; `noise`: the
    standard deviation of one entry in those units, read off what lies outside the span. `power`: the share of a
    random vector that lies outside; at 0 every vector lies inside, and nothing can be told. `slack`: a miss that is let
    pass whatever the noise.
    """

    basis: Tensor
    sizes: Tensor
    units: Tensor
    noise: float
    rounding: float
    slack: float = 0.0

    @property
    def rank(self) -> int:
        """How many different vectors the gradient is a sum over."""
        return self.basis.shape[1]

    @property
    def power(self) -> float:
        """The share of a random vector that lies outside."""
        return math.sqrt(1 - self.rank / len(self.basis))

    @property
    def worst(self) -> float:
        """The largest miss that the noise may explain, of any vector of length one."""
        least = float(self.sizes[-1]) if self.rank else 1.0
        return self._allowed(torch.tensor([1 / least], dtype=self.basis.dtype)).item() if self.power else 1.0

    def inside(self, vectors: Tensor) -> Tensor:
        """Return which of the vectors (N, D) lie inside: their miss is what the noise explains.

        Vectors that are one shorter are given the 1 that a bias adds to them.
        """
        if vectors.shape[1] + 1 == len(self.basis):
            vectors = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1)
        scaled = vectors / self.units
        scaled = scaled / scaled.norm(dim=1, keepdim=True)
        along = scaled @ self.basis
        return self.small((scaled - along @ self.basis.T).norm(dim=1), along)

    def small(self, misses: Tensor, along: Tensor) -> Tensor:
        """Return which misses (N,) of vectors of length one the noise explains; `along` (N, K): where they lie inside.

        A vector is a sum of the gradient's rows, the smaller the singular values it needs the more of them, and their
        noise comes with it.
        """
        if self.power == 0:
            return torch.ones_like(misses, dtype=torch.bool)
        return misses < self._allowed((along / self.sizes).norm(dim=1))

    def _allowed(self, rows: Tensor) -> Tensor:
        """Return the misses (N,) that the noise of a sum of rows of this length explains."""
        left = len(self.basis) - self.rank
        expected = rows * self.noise * math.sqrt(left) + self.rounding
        # Not all noise is even, rounding least of all: where there is room, an order of magnitude is left to it.
        return (expected * (self.power / expected).pow(0.25).clamp(min=1.3, max=20)).clamp(min=self.slack)


def everything(like: Tensor) -> Span:
    """Return the span of all vectors (D,) of the width of a gradient (R, D): it tells nothing."""
    width = like.shape[1]
    unit = torch.eye(width, dtype=torch.float64, device=like.device)
    return Span(unit, unit.diagonal(), unit.diagonal(), noise=0.0, rounding=0.0)


def span_of(gradient: Tensor, *, equalise: bool = True, least: int = 0) -> Span:
    """Return the row span of a gradient (R, D).

    With `least`, it is one more check of what another span has let pass: it is everything where fewer dimensions are
    found, and a miss may be larger, for what it wrongly sends away is lost.

    `equalise` divides rows by their size first: rounding is in proportion to a row, and a row that is small says as
    much as another. Noise that was added is the same for all rows; they are left as they are then.
    """
    rounding = 4 * torch.finfo(gradient.dtype).eps
    rows, width = _folded(gradient, equalise), gradient.shape[1]
    if len(rows) == 0:
        nothing = rows.new_zeros(width, 0), rows.new_zeros(0), rows.new_ones(width)
        return Span(*nothing, noise=0.0, rounding=rounding)
    units = rows.square().mean(dim=0).sqrt()
    units = units.where(units > 0, units.max())
    if not equalise:
        units = torch.full_like(units, float(units.square().mean().sqrt()))
    rows = rows / units
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    sizes = values.flip(0).clamp(min=0).sqrt()
    rank, most = _rank(sizes, min(len(rows), width)), min(len(rows), width)
    noise = _noise(sizes, rank, len(rows))
    # Behind the widest gap there may be smaller ones: what stands out from the noise is no noise.
    while rank < most and float(sizes[rank]) > EDGE * noise * (math.sqrt(len(rows)) + math.sqrt(width)):
        rank += 1
        noise = _noise(sizes, rank, len(rows))
    if rank < least or rank >= most:
        rank, noise = width, 0.0
    slack = SLACK * math.sqrt(1 - rank / width) if least else 0.0
    return Span(vectors.flip(1)[:, :rank], sizes[:rank], units, noise, rounding, slack)


def _folded(gradient: Tensor, equalise: bool) -> Tensor:
    """Return the rows (R, D) of a gradient that are not zero, divided by their size if so asked; float64.

    Where there are very many, several are added up, their signs drawn: that keeps their span, and noise stays noise.
    """
    rows = gradient[(gradient != 0).any(dim=1)]
    most = FOLDED * gradient.shape[1]
    signs = torch.randint(2, (len(rows), 1), generator=torch.Generator().manual_seed(0)).to(rows.device) * 2 - 1
    total = torch.zeros(min(len(rows), most), gradient.shape[1], dtype=torch.float64, device=rows.device)
    for part, sign in zip(rows.split(most), signs.split(most), strict=True):
        own = part.double()
        if equalise:
            own = own / own.norm(dim=1, keepdim=True)
        total[: len(own)] += sign * own
    return total


def _noise(sizes: Tensor, rank: int, rows: int) -> float:
    """Return the standard deviation of an entry of what lies outside the span; 0 where nothing does."""
    outside = (rows - rank) * (len(sizes) - rank)
    return float(sizes[rank:].norm()) / math.sqrt(outside) if outside > 0 else 0.0


def _rank(sizes: Tensor, most: int) -> int:
    """Return behind how many singular values the widest gap is; all (D) where there is none."""
    whole, largest = len(sizes), float(sizes[0])
    end = min(most, whole - 1)
    steps = sizes[:end] / sizes[1 : end + 1].clamp(min=1e-12 * largest)
    steps[sizes[:end] < ROUNDED * largest] = 0
    last = steps[int(INNER * most) :]
    last[last < WIDE] = 0
    widest = int(steps.argmax())
    return widest + 1 if float(steps[widest]) > LEAST_GAP else whole
