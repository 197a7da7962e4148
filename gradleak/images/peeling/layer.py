"""Solve for the inputs of a convolution from its averaged gradient: one linear system for all channels."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from scipy.special import ndtri, stdtrit
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import wording
from gradleak.images.peeling.joints import Seen

# An output channel has a wrong δ if its mean squared residual exceeds this multiple of the median channel's.
OUTLIER = 30.0
# It also has a wrong δ if it explains more than this share of the sum of squared residuals.
SHARE = 0.25
LEAST_ROW = 1e-9
# Outliers are detected on this many random mixtures of the input channels, which is faster than on all channels.
MIXED = 32
# The matrix is singular if the least diagonal entry of its triangular factor is below this share of the largest.
SINGULAR = 1e-9
# An unknown hangs on rows alone if these have all but this share of it.
ALONE = 1e-12
TINY = 1e-100
# The probability of a larger error than estimated that the number of residuals is accounted for.
RARE = 5e-4
# The number of entries of the channels' systems that are solved together.
AT_ONCE = 16_000_000


@dataclass(frozen=True)
class Equations:
    """A layer's δ (B, O, h, w) and its weight's gradient (O, I, k, k), all in float64."""

    module: nn.Conv2d | nn.Linear
    delta: Tensor
    gradient: Tensor

    def missed(self, inputs: Tensor) -> Tensor:
        """Return the squared relative error (1,) of the gradient that inputs (1, I, H, W) of a single sample give."""
        module = self.module
        assert isinstance(module, nn.Conv2d)
        assert not isinstance(module.padding, str)
        patches = F.unfold(inputs, module.kernel_size, padding=module.padding, stride=module.stride)
        # Scale by the gradient's size, because δ may be very small where p is almost y.
        size = self.gradient.norm().clamp(min=TINY)
        computed = (self.delta[0].flatten(1) / size).to(inputs) @ patches[0].T
        missed: Tensor = (computed - (self.gradient.flatten(1) / size).to(inputs)).square().sum()
        return missed[None]

    def matrix(self, shape: tuple[int, ...]) -> Tensor:
        """Return the equations as a matrix (O, k·k, B·H·W) for inputs of shape (I, H, W)."""
        if isinstance(self.module, nn.Linear):
            return self.delta.flatten(1).T[:, None]
        count, outputs, rows, columns = self.delta.shape
        stride, padding = self.module.stride, self.module.padding
        assert not isinstance(padding, str)
        height, width = shape[1], shape[2]
        kernel = self.module.kernel_size
        padded_height, padded_width = max(height + 2 * padding[0], 1), max(width + 2 * padding[1], 1)
        shifted = self.delta.new_zeros(kernel[0] * kernel[1], outputs, count, padded_height, padded_width)
        for offset, plane in enumerate(shifted):
            i, j = divmod(offset, kernel[1])
            plane[:, :, i : i + stride[0] * rows : stride[0], j : j + stride[1] * columns : stride[1]] = (
                self.delta.transpose(0, 1)
            )
        inside = shifted[..., padding[0] : padding[0] + height, padding[1] : padding[1] + width]
        return inside.permute(1, 0, 2, 3, 4).reshape(outputs, len(shifted), -1)


def counted(modules: list[nn.Conv2d | nn.Linear], shape: tuple[int, ...], count: int) -> tuple[int, int]:
    """Return the numbers of equations and unknowns per input channel for layers with the same inputs.

    With a stride, positions with different remainders modulo the stride share no equations. The numbers are those of
    the least determined remainder.

    Args:
        modules: The layers.
        shape: The shape (I, H, W) of their inputs.
        count: The number of samples.
    """
    if any(isinstance(module, nn.Linear) for module in modules):
        return sum(module.weight.shape[0] for module in modules), count
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    period = [math.lcm(*(module.stride[axis] for module in convolutions)) for axis in (0, 1)]
    numbers = []
    for remainder in itertools.product(*(range(min(period[axis], shape[1 + axis])) for axis in (0, 1))):
        places = [range(remainder[axis], shape[1 + axis], period[axis]) for axis in (0, 1)]
        equations = 0
        for module in convolutions:
            offsets = math.prod(_reaching(module, axis, places[axis], shape[1 + axis]) for axis in (0, 1))
            equations += module.out_channels // module.groups * offsets
        numbers.append((equations, count * len(places[0]) * len(places[1])))
    return min(numbers, key=lambda pair: pair[0] - pair[1])


def _reaching(module: nn.Conv2d, axis: int, places: range, side: int) -> int:
    """Return how many of a kernel's offsets reach any of these places along an axis of length `side`."""
    assert not isinstance(module.padding, str)
    padding, stride, kernel = module.padding[axis], module.stride[axis], module.kernel_size[axis]
    starts = range(0, side + 2 * padding - kernel + 1, stride)
    return sum(any(place + padding - offset in starts for place in places) for offset in range(kernel))


