"""Find each sample's active units in the last map of a network from one convolution's averaged gradient.

Let δ (B·P, C) be the gradient after the convolution, which has P output positions. The client sends G = Σ δᵀ patch, a
product L·X of rank R = B·P whose right factor has the patches as rows. A map Z from the row space of G to the patches
of one sample must satisfy linear equations: neighbouring patches agree where they overlap, and are zero in the padding.
The solutions form a space of dimension B, the samples and their mixtures. These solutions split G into one factor per
position, known up to an invertible B × B matrix. The gradient after the activation is known, so for ReLU each entry of
the factor is either this gradient or zero. Trying all 2ᴮ choices for B entries determines all other entries.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from gradleak.devices import least_squares
from gradleak.wording import counted

# The eigenvalues of the B solutions must be below this share of the next eigenvalue.
GAP = 1e-3
# Rows of the gradient smaller than this share of the largest are ignored.
LEAST_ROW = 1e-6
# The largest relative residual of an accepted choice of active units.
NEAR = 0.25
# Singular values below this many rounding units of the largest count as zero.
RANK = 8.0
# Limits of the side of the quadratic form, and of the number of samples.
LARGEST, MOST = 4608, 16
# Forms with a side above SMALL use ROUNDS rounds of inverse iteration with SPARE additional vectors. LIFT is the shift
# of the form relative to its mean diagonal.
SMALL, ROUNDS, SPARE, LIFT = 256, 12, 8, 1e-13
CHECKED, GUESSES = 512, 4096


def refused(module: nn.Conv2d | nn.Linear, shape: tuple[int, ...], size: int) -> str:
    """Return why the slopes after a layer cannot be found, "" if they may be.

    Args:
        module: The layer.
        shape: The shape (C, h, w) of its outputs.
        size: The number of samples.
    """
    if isinstance(module, nn.Linear):
        return "the gradient of a Linear layer does not separate samples"
    if module.groups > 1:
        return "it convolves groups of channels separately, and a channel has only the few equations of its own kernel"
    single = shape[1] * shape[2] == 1
    if module.kernel_size == (1, 1) and not single:
        return "its patches do not overlap, so its equations cannot separate the positions"
    if not single and any(side < stride + 2 for side, stride in zip(module.kernel_size, module.stride, strict=True)):
        return "its patches overlap too little, because of its stride"
    positions = size * shape[1] * shape[2]
    if positions > module.out_channels:
        return f"{positions} output positions (B = {size}), but only {counted(module.out_channels, 'channel')}"
    if size > MOST or positions * shape[1] * shape[2] > LARGEST:
        return f"{positions} output positions (B = {size}) are too many to try"
    return ""


def opened(
    module: nn.Conv2d,
    gradient: Tensor,
    arrived: Tensor,
    size: tuple[int, ...],
    levels: tuple[float, float],
    unit: float,
) -> tuple[Tensor | None, str]:
    """Return every unit's slope (B, O, h, w) from the gradient of a convolution's weight, or why there are none.

    Args:
        module: The convolution.
        gradient: The gradient of its weight (O, I, k, k).
        arrived: The gradient after the convolution if every slope were one, (B, O, h, w).
        size: The height and width of the convolution's inputs.
        levels: The two possible slopes.
        unit: The relative rounding error of the gradient.
    """
    count, outputs, *shape = arrived.shape
    positions = shape[0] * shape[1]
    rank = count * positions
    lengths = gradient.flatten(1).norm(dim=1)
    rows = (lengths > LEAST_ROW * lengths.max()).nonzero()[:, 0]
    if len(rows) < rank:
        return None, f"its gradient has only {len(rows)} rows that are not zero, for {rank} output positions"
    left, values, right = torch.linalg.svd(gradient[rows].flatten(1) / lengths[rows, None], full_matrices=False)
    if (matrix_rank := int((values > RANK * unit * values[0]).sum())) < rank:
        return None, f"its gradient has only rank {matrix_rank} for {rank} output positions"
    eigenvalues, mixing = _mixtures(
        module, right[:rank].unflatten(1, gradient.shape[1:]), (shape[0], shape[1]), size, count
    )
    next_value = float(eigenvalues[count]) if len(eigenvalues) > count else 1.0
    if not float(eigenvalues[count - 1].abs()) < GAP * next_value:
        return None, "the overlaps of its patches do not suffice to separate the positions"
    mixing = mixing[:, :count].unflatten(0, (positions, rank)).transpose(1, 2).flatten(0, 1)
    factor = torch.linalg.solve(mixing, left[:, :rank] * values[:rank], left=False) * lengths[rows, None]
    known = factor.unflatten(1, (positions, count)).flatten(0, 1)
    slopes, off = _told(known, arrived[:, rows].flatten(2).flatten(1), levels)
    if off > NEAR:
        return None, "no choice of active units explains its gradient"
    all_slopes = arrived.new_full((count, outputs, positions), levels[0])
    all_slopes[:, rows] = slopes.unflatten(1, (len(rows), positions))
    return all_slopes.unflatten(2, shape), ""


def _mixtures(
    module: nn.Conv2d, rows: Tensor, shape: tuple[int, int], size: tuple[int, ...], count: int
) -> tuple[Tensor, Tensor]:
    """Return the `count` + 1 maps Z (P·R, …) that best satisfy the equations, after their sums of squared residuals."""
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
    for place, entries in places.items():
        for p, o in entries:
            form[p, :, p] += products[o, :, o]
        if place is not None:
            for (p, o), (q, u) in itertools.product(entries, entries):
                form[p, :, q] -= products[o, :, u] / len(entries)
    return _least(form.flatten(2).flatten(0, 1), count + 1)


def _least(form: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` least eigenvalues of a positive semidefinite matrix in ascending order, and their vectors."""
    side, columns = len(form), count + SPARE
    iterated = side > SMALL and columns < side
    if iterated:
        shift = LIFT * form.diagonal().mean()
        factor, failed = torch.linalg.cholesky_ex(form + shift * torch.eye(side).to(form))
        iterated = not failed
    if not iterated:
        values, vectors = torch.linalg.eigh(form)
        return values[:count], vectors[:, :count]
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(side, columns, generator=generator, dtype=form.dtype).to(form)
    for _ in range(ROUNDS):
        block = torch.linalg.qr(torch.cholesky_solve(block, factor)).Q
    small = torch.linalg.eigh(block.T @ (form @ block))
    return small.eigenvalues[:count], block @ small.eigenvectors[:, :count]


