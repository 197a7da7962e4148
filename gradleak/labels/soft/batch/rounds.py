"""Search for the samples of a batch in rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.devices import entries_at_once, least_squares
from gradleak.labels.priors import KNOWN
from gradleak.labels.soft.batch.families import Families
from gradleak.labels.soft.batch.span import TINY, Span, descended

# On a CPU, entries of the Jacobians of problems that are solved together.
CHUNK_ELEMENTS = 2**23
# Arrays of a Jacobian's size that are held at once, in float64.
COPIES = 4
# An error at a smaller angle to the span is accepted in any case; the joint fit of the batch refines it.
CLOSE_ENOUGH = 1e-10
# Steps after which the promising families are chosen, and further steps until convergence.
FIRST_STEPS, STEPS = 8, 50
# A label whose error lies outside the span by fewer rounding errors may be a sample's ...
ACCEPT = 3.0
# ... and a label whose error lies outside by this share of its length may not.
STICKS_OUT = 0.01
# A single missing sample has one coordinate. So many values are tried, with a standard deviation of the logits from
# NARROW to WIDE.
SCANNED, NARROW, WIDE = 256, 1e-2, 1e3
# An error has no reliable direction if its square is below this share of those of prediction and label.
VANISHED = 1e-10
# Two explanations are the same sample if their features are this close (relative) and their labels this close (L1).
SAME, ALIKE = 1e-2, 0.1
# A search ends if it has found so many explanations more than there are samples.
FURTHER = 2
# An explanation is no sample if its part in the gradient is below this share of a sample's.
PART = 0.5
# A positive lower limit for the estimate of the scale.
SMALLEST = 1e-100


class Found(NamedTuple):
    """Explanations of n samples: coordinates q of features in `places` (n, B), `shares` s (n,) and `family` (n,)."""

    places: Tensor
    shares: Tensor
    family: Tensor


@dataclass
class Search:
    """Search for a batch's samples in rounds.

    Samples that are found are subtracted from the gradient, which makes the others easier to find.

    Attributes:
        span: The span of the gradient.
        reduced: G V (C, B), the gradient in coordinates of the span.
        families: The labels that samples may have.
        unit: The rounding unit of the gradient.
        loudest: The largest singular value that noise alone would have, relative to `unit`; 0 without noise.
        generator: The source of the random starts.
        nonnegative: Whether no feature is negative.
        scale: The factor on the gradient, None if it is unknown.
    """

    span: Span
    reduced: Tensor
    families: Families
    unit: float
    loudest: float
    generator: torch.Generator
    nonnegative: bool
    scale: float | None

    def __post_init__(self) -> None:
        self.size = max(self.loudest, float((self.span.rows[:, None] * self.reduced).norm()))
        empty = self.span.mean.new_zeros(0)
        self.found = Found(empty.reshape(0, self.span.rank), empty, empty.long())

    def run(self, rounds: int, further: bool) -> None:
        """Search until all samples are found; with `further`, go on for more explanations than there are samples."""
        for index in range(rounds):
            missing = self.span.rank - len(self.found.shares)
            if missing <= 0 and (not further or index >= max(4, rounds // 4)):
                return
            rotation, span = (None, self.span) if missing <= 0 else self._rest(missing)
            places, shares, family = self._round(span, max(missing, 1), scan=span.rank == 1 and index % 2 == 0)
            self._add(places if rotation is None else places @ rotation.T, shares, family)
            if len(self.found.shares) > self.span.rank + FURTHER:
                return

    def _rest(self, missing: int) -> tuple[Tensor, Span]:
        """Return the span of the gradient that remains without the samples found.

        The first result is the map from this span's coordinates to those of the whole span.
        """
        errors = self._errors(self.found)
        if self.scale is None:
            explained = errors.T @ self._rank_reduction(errors) @ self.found.places
        else:
            explained = errors.T @ self.found.places * self.scale / self.span.rank
        rest = self.span.rows[:, None] * (self.reduced - explained)
        left, _, right = torch.linalg.svd(rest, full_matrices=False)
        rotation = right[:missing].T
        span = Span(left[:, :missing], self.span.logits @ rotation, self.span.mean @ rotation, self.span.rows)
        return rotation, span

    def _rank_reduction(self, errors: Tensor) -> Tensor:
        """Return the matrix M (n, n) for which subtracting errorsᵀ M q of n samples lowers the gradient's rank by n."""
        inverse = torch.linalg.pinv(self.span.rows[:, None] * self.reduced)
        coupling: Tensor = torch.linalg.pinv(self.found.places @ inverse @ (self.span.rows * errors).T)
        return coupling

    def estimated(self) -> float:
        """Return the gradient's scale, as the median of the scales that the samples found imply."""
        scales = self._rank_reduction(self._errors(self.found)).diagonal().abs()
        return float(scales.median().clamp(min=SMALLEST)) * self.span.rank

    def _labels(self, found: Found) -> Tensor:
        base, step = self.families.parts(found.family)
        return base + found.shares[:, None] * step

    def _errors(self, found: Found) -> Tensor:
        errors: Tensor = (found.places @ self.span.logits.T).softmax(dim=1) - self._labels(found)
        return errors

    def _round(self, span: Span, missing: int, *, scan: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Start once from every family, continue the most promising starts, and return where these end."""
        all_families = torch.arange(len(self.families), device=span.mean.device)
        shares = torch.rand(len(all_families), generator=self.generator, dtype=torch.float64).to(span.mean) / 2
        if self.families.free == 0:
            shares = torch.zeros_like(shares)
        if scan:
            places, shares = self._scanned(span, all_families, shares)
        else:
            places = self._starts(span, len(all_families))
        entries = entries_at_once(span.mean.device, CHUNK_ELEMENTS, 8 * COPIES)
        size = max(1, entries // (self.families.count * (span.rank + 1)))

        def descend(which: Tensor, places: Tensor, shares: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
            parts = [
                descended(span, *self.families.parts(chunk), q, s, self.families.free, steps)
                for chunk, q, s in zip(which.split(size), places.split(size), shares.split(size), strict=True)
            ]
            places, shares, cost = map(torch.cat, zip(*parts, strict=True))
            return places, shares, cost

        places, shares, cost = descend(all_families, places, shares, FIRST_STEPS)
        best = cost.argsort()[: max(4 * missing, len(all_families) // 8)]
        places, shares, cost = descend(best, places[best], shares[best], STEPS)
        good = cost < STICKS_OUT**2
        return places[good], shares[good], best[good]

    def _scanned(self, span: Span, everyone: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return coordinates (F, 1) where each family's error is nearest to the span, and the share: 0 or as given."""
        base, step = self.families.parts(everyone)
        (axis,), zeros = span.errors.T, torch.zeros_like(shares)
        low, high = math.log(NARROW), math.log(WIDE)
        offsets = torch.rand(SCANNED, generator=self.generator, dtype=torch.float64).to(axis)
        grid = (torch.arange(SCANNED, device=axis.device) + offsets) / SCANNED
        lengths = (low + (high - low) * grid).exp() / span.logits.std().clamp(min=TINY)
        # Features that are not negative have a positive sum, which fixes the sign.
        lengths = lengths * span.mean.sign() if self.nonnegative else torch.cat([lengths, -lengths])
        p = span.rows * (lengths[:, None] * span.logits[:, 0]).softmax(dim=1)
        best, places, best_shares = torch.full_like(shares, -1), zeros, zeros
        for trial_shares in (zeros, shares):
            labels = span.rows * (base + trial_shares[:, None] * step)
            projection = (p @ axis)[:, None] - labels @ axis
            squares = p.square().sum(dim=1)[:, None] + labels.square().sum(dim=1)
            # Where prediction and label nearly cancel, the direction of the error is not reliable.
            size = torch.maximum(squares - 2 * p @ labels.T, VANISHED * squares)
            closeness, nearest = (projection.square() / size).max(dim=0)
            better = closeness > best
            best, best_shares = torch.where(better, closeness, best), torch.where(better, trial_shares, best_shares)
            places = torch.where(better, lengths[nearest], places)
        return places[:, None], best_shares

    def _starts(self, span: Span, count: int) -> Tensor:
        """Return starting coordinates (count, B): around the mean for nonnegative features, else in any direction."""

        def drawn() -> Tensor:
            return torch.rand(count, 1, generator=self.generator, dtype=torch.float64).to(span.mean.device)

        direction = torch.randn(count, span.rank, generator=self.generator, dtype=torch.float64).to(span.mean.device)
        direction = direction / math.sqrt(span.rank)
        # Scale the logits to between a tenth of and ten times their usual size.
        factor = (math.log(10) * (2 * drawn() - 1)).exp()
        entry = span.logits.norm() / math.sqrt(span.logits.numel())
        anywhere: Tensor = factor / entry.clamp(min=TINY) * direction
        if not self.nonnegative:
            return anywhere
        mean = span.mean / span.mean.norm().clamp(min=TINY)
        centre = mean / (span.logits @ mean).std().clamp(min=TINY) * (math.log(10) * (2 * drawn() - 1)).exp()
        around = centre + 0.2 * drawn() * centre.norm(dim=1, keepdim=True) * direction
        return torch.where(drawn() < 0.7, around, anywhere)

    def _add(self, places: Tensor, shares: Tensor, family: Tensor) -> None:
        """Refine new explanations in the whole gradient's span, and keep those that are accepted and new."""
        if len(shares) == 0:
            return
        base, step = self.families.parts(family)
        places, shares, cost = descended(self.span, base, step, places, shares, self.families.free, STEPS)
        errors = self._errors(Found(places, shares, family))
        rounding = self._rounding(places, errors)
        good = (
            (cost.sqrt() < (ACCEPT * rounding).clamp(min=CLOSE_ENOUGH))
            & (ACCEPT * rounding < STICKS_OUT)
            & shares.isfinite()
        )
        if self.families.free:
            # A completely smoothed label is the same for every class, so its share is excluded.
            limit = 1 - KNOWN if self.families.prior.rest == "equal" else 1 + KNOWN
            good &= (shares > -KNOWN) & (shares < limit)
        order = cost.argsort()
        order = order[good[order]]
        added = Found(places[order], shares[order], family[order])
        known = len(self.found.shares)
        self.found = Found(*map(torch.cat, zip(self.found, added, strict=True)))
        # Compare all pairs on the device, read the result once, then choose explanations in order.
        labels = self._labels(self.found)
        mode = "donot_use_mm_for_euclid_dist"
        distinct = (
            torch.cdist(added.places, self.found.places, compute_mode=mode) > SAME * added.places.norm(dim=1)[:, None]
        )
        distinct |= torch.cdist(labels[known:], labels, p=1) > ALIKE
        kept = list(range(known))
        for index, differs in enumerate(distinct.tolist(), start=known):
            if all(differs[earlier] for earlier in kept):
                kept.append(index)
        self.found = self._contributing(Found(*(values[kept] for values in self.found)))

    def _contributing(self, found: Found) -> Found:
        """Return the explanations that may be part of a batch with this gradient, as far as rounding allows to say.

        The gradient is S = κ Σ d qᵀ / B, so qᵀ S⁺ d = B / κ for each of its samples. A defence may have lowered κ.
        """
        if len(found.shares) == 0:
            return found
        inverse = torch.linalg.pinv(self.span.rows[:, None] * self.reduced)
        left, right = found.places @ inverse, (self.span.rows * self._errors(found)) @ inverse.T
        parts, rounding = (right * found.places).sum(dim=1), left.norm(dim=1) * right.norm(dim=1)
        usual = parts.median() if self.scale is None else self.span.rank / self.scale
        chosen = parts > PART * usual - ACCEPT * self.unit * self.size * rounding
        return Found(*(values[chosen] for values in found))

    def _rounding(self, places: Tensor, errors: Tensor) -> Tensor:
        """Return how far rounding of the span may move a true error out of it, relative to the error's length (P,)."""
        weighted = self.span.rows * errors
        scaled = least_squares(self.span.rows[:, None] * self.reduced, weighted.T).norm(dim=0)
        logits = places @ self.span.logits.T
        softmax_error = self.span.rows * logits.softmax(dim=1) * (1 + logits.abs().amax(dim=1, keepdim=True))
        allowed: Tensor = (
            self.unit * (self.size * scaled + softmax_error.norm(dim=1)) / weighted.norm(dim=1).clamp(min=TINY)
        )
        return allowed