@dataclass(frozen=True)
class Solution:
    """The solution of a layer's equations.

    Attributes:
        value: The layer's inputs (B, I, H, W), None if they could not be determined.
        deviation: The standard deviation of every entry.
        misfit: The relative residual of the equations that were used.
        dropped: For each set of equations, the output channels whose equations were dropped as outliers.
        reason: Why there are no inputs.
    """

    value: Tensor | None = None
    deviation: Tensor | None = None
    misfit: float = math.inf
    dropped: tuple[tuple[int, ...], ...] = ()
    reason: str = ""


def short(equations: int, unknowns: int) -> str:
    """Return the reason for a layer with too few equations."""
    return f"{wording.counted(equations, 'equation')} for {wording.counted(unknowns, 'unknown')} in each channel"


def solved(equations: list[Equations], shape: tuple[int, ...], unit: float) -> Solution:
    """Return the least-squares inputs, of shape (I, H, W) each; `unit` is the relative rounding error of gradients."""
    matrix, side, groups = _stacked(equations, shape)
    rows, unknowns = matrix.shape
    if rows < unknowns:
        return Solution(reason=short(rows, unknowns))
    basis, triangle = torch.linalg.qr(matrix)
    least, largest = torch.stack(triangle.diagonal().abs().aminmax()).tolist()
    if least <= SINGULAR * largest:
        return Solution(reason="its δ do not separate all positions")
    outliers, left_out, mended = _outliers(basis, side, [size for *_, size in groups])
    rows_left_out = basis[left_out]
    if len(left_out) and float(torch.linalg.matrix_norm(rows_left_out, 2)) ** 2 > 1 - ALONE:
        return Solution(reason="without the channels whose δ is wrong, its δ do not separate all positions")
    projected = basis.T @ mended
    value = torch.linalg.solve_triangular(triangle, projected, upper=True)
    residual = mended - basis @ projected
    freedom = rows - unknowns - sum(groups[n][2] for n in outliers)
    # The noise is at least the rounding error of a typical entry.
    noise = torch.maximum(_unsure(freedom) * residual.square().sum(dim=0), unit**2 * side.square().mean(dim=0))
    inverse = torch.linalg.solve_triangular(triangle, torch.eye(unknowns).to(triangle), upper=True)
    # The covariance of the equations that were used.
    effect = inverse @ rows_left_out.T
    variance = inverse.square().sum(dim=1) + ((effect @ _inverse(rows_left_out)) * effect).sum(dim=1)
    deviation = (variance[:, None] * noise).sqrt().clamp(min=TINY)
    size = (len(equations[0].delta), *shape[1:])
    dropped = tuple(tuple(groups[n][1] for n in outliers if groups[n][0] == number) for number in range(len(equations)))
    misfit = float(residual.norm() / mended.norm())
    return Solution(_folded(value, size), _folded(deviation, size), misfit, dropped)


