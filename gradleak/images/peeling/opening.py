"""The last map of a network opened: where every sample's units were on, from one convolution's averaged gradient.

With δ (B·P, C) the gradient after the convolution, P its positions, the client sends G = Σ δᵀ patch, a product L·X of
rank R = B·P whose right factor holds patches. Patches overlap. So a map Z of G's row space to the patches of one sample
has to give neighbours the same values where they overlap, and zeros where they stick out of the image: linear equations
for Z. Their solutions are the samples and every mixture of them, B in number. With them G falls into one factor a
position, known but for an invertible B × B matrix. The gradient after the activation is known, so each entry of that
factor is this gradient or nothing: with B entries guessed, 2ᴮ guesses, the rest has to follow.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.devices import least_squares

# Mixtures whose equations fail by more than this share of the first that fail for sure are none.
GAP = 1e-3
# Rows of the gradient smaller than this share of the largest do not tell.
LEAST_ROW = 1e-6
# An entry is on or off if it is that near.
NEAR = 0.25
# Singular values below so many rounding units of the largest are rounding.
RANK = 8.0
LARGEST, MOST = 4608, 16
# Of larger forms only the least eigenvalues are looked for, by rounds of inverse iteration with vectors to spare, the
# form lifted by this share of its diagonal.
SMALL, ROUNDS, SPARE, LIFT = 256, 12, 8, 1e-13
CHECKED, GUESSES = 512, 4096


@dataclass(frozen=True)
class Opened:
    """The slopes (B, C, h, w) after a convolution, or why they could not be had; `off`: how far from two values."""

    slopes: Tensor | None
    off: float = float("inf")
    reason: str = ""


def refused(module: nn.Conv2d | nn.Linear, shape: tuple[int, ...], size: int) -> str:
    """Say why a layer with outputs of this shape cannot be opened for `size` samples, if the count says so."""
    if isinstance(module, nn.Linear):
        return "a Linear layer's gradient tells no samples apart"
    if module.groups > 1:
        return "its channels are convolved apart: none holds more than its own kernel's few equations"
    alone = shape[1] * shape[2] == 1
    if module.kernel_size == (1, 1) and not alone:
        return "its patches do not overlap: nothing tells positions and samples apart"
    if not alone and any(side < stride + 2 for side, stride in zip(module.kernel_size, module.stride, strict=True)):
        return "with its stride too little of its patches overlaps"
    positions = size * shape[1] * shape[2]
    if positions > module.out_channels:
        return f"{positions} positions of {size} samples in {module.out_channels} channels"
    if size > MOST or positions * shape[1] * shape[2] > LARGEST:
        return f"{positions} positions of {size} samples are more than are tried"
    return ""


def opened(
    module: nn.Conv2d,
    gradient: Tensor,
    arrived: Tensor,
    size: tuple[int, ...],
    levels: tuple[float, float],
    unit: float,
) -> Opened:
    """Return every unit's slope, one of two `levels`, from the gradient (O, I, k, k) of a convolution's weight.

    `arrived` (B, O, h, w): the gradient after the convolution if every slope were one; `size`: its inputs' (H, W);
    `unit`: the gradient's rounding.
    """
    count, outputs, *shape = arrived.shape
    positions = shape[0] * shape[1]
    rank = count * positions
    lengths = gradient.flatten(1).norm(dim=1)
    rows = (lengths > LEAST_ROW * lengths.max()).nonzero()[:, 0]
    if len(rows) < rank:
        return Opened(None, reason=f"{len(rows)} rows of its gradient for {rank} positions")
    left, values, right = torch.linalg.svd(gradient[rows].flatten(1) / lengths[rows, None], full_matrices=False)
    if (found := int((values > RANK * unit * values[0]).sum())) < rank:
        return Opened(None, reason=f"its gradient has rank {found}, for {rank} positions")
    failing, mixing = _mixtures(
        module, right[:rank].unflatten(1, gradient.shape[1:]), (shape[0], shape[1]), size, count
    )
    following = float(failing[count]) if len(failing) > count else 1.0
    if not float(failing[count - 1].abs()) < GAP * following:
        return Opened(None, reason="its overlapping patches do not tell the positions apart")
    mixing = mixing[:, :count].unflatten(0, (positions, rank)).transpose(1, 2).flatten(0, 1)
    factor = torch.linalg.solve(mixing, left[:, :rank] * values[:rank], left=False) * lengths[rows, None]
    known = factor.unflatten(1, (positions, count)).flatten(0, 1)
    slopes, off = _told(known, arrived[:, rows].flatten(2).flatten(1), levels)
    if off > NEAR:
        return Opened(None, off, "no on and off of its units explains its gradient")
    whole = arrived.new_full((count, outputs, positions), levels[0])
    whole[:, rows] = slopes.unflatten(1, (len(rows), positions))
    return Opened(whole.unflatten(2, shape), off)


def _mixtures(
    module: nn.Conv2d, rows: Tensor, shape: tuple[int, int], size: tuple[int, ...], count: int
) -> tuple[Tensor, Tensor]:
    """Return how much the `count` + 1 best combinations of the row space fail to overlap, and those (P·R, …)."""
    rank = len(rows)
    assert not isinstance(module.padding, str)
    places: dict[tuple[int, int] | None, list[tuple[int, int]]] = {}
    kernel = list(itertools.product(*(range(side) for side in module.kernel_size)))
    for p, (i, j) in enumerate(itertools.product(range(shape[0]), range(shape[1]))):
        for o, (u, v) in enumerate(kernel):
            y, x = i * module.stride[0] + u - module.padding[0], j * module.stride[1] + v - module.padding[1]
            inside = 0 <= y < size[0] and 0 <= x < size[1]
            places.setdefault((y, x) if inside else None, []).append((p, o))
    flat = rows.flatten(2)
    products = torch.einsum("rko,skt->orts", flat, flat)
    form = rows.new_zeros(shape[0] * shape[1], rank, shape[0] * shape[1], rank)
    for place, seen in places.items():
        for p, o in seen:
            form[p, :, p] += products[o, :, o]
        if place is not None:
            for (p, o), (q, u) in itertools.product(seen, seen):
                form[p, :, q] -= products[o, :, u] / len(seen)
    return _least(form.flatten(2).flatten(0, 1), count + 1)


def _least(form: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` least eigenvalues of a form that is never negative, ascending, and their vectors."""
    side, several = len(form), count + SPARE
    if side <= SMALL or several >= side:
        values, vectors = torch.linalg.eigh(form)
        return values[:count], vectors[:, :count]
    shift = LIFT * form.diagonal().mean()
    factor = torch.linalg.cholesky(form + shift * torch.eye(side).to(form))
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(side, several, generator=generator, dtype=form.dtype).to(form)
    for _ in range(ROUNDS):
        block = torch.linalg.qr(torch.cholesky_solve(block, factor)).Q
    found = torch.linalg.eigh(block.T @ (form @ block))
    return found.eigenvalues[:count], block @ found.eigenvectors[:, :count]


