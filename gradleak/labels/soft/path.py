"""One unknown scalar: the label as a function of it, the loss over it, and where that loss has its minima.

Without a bias, row i of the last layer's gradient is gᵢ = (pᵢ − yᵢ) x (wang2024, Eqn. 2). All rows are multiples of one
vector, so any non-zero row r gives the feature up to a scalar, x = λ g_r, and with it the label
ŷᵢ(λ) = softmax(λ W g_r)ᵢ − (gᵢ / g_r) / λ (Eqn. 4). The true scalar is λ* = 1 / (p_r − y_r).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradleak.errors import InputError, unknown
from gradleak.labels.priors import named

Kind = Literal["variance", "square", "negative"]
KINDS: tuple[Kind, ...] = ("variance", "square", "negative")

# A class whose logit lies further below the largest has no influence left, so softmax changes on a relative scale
# of 1/40 of λ at the finest: this grid step resolves that six times over.
GRID_STEP = 0.004
GRID_SPAN = 1e4
# A chunk and its temporaries stay in the second-level cache: half the time of large ones.
CHUNK_ELEMENTS = 2**18


@dataclass(frozen=True)
class LabelPath:
    """The label of each of N samples as a function of its unknown scalar λ.

    `direction` (N, I): the row g_r; `logits` (N, C): W g_r; `ratios` (N, C): gᵢ / g_r; `bias` (C,) or None;
    `row` (N,): r, the row whose entries have the largest absolute sum.
    """

    direction: Tensor
    logits: Tensor
    ratios: Tensor
    bias: Tensor | None
    row: Tensor

    def __len__(self) -> int:
        return len(self.ratios)

    def __getitem__(self, which: slice | Tensor) -> LabelPath:
        return LabelPath(self.direction[which], self.logits[which], self.ratios[which], self.bias, self.row[which])

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.ratios.shape[1]

    @property
    def least(self) -> Tensor:
        """The least |λ| for which a valid label can exist, (N,).

        The positive entries of p − y sum to at most 1, and they are the positive ones of ratios / λ.
        """
        return self.ratios.clamp(min=0).sum(dim=1)

    def labels(self, scalars: Tensor) -> Tensor:
        """Return ŷ(λ) (N, K, C) for λ (N, K), by Eqn. 4."""
        scores = scalars.unsqueeze(-1) * self.logits.unsqueeze(1)
        if self.bias is not None:
            scores = scores + self.bias
        return scores.softmax(dim=-1) - self.ratios.unsqueeze(1) / scalars.unsqueeze(-1)

    def features(self, scalars: Tensor) -> Tensor:
        """Return x(λ) = λ g_r (N, K, I) for λ (N, K)."""
        return scalars.unsqueeze(-1) * self.direction.unsqueeze(1)


def label_path(
    weight_gradients: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    columns: Literal["all", "one"] = "all",
    dtype: torch.dtype | None = torch.float64,
) -> LabelPath:
    """Reduce last-layer gradients of single samples, (C, I) or (N, C, I), to their label paths (wang2024, Eqn. 4).

    `columns`: gᵢ / g_r is the same in every column; "all" fits them by least squares, "one" divides in the column
    where |g_r| is largest, as the paper's code does. `dtype`: the arithmetic; None keeps the gradient's.
    """
    gradients = weight_gradients.unsqueeze(0) if weight_gradients.ndim == 2 else weight_gradients
    if gradients.ndim != 3 or gradients.shape[1:] != weight.shape:
        raise InputError(
            f"weight gradients must be (C, I) or (N, C, I) with weight's (C, I) = {tuple(weight.shape)}; "
            f"got {tuple(weight_gradients.shape)}"
        )
    if not torch.isfinite(gradients).all():
        raise InputError("weight gradients hold NaN or infinite values")
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


def label_loss(labels: Tensor, prior: str = "smoothing", kind: Kind = "variance") -> Tensor:
    """Return how far labels (…, C) are from what the prior allows, (…).

    `kind`: "variance" of all but the free entries (wang2024, Eqn. 5); their mean "square", and the "negative" mass
    Σ|ŷᵢ| − 1 of all entries (both appendix C).
    """
    if kind not in KINDS:
        raise unknown("label loss", kind, KINDS)
    free, classes = named(prior).free, labels.shape[-1]
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
    """The local minima of one sample's loss, ordered by |λ| on each side: scalars (M,) and losses (M,)."""

    scalars: Tensor
    losses: Tensor

    def side(self, sign: float) -> Minima:
        """Return those on one side of zero, nearest first."""
        keep = self.scalars * sign > 0
        order = self.scalars[keep].abs().argsort()
        return Minima(self.scalars[keep][order], self.losses[keep][order])

    @property
    def best(self) -> float:
        """The scalar with the least loss; NaN where there is no minimum at all."""
        return float(self.scalars[self.losses.argmin()]) if len(self.losses) else math.nan