def _unsure(freedom: int) -> float:
    """Return the factor from a sum of squared residuals to the variance of the noise, larger for few residuals.

    A multiple of the result's square root bounds an error as Student's distribution does for this many residuals.
    """
    few = max(freedom, 1)
    return float((stdtrit(few, 1 - RARE) / ndtri(1 - RARE)) ** 2) / few


def completed(equations: list[Equations], shape: tuple[int, ...], seen: Seen, unit: float) -> Solution:
    """Return the least-squares inputs, of shape (I, H, W) each, given the entries that are known from joints."""
    matrix, side, _ = _stacked(equations, shape)
    rows, unknowns = matrix.shape
    # The mask (I, B·H·W) differs between channels, so every channel has different unknowns.
    mask = seen.there.movedim(1, 0).flatten(1)
    known_values = (seen.value * seen.there).movedim(1, 0).flatten(1)
    largest = int((~mask).sum(dim=1).max())
    if rows <= largest:
        return Solution(reason=short(rows, largest))
    size = float(matrix.norm()) / unknowns**0.5
    value, deviation, squares = known_values.clone(), torch.empty_like(known_values), side.new_zeros(())
    for part in torch.arange(len(mask)).split(max(1, AT_ONCE // ((rows + largest) * largest))):
        # All channels get as many places as the channel with the most unknowns: first unknown, then known places.
        places = mask[part].to(matrix).argsort(dim=1, stable=True)[:, :largest]
        known = mask[part].gather(1, places)
        target = (side[:, part] - matrix @ known_values[part].T).T
        # Each known place gets a separate equation with value 0, so that all channels' systems have the same shape.
        columns = matrix[:, places].transpose(0, 1) * ~known[:, None]
        basis, triangle = torch.linalg.qr(torch.cat([columns, size * torch.diag_embed(known.to(matrix))], dim=1))
        diagonal = triangle.diagonal(dim1=1, dim2=2).abs()
        if float((diagonal.amin(dim=1) / diagonal.amax(dim=1)).min()) <= SINGULAR:
            return Solution(reason="its δ do not separate all positions")
        projected = basis[:, :rows].mT @ target[..., None]
        solution = torch.linalg.solve_triangular(triangle, projected, upper=True)[..., 0]
        residual = target - (basis[:, :rows] @ projected)[..., 0]
        freedom = (rows - (~known).sum(dim=1)).tolist()
        unsure = residual.new_tensor([_unsure(one) for one in freedom])
        noise = torch.maximum(unsure * residual.square().sum(dim=1), unit**2 * side[:, part].square().mean(dim=0))
        inverse = torch.linalg.solve_triangular(triangle, torch.eye(largest).to(triangle), upper=True)
        spread = (inverse.square().sum(dim=2) * noise[:, None]).sqrt()
        value[part] = known_values[part].scatter(
            1, places, torch.where(known, known_values[part].gather(1, places), solution)
        )
        deviation[part] = (noise.sqrt() / size)[:, None].expand_as(known_values[part]).scatter(1, places, spread)
        squares = squares + residual.square().sum()
    input_shape, deviation = (len(seen.value), *shape[1:]), deviation.clamp(min=TINY)
    misfit, empty = float(squares.sqrt() / side.norm()), ((),) * len(equations)
    return Solution(_folded(value.T, input_shape), _folded(deviation.T, input_shape), misfit, empty)


def _stacked(equations: list[Equations], shape: tuple[int, ...]) -> tuple[Tensor, Tensor, list[tuple[int, int, int]]]:
    """Return the weighted equations as a matrix (E, B·H·W) and right sides (E, I), and a list of the rows' groups.

    Each group of rows is (the index in `equations`, the output channel, the number of rows).
    """
    groups, rows, sides = [], [], []
    for number, layer in enumerate(equations):
        lengths = layer.gradient.flatten(1).norm(dim=1)
        used = (lengths > LEAST_ROW * lengths.max()).nonzero()[:, 0]
        # Rounding errors are relative to a channel's gradient, but the errors of δ have the same size in all channels.
        squares = lengths[used].square()
        weights = (squares + squares.mean()).rsqrt()
        rows.append((layer.matrix(shape)[used] * weights[:, None, None]).flatten(0, 1))
        flat = layer.gradient.flatten(2)[used] * weights[:, None, None]
        sides.append(flat.transpose(1, 2).flatten(0, 1))
        groups += [(number, channel, flat.shape[2]) for channel in used.tolist()]
    return torch.cat(rows), torch.cat(sides), groups


def _folded(columns: Tensor, size: tuple[int, ...]) -> Tensor:
    folded: Tensor = columns.unflatten(0, size).movedim(-1, 1)
    return folded


def _outliers(basis: Tensor, side: Tensor, lengths: list[int]) -> tuple[list[int], Tensor, Tensor]:
    """Return the groups of rows that are outliers, their rows, and the right side with these replaced by predictions.

    The predictions are those of the least-squares solution without the outliers. `lengths` has the numbers of rows of
    consecutive groups.
    """
    outliers: list[int] = []
    starts = [0, *itertools.accumulate(lengths)]
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(side.shape[1], min(MIXED, side.shape[1]), generator=generator, dtype=side.dtype)
    mixtures = side @ mixing.to(side.device)
    original = residual = mixtures - basis @ (basis.T @ mixtures)
    # Consecutive groups of the same length, such as those of a layer, are solved as one batch.
    runs = [(length, len([*group])) for length, group in itertools.groupby(lengths)]
    inverses = [
        _inverse(rows.unflatten(0, (-1, length)))
        for (length, _), rows in zip(runs, basis.split([length * count for length, count in runs]), strict=True)
    ]
    sizes = torch.tensor(lengths).to(side)
    freedom, dropped = basis.shape[0] - basis.shape[1], torch.zeros(0, dtype=torch.long)
    while len(dropped) < freedom / 2:
        # The decrease of the sum of squared residuals if a group is left out.
        parts = residual.split([length * count for length, count in runs])
        blocks = [rows.unflatten(0, (-1, length)) for (length, _), rows in zip(runs, parts, strict=True)]
        decreases = torch.cat(
            [(rows * (inverse @ rows)).sum(dim=(1, 2)) for rows, inverse in zip(blocks, inverses, strict=True)]
        )
        median, total = (decreases / sizes).median(), residual.square().sum()
        decreases[outliers] = 0
        largest, worst_group = decreases.max(dim=0)
        # A single read for all values, because every read makes the host wait for a GPU.
        place, *numbers = torch.stack([worst_group.to(side), largest, median, total]).tolist()
        share = SHARE + lengths[int(place)] / (freedom - len(dropped))
        if numbers[0] <= min(OUTLIER * numbers[1] * lengths[int(place)], share * numbers[2]):
            break
        outliers.append(int(place))
        dropped = torch.cat([torch.arange(starts[n], starts[n + 1]) for n in outliers])
        rows = basis[dropped]
        correction = _inverse(rows) @ original[dropped]
        residual = original + basis @ (rows.T @ correction)
        residual[dropped] -= correction
    if not outliers:
        return outliers, dropped, side
    mended = side.clone()
    mended[dropped] -= _inverse(basis[dropped]) @ (side[dropped] - basis[dropped] @ (basis.T @ side))
    return outliers, dropped, mended


def _inverse(own: Tensor) -> Tensor:
    """Return (I − Q Qᵀ)⁻¹ (…, r, r) for rows Q (…, r, U) of an orthonormal basis.

    The matrix I − Q Qᵀ maps the rows' errors to their residuals.
    """
    inverse: Tensor = torch.linalg.pinv(torch.eye(own.shape[-2]).to(own) - own @ own.mT, hermitian=True)
    return inverse
