"""Scan the loss as a function of the label's scalar λ (wang2024): its minima, and where the label is valid.

Row i of the last layer's gradient is gᵢ = (pᵢ − yᵢ) x (Eqn. 2), so all rows are multiples of one row g_r, and so is the
feature: x = λ g_r. The label ŷ(λ) follows by Eqn. 4. The true scalar is λ* = 1 / (p_r − y_r).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gradleak.arguments import check_values, checked_arguments, described
from gradleak.errors import InputError, unknown
from gradleak.labels.priors import prior_of
from gradleak.labels.soft.problem import ScalarPath, golden

Kind = Literal["variance", "square", "negative"]
KINDS: tuple[Kind, ...] = ("variance", "square", "negative")

# A class whose logit lies more than 40 below the largest has no influence, so softmax varies on a relative scale of
# 1/40 of λ at the finest. This grid step resolves that six times over.
GRID_STEP = 0.004
GRID_SPAN = 1e4
# A label that is valid at a single scalar appears valid over some hundred rounding units. Intervals that are narrower
# than this many units are dropped.
NARROWEST_UNITS = 1e4


@dataclass(frozen=True)
class LabelPath(ScalarPath):
    """The label of each of N samples as a function of an unknown scalar λ.

    The gradient's row i is gᵢ = (pᵢ − yᵢ) x, so the feature is x = λ g_r for the row r with the largest entries.

    Attributes:
        direction: The row g_r (N, I).
        logits: The logits per unit of λ, W g_r (N, C).
        ratios: gᵢ / g_r (N, C), which is λ (pᵢ − yᵢ).
        bias: The bias b (C,) or None.
        row: The index r (N,) of the row with the largest absolute sum of its entries.
    """

    direction: Tensor
    logits: Tensor
    ratios: Tensor
    bias: Tensor | None
    row: Tensor

    @property
    def least(self) -> Tensor:
        """The least |λ| for which a valid label can exist (N,).

        The positive entries of p − y = ratios / λ sum to at most 1, so |λ| is at least the sum of the positive ratios.
        """
        return self.ratios.clamp(min=0).sum(dim=1)

    def features(self, scalars: Tensor) -> Tensor:
        """Return x(λ) = λ g_r (N, K, I) for λ (N, K)."""
        return scalars.unsqueeze(-1) * self.direction.unsqueeze(1)


@checked_arguments(weight_gradients="C I | N C I", weight="C I", bias="C")
def label_path(
    weight_gradients: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    columns: Literal["all", "one"] = "all",
    dtype: torch.dtype | None = torch.float64,
) -> LabelPath:
    """Reduce last-layer gradients of single samples to their label paths (wang2024, Eqn. 4).

    Args:
        weight_gradients: Gradient of one sample (C, I) or of N samples (N, C, I).
        weight: The last layer's weight (C, I).
        bias: The last layer's bias (C,), if it has one.
        columns: How to compute gᵢ / g_r, which is the same in every column. "all" fits all columns by least squares.
            "one" divides in the column where |g_r| is largest, as the paper's code does.
        dtype: The type to compute in; None keeps the gradient's.

    Returns:
        The label of each sample as a function of its scalar.
    """
    gradients = weight_gradients.unsqueeze(0) if weight_gradients.ndim == 2 else weight_gradients
    gradients = gradients.to(dtype) if dtype else gradients
    weight = weight.to(gradients)
    row = gradients.sum(dim=2).abs().argmax(dim=1)
    direction = gradients[torch.arange(len(gradients), device=row.device), row]
    square = direction.square().sum(dim=1)
    if (square == 0).any():
        raise InputError(
            f"{int((square == 0).sum())} of {len(gradients)} gradients are zero: prediction and label agree there, "
            "and a zero gradient says nothing else"
        )
    if columns == "all":
        ratios = torch.einsum("nci,ni->nc", gradients, direction) / square[:, None]
    else:
        column = direction.abs().argmax(dim=1, keepdim=True)
        picked = gradients.gather(2, column.unsqueeze(1).expand(-1, gradients.shape[1], 1)).squeeze(2)
        ratios = picked / direction.gather(1, column)
    return LabelPath(direction, direction @ weight.T, ratios, None if bias is None else bias.to(gradients), row)


@checked_arguments("labels")
def label_loss(labels: Tensor, prior: str = "smoothing", kind: Kind = "variance") -> Tensor:
    """Return how far labels (…, C) are from the shape that the prior allows, (…).

    Args:
        labels: (…, C). Where they are NaN, as a path's labels are at the scalar 0, the loss is NaN.
        prior: "smoothing", "onehot" or "mixup".
        kind: "variance" of the entries of the other classes than the sample's own (wang2024, Eqn. 5); the mean "square"
            of these entries; or the "negative" mass Σ|ŷᵢ| − 1 of all entries (both appendix C).

    Returns:
        The loss (…), 0 for a label of the right shape.
    """
    if not torch.is_tensor(labels) or not labels.is_floating_point() or labels.ndim == 0:
        raise InputError(f"labels must be a tensor (…, C) of floating-point numbers; got {described(labels)}")
    check_values("labels", labels, finite=False)
    if kind not in KINDS:
        raise unknown("label loss", kind, KINDS)
    free, classes = prior_of(prior).free, labels.shape[-1]
    if kind == "negative":
        return labels.abs().sum(dim=-1) - 1
    if classes < free + 2:
        raise InputError(
            f"the prior '{prior}' leaves {free} entries free, so its loss needs at least {free + 2} classes "
            f"to compare the others; got {classes}"
        )
    outside = torch.zeros_like(labels, dtype=torch.bool).scatter(-1, labels.topk(free, dim=-1).indices, True)
    rest = labels.masked_fill(outside, 0)
    if kind == "variance":
        mean = rest.sum(dim=-1, keepdim=True) / (classes - free)
        rest = (labels - mean).masked_fill(outside, 0)
    return rest.square().sum(dim=-1) / (classes - free)


@dataclass(frozen=True)
class Minima:
    """The local minima of a sample's loss: scalars (M,) and losses (M,), ordered by |λ| for each sign."""

    scalars: Tensor
    losses: Tensor

    def side(self, sign: float) -> Minima:
        """Return the minima with this sign of λ, the smallest |λ| first."""
        keep = self.scalars * sign > 0
        order = self.scalars[keep].abs().argsort()
        return Minima(self.scalars[keep][order], self.losses[keep][order])

    @property
    def best(self) -> float:
        """The scalar with the least loss, or NaN if there is no minimum."""
        return float(self.scalars[self.losses.argmin()]) if len(self.losses) else math.nan