def _told(known: Tensor, arrived: Tensor, levels: tuple[float, float]) -> tuple[Tensor, float]:
    """Return slopes (B, N) for which slope · arrived (B, N) is a combination of `known` (N, B), and the residual."""
    count, low, high = known.shape[1], *levels
    pivots, remainder = [], known.clone()
    for _ in range(count):
        pivots.append(int(remainder.norm(dim=1).argmax()))
        along = remainder[pivots[-1]] / remainder[pivots[-1]].norm()
        remainder = remainder - (remainder @ along)[:, None] * along
    bits = (torch.arange(2**count, device=known.device)[:, None] >> torch.arange(count, device=known.device)) & 1
    guesses = low + (high - low) * bits[1:].to(known)
    slopes = []
    for gradient in arrived:
        largest = gradient.abs().argsort(descending=True)[:CHECKED]
        best, weights = float("inf"), guesses.new_zeros(count)
        for group in (guesses * gradient[pivots]).split(GUESSES):
            solutions = torch.linalg.solve(known[pivots], group.T)
            ratios = known[largest] @ solutions / gradient[largest, None]
            misses = torch.minimum((ratios - low).abs(), (ratios - high).abs()).mean(dim=0)
            if float(misses.min()) < best:
                best, weights = float(misses.min()), solutions[:, int(misses.argmin())]
        slope = _nearest(known @ weights / gradient, levels)
        for _ in range(2):
            weights = least_squares(known, (slope * gradient)[:, None])[:, 0]
            slope = _nearest(known @ weights / gradient, levels)
        size = (slope * gradient).norm()
        slopes.append((slope, (known @ weights - slope * gradient).norm() / size if size > 0 else torch.inf))
    return torch.stack([slope for slope, _ in slopes]), float(max(residual for _, residual in slopes))


def _nearest(said: Tensor, levels: tuple[float, float]) -> Tensor:
    return torch.where(said > sum(levels) / 2, levels[1], levels[0]).to(said)
