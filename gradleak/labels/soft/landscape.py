"""The loss over the label's scalar: where it has its minima, and where every entry of the label is valid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gradleak.errors import InputError, unknown
from gradleak.labels.priors import named
from gradleak.labels.soft.path import LabelPath, golden

Kind = Literal["variance", "square", "negative"]
KINDS: tuple[Kind, ...] = ("variance", "square", "negative")

# A class whose logit lies further below the largest has no influence left, so softmax changes on a relative scale
# of 1/40 of λ at the finest: this grid step resolves that six times over.
GRID_STEP = 0.004
GRID_SPAN = 1e4
# Labels that are valid at one scalar alone seem so over some hundreds of its last digit's units.
NARROWEST = 1e4


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
    for part in path.parts(len(grid)):
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
        there = part[sample]
        ends = torch.cat(left)[:, None], torch.cat(right)[:, None]
        scalar = golden(partial(loss, there), *ends)
        values = loss(there, scalar)[:, 0]
        order = [(sample == n).nonzero()[:, 0] for n in range(len(part))]
        found += [Minima(scalar[own, 0], values[own]) for own in order]
    return found


def nonnegative_intervals(path: LabelPath, *, span: float = GRID_SPAN) -> list[list[tuple[float, float]]]:
    """Return, for each sample, every interval of λ in which no entry of ŷ(λ) is negative.

    By Theorem 1 the entries sum to 1 everywhere, so these are all scalars whose label is a probability vector. End
    points are found by bisection to rounding; an interval that never ends has the end ±inf. What is no wider than
    rounding, such as the single point where all zeros of a one-hot label are met, is no interval.
    """
    result: list[list[tuple[float, float]]] = [[] for _ in range(len(path))]
    offset = 0
    for part in path.parts(_grid(path, 1.0, span).numel()):
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

    scalars, valid = _turning(path, scalars)
    change = valid[:, 1:] != valid[:, :-1]
    sample, index = change.nonzero(as_tuple=True)
    low, high = scalars[sample, index], scalars[sample, index + 1]
    opens = valid[sample, index + 1]
    part = path[sample]
    for _ in range(60):
        middle = (low + high) / 2
        up = (_slack(part, middle[:, None])[:, 0] >= 0) == opens
        high, low = torch.where(up, middle, high), torch.where(up, low, middle)
    # The end that is itself valid: an interval's first point, or its last.
    edges = torch.where(opens, high, low)
    narrowest = NARROWEST * torch.finfo(scalars.dtype).eps
    intervals: list[tuple[int, tuple[float, float]]] = []
    starts: dict[int, float] = {n: float(scalars[n, 0]) for n in range(len(path)) if bool(valid[n, 0])}
    for n, edge, opening in zip(sample.tolist(), edges.tolist(), opens.tolist(), strict=True):
        if opening:
            starts[n] = edge
        elif edge / (start := starts.pop(n)) > 1 + narrowest:
            intervals.append((n, (start, edge)))
    intervals += [(n, (begin, sign * math.inf)) for n, begin in starts.items()]
    return intervals


def _turning(path: LabelPath, scalars: Tensor) -> tuple[Tensor, Tensor]:
    """Return the grid (N, K) and where its labels are valid, every point moved that hides an interval or a gap.

    One narrower than a step still shows: the slack rises towards it, or falls. So each point from which both
    neighbours lie further from zero is moved to the extremum between them, if validity is another there.
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
    """Return the least entry (N, K) of each label: none is negative where it is not."""
    return path.labels(scalars).amin(dim=-1)


def _grid(path: LabelPath, start: float, span: float) -> Tensor:
    # Five steps early, so that a minimum at the start itself has a neighbour on either side.
    start = start * math.exp(-5 * GRID_STEP)
    points = math.ceil(math.log(span / start) / GRID_STEP) + 1
    return torch.logspace(
        math.log10(start), math.log10(span), points, dtype=path.ratios.dtype, device=path.ratios.device
    )