@checked_arguments()
def find_minima(
    path: LabelPath,
    prior: str = "smoothing",
    kind: Kind = "variance",
    *,
    start: float = 1.0,
    span: float = GRID_SPAN,
) -> list[Minima]:
    """Find all local minima of each sample's loss for start ≤ |λ| ≤ span and both signs.

    A logarithmic grid brackets the minima, and golden-section search narrows all brackets together. Derivatives are not
    used, because the loss has kinks where the set of free entries changes.

    Args:
        path: The labels of N samples as functions of λ.
        prior: "smoothing", "onehot" or "mixup".
        kind: The loss, see `label_loss`.
        start: The least |λ|.
        span: The largest |λ|.

    Returns:
        The minima of each sample.
    """

    _check_range(start, span)

    def loss(part: LabelPath, scalars: Tensor) -> Tensor:
        return label_loss(part.labels(scalars), prior, kind)

    grid = _grid(path, start, span)
    found: list[Minima] = []
    for part in path.parts(len(grid)):
        samples, left, right = [], [], []
        for scalars in (grid, -grid):
            values = loss(part, scalars.expand(len(part), -1))
            inner = values[:, 1:-1]
            # Rounding makes ripples at the flat far end; a minimum must be deeper.
            dips = inner < torch.minimum(values[:, :-2], values[:, 2:]) * (1 - 1e-9)
            sample, index = dips.nonzero(as_tuple=True)
            samples.append(sample)
            left.append(scalars[index])
            right.append(scalars[index + 2])
        sample = torch.cat(samples)
        there = part[sample]
        ends = torch.cat(left)[:, None], torch.cat(right)[:, None]
        scalar = golden(partial(loss, there), *ends)
        values = loss(there, scalar)[:, 0]
        order = [(sample == n).nonzero()[:, 0] for n in range(len(part))]
        found += [Minima(scalar[own, 0], values[own]) for own in order]
    return found


@checked_arguments()
def nonnegative_intervals(path: LabelPath, *, span: float = GRID_SPAN) -> list[list[tuple[float, float]]]:
    """Return, for each sample, every interval of λ in which no entry of ŷ(λ) is negative.

    By Theorem 1 the entries always sum to 1, so these are all scalars whose label is a probability vector. The ends are
    found by bisection down to rounding, and are ±inf where an interval does not end. Intervals no wider than rounding
    are dropped; for an exact one-hot label the only valid scalar is such a single point.
    """
    _check_range(1.0, span)
    result: list[list[tuple[float, float]]] = []
    for part in path.parts(_grid(path, 1.0, span).numel()):
        sides = (_intervals_on_side(part, sign, span) for sign in (1.0, -1.0))
        result += [positive + negative for positive, negative in zip(*sides, strict=True)]
    return result