def find_minima(
    path: LabelPath,
    prior: str = "smoothing",
    kind: Kind = "variance",
    *,
    start: float = 1.0,
    span: float = GRID_SPAN,
) -> list[Minima]:
    """Find all local minima of each sample's loss for start ≤ |λ| ≤ span, both signs; one `Minima` a sample.

    A logarithmic grid brackets them all at once, then golden sections narrow every bracket together: the loss has
    kinks where the set of free entries changes, so nothing is asked of its derivatives.
    """

    def loss(part: LabelPath, scalars: Tensor) -> Tensor:
        return label_loss(part.labels(scalars), prior, kind)

    grid = _grid(path, start, span)
    found: list[Minima] = []
    for part in _chunks(path, len(grid)):
        samples, left, right = [], [], []
        for scalars in (grid, -grid):
            values = loss(part, scalars.expand(len(part), -1))
            inner = values[:, 1:-1]
            # Rounding makes ripples on the flat far end; a real minimum is deeper than that.
            dips = inner < torch.minimum(values[:, :-2], values[:, 2:]) * (1 - 1e-9)
            sample, index = dips.nonzero(as_tuple=True)
            samples.append(sample)
            left.append(scalars[index])
            right.append(scalars[index + 2])
        sample = torch.cat(samples)
        scalar = _golden(loss, part[sample], torch.cat(left), torch.cat(right))
        value = loss(part[sample], scalar[:, None])[:, 0] if len(sample) else scalar
        order = [(sample == n).nonzero()[:, 0] for n in range(len(part))]
        found += [Minima(scalar[own], value[own]) for own in order]
    return found


def nonnegative_intervals(path: LabelPath, *, span: float = GRID_SPAN) -> list[list[tuple[float, float]]]:
    """Return, for each sample, every interval of λ in which no entry of ŷ(λ) is negative.

    By Theorem 1 the entries sum to 1 everywhere, so these are all scalars whose label is a probability vector. End
    points are found by bisection to rounding; an interval that never ends has the end ±inf.
    """
    result: list[list[tuple[float, float]]] = [[] for _ in range(len(path))]
    offset = 0
    for part in _chunks(path, _grid(path, 1.0, span).numel()):
        for sign in (1.0, -1.0):
            for n, interval in _intervals_on_side(part, sign, span):
                result[offset + n].append(interval)
        offset += len(part)
    return result


def _intervals_on_side(path: LabelPath, sign: float, span: float) -> list[tuple[int, tuple[float, float]]]:
    """The intervals on one side of zero, as (sample, (end nearer zero, end further out)) in terms of λ."""
    # A valid label needs softmax(λ logits)ᵢ ≥ ratioᵢ / λ wherever the right side is positive. Far out only the top
    # class has any probability left, so another fails in the end, unless the top one alone has a positive right side.
    top = (sign * path.logits).argmax(dim=1, keepdim=True)
    gaps = (sign * path.logits).gather(1, top) - sign * path.logits
    demanding = (sign * path.ratios > 0).scatter(1, top, False)
    gap = gaps.masked_fill(~demanding, 0).amax(dim=1)
    # No label is valid below the least |λ|, so each sample's grid starts just under it; e⁻⁶⁰ ends it.
    begin = path.least * (1 - 1e-6)
    end = torch.maximum(span * begin, 60 / gap.clamp(min=torch.finfo(gap.dtype).tiny)).where(gap > 0, span * begin)
    unit = torch.linspace(0, 1, _grid(path, 1.0, span).numel(), dtype=begin.dtype, device=begin.device)
    scalars = sign * begin[:, None] * (end / begin)[:, None] ** unit

    def slack(part: LabelPath, at: Tensor) -> Tensor:
        return part.labels(at).amin(dim=-1)

    valid = slack(path, scalars) >= 0
    change = valid[:, 1:] != valid[:, :-1]
    sample, index = change.nonzero(as_tuple=True)
    low, high = scalars[sample, index], scalars[sample, index + 1]
    opens = valid[sample, index + 1]
    part = path[sample]
    for _ in range(60):
        middle = (low + high) / 2
        up = (slack(part, middle[:, None])[:, 0] >= 0) == opens if len(sample) else opens
        high, low = torch.where(up, middle, high), torch.where(up, low, middle)
    # The end that is itself valid: an interval's first point, or its last.
    edges = torch.where(opens, high, low)
    intervals: list[tuple[int, tuple[float, float]]] = []
    starts: dict[int, float] = {n: float(scalars[n, 0]) for n in range(len(path)) if bool(valid[n, 0])}
    for n, edge, opening in zip(sample.tolist(), edges.tolist(), opens.tolist(), strict=True):
        if opening:
            starts[n] = edge
        else:
            intervals.append((n, (starts.pop(n), edge)))
    intervals += [(n, (begin, sign * math.inf)) for n, begin in starts.items()]
    return intervals


def _golden(
    loss: Callable[[LabelPath, Tensor], Tensor], path: LabelPath, left: Tensor, right: Tensor, steps: int = 60
) -> Tensor:
    """Narrow brackets (M,) around one minimum each, all together."""
    if len(left) == 0:
        return left
    shrink = (math.sqrt(5) - 1) / 2
    for _ in range(steps):
        width = right - left
        inner = torch.stack([right - shrink * width, left + shrink * width], dim=1)
        values = loss(path, inner)
        lower_first = values[:, 0] < values[:, 1]
        left, right = (
            torch.where(lower_first, left, inner[:, 0]),
            torch.where(lower_first, inner[:, 1], right),
        )
    return (left + right) / 2


def _grid(path: LabelPath, start: float, span: float) -> Tensor:
    # Five steps early, so that a minimum at the start itself has a neighbour on either side.
    start = start * math.exp(-5 * GRID_STEP)
    points = math.ceil(math.log(span / start) / GRID_STEP) + 1
    return torch.logspace(
        math.log10(start), math.log10(span), points, dtype=path.ratios.dtype, device=path.ratios.device
    )


def _chunks(path: LabelPath, points: int) -> list[LabelPath]:
    size = max(1, CHUNK_ELEMENTS // (points * path.classes))
    return [path[start : start + size] for start in range(0, len(path), size)]