def _told(known: Tensor, arrived: Tensor, levels: tuple[float, float]) -> tuple[Tensor, float]:
    """Return the slopes (B, N) for which slope · arrived (B, N) is a combination of `known` (N, B), and how far off."""
    count, low, high = known.shape[1], *levels
    pivots, rest = [], known.clone()
    for _ in range(count):
        pivots.append(int(rest.norm(dim=1).argmax()))
        along = rest[pivots[-1]] / rest[pivots[-1]].norm()
        rest = rest - (rest @ along)[:, None] * along
    bits = (torch.arange(2**count, device=known.device)[:, None] >> torch.arange(count, device=known.device)) & 1
    guesses = low + (high - low) * bits[1:].to(known)
    slopes = []
    for own in arrived:
        loud = own.abs().argsort(descending=True)[:CHECKED]
        best, chosen = float("inf"), guesses.new_zeros(count)
        for some in (guesses * own[pivots]).split(GUESSES):
            solved = torch.linalg.solve(known[pivots], some.T)
            said = known[loud] @ solved / own[loud, None]
            missed = torch.minimum((said - low).abs(), (said - high).abs()).mean(dim=0)
            if float(missed.min()) < best:
                best, chosen = float(missed.min()), solved[:, int(missed.argmin())]
        slope = _nearest(known @ chosen / own, levels)
        for _ in range(2):
            chosen = least_squares(known, (slope * own)[:, None])[:, 0]
            slope = _nearest(known @ chosen / own, levels)
        size = (slope * own).norm()
        slopes.append((slope, (known @ chosen - slope * own).norm() / size if size > 0 else torch.inf))
    return torch.stack([slope for slope, _ in slopes]), float(max(off for _, off in slopes))


def _nearest(said: Tensor, levels: tuple[float, float]) -> Tensor:
    return torch.where(said > sum(levels) / 2, levels[1], levels[0]).to(said)