def _intervals_on_side(path: LabelPath, sign: float, span: float) -> list[list[tuple[float, float]]]:
    """Return each sample's intervals for one sign of λ, as (end nearer zero, end further out)."""
    # A valid label needs softmax(λ logits)ᵢ ≥ ratioᵢ / λ wherever the right side is positive. For large |λ| only the
    # top class has any probability, so another class violates this, unless the top class alone has a positive right
    # side.
    top = (sign * path.logits).argmax(dim=1, keepdim=True)
    gaps = (sign * path.logits).gather(1, top) - sign * path.logits
    demanding = (sign * path.ratios > 0).scatter(1, top, False)
    gap = gaps.masked_fill(~demanding, 0).amax(dim=1)
    # No label is valid below the least |λ|, so each sample's grid starts just under it. It ends at a probability of
    # e⁻⁶⁰.
    begin = path.least * (1 - 1e-6)
    end = torch.maximum(span * begin, 60 / gap.clamp(min=torch.finfo(gap.dtype).tiny)).where(gap > 0, span * begin)
    unit = torch.linspace(0, 1, _grid(path, 1.0, span).numel(), dtype=begin.dtype, device=begin.device)
    scalars = sign * begin[:, None] * (end / begin)[:, None] ** unit

    scalars, valid = _with_narrow_intervals(path, scalars)
    change = valid[:, 1:] != valid[:, :-1]
    sample, index = change.nonzero(as_tuple=True)
    low, high = scalars[sample, index], scalars[sample, index + 1]
    opens = valid[sample, index + 1]
    part = path[sample]
    for _ in range(60):
        middle = (low + high) / 2
        up = (_slack(part, middle[:, None])[:, 0] >= 0) == opens
        high, low = torch.where(up, middle, high), torch.where(up, low, middle)
    # Take the end at which the label is valid: the first or the last point of an interval.
    edges = torch.where(opens, high, low)
    narrowest = NARROWEST_UNITS * torch.finfo(scalars.dtype).eps
    intervals: list[list[tuple[float, float]]] = [[] for _ in range(len(path))]
    starts: dict[int, float] = {n: float(scalars[n, 0]) for n in range(len(path)) if bool(valid[n, 0])}
    for n, edge, opening in zip(sample.tolist(), edges.tolist(), opens.tolist(), strict=True):
        if opening:
            starts[n] = edge
        elif edge / (start := starts.pop(n)) > 1 + narrowest:
            intervals[n].append((start, edge))
    for n, start in starts.items():
        intervals[n].append((start, sign * math.inf))
    return intervals


def _with_narrow_intervals(path: LabelPath, scalars: Tensor) -> tuple[Tensor, Tensor]:
    """Return the grid (N, K) and where its labels are valid, with points moved that miss a narrow interval or gap.

    An interval or gap that is narrower than a step still makes the least entry rise or fall towards it. So each grid
    point that is closer to a change of validity than both its neighbours is moved to the extremum between them, if
    validity differs there.
    """
    values = _slack(path, scalars)
    valid = values >= 0
    side = torch.where(valid, 1.0, -1.0)[:, 1:-1]
    left, own, right = side * values[:, :-2], side * values[:, 1:-1], side * values[:, 2:]
    sample, index = ((own <= left) & (own < right)).nonzero(as_tuple=True)
    part, sign = path[sample], side[sample, index, None]

    def distance(at: Tensor) -> Tensor:
        return sign * _slack(part, at)

    extremum = golden(distance, scalars[sample, index, None], scalars[sample, index + 2, None])
    turns = (_slack(part, extremum)[:, 0] >= 0) != valid[sample, index + 1]
    place = sample[turns], index[turns] + 1
    scalars, valid = scalars.clone(), valid.clone()
    scalars[place], valid[place] = extremum[turns, 0], ~valid[place]
    return scalars, valid


def _slack(path: LabelPath, scalars: Tensor) -> Tensor:
    """Return the least entry (N, K) of each label, which is negative where the label is not valid."""
    return path.labels(scalars).amin(dim=-1)


def _check_range(start: float, span: float) -> None:
    if not 0 < start < span:
        raise InputError(f"|λ| is searched from start to span, with 0 < start < span; got {start:g} and {span:g}")


def _grid(path: LabelPath, start: float, span: float) -> Tensor:
    # Start five steps early, so that a minimum at the start itself has a neighbour on either side.
    start = start * math.exp(-5 * GRID_STEP)
    points = math.ceil(math.log(span / start) / GRID_STEP) + 1
    return torch.logspace(
        math.log10(start), math.log10(span), points, dtype=path.ratios.dtype, device=path.ratios.device
    )
