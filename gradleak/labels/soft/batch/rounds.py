"""The samples of a batch, looked for in rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.devices import entries_at_once, least_squares
from gradleak.labels.soft.batch.families import Families
from gradleak.labels.soft.batch.span import TINY, Span, descended
from gradleak.labels.verdict import KNOWN

# On a CPU problems are solved together up to this many entries of their Jacobians.
CHUNK_ELEMENTS = 2**23
# How many arrays of a Jacobian's size are held at once, in float64.
COPIES = 4
# Descents end within this of the span; the fit of the whole batch takes them further.
HOME = 1e-10
# How many steps tell which families are worth pursuing, and how many bring those home.
LOOK, STEPS = 8, 50
# A label that sticks out of the span by less than this many rounding errors may be a sample's ...
ACCEPT = 3.0
# ... and so may not one that sticks out by this share of its own length.
STICKS_OUT = 0.01
# A sample that is looked for alone is one number: so many are tried, with logits that spread from this to that.
SCANNED, NARROW, WIDE = 256, 1e-2, 1e3
VANISHED = 1e-10
# Two explanations of a sample are one if their features are this close, and their labels (L1).
SAME, ALIKE = 1e-2, 0.1
SMALLEST = 1e-100


@dataclass
class Found:
    """Explanations of samples: `places` (n, B): q; `shares` (n,): s; `family` (n,)."""

    places: Tensor
    shares: Tensor
    family: Tensor


class Search:
    """Looks for a batch's samples in rounds; those that are found leave the gradient, and the rest get easier."""

    def __init__(
        self,
        span: Span,
        reduced: Tensor,
        families: Families,
        unit: float,
        loudest: float,
        generator: torch.Generator,
        nonnegative: bool,
        scale: float | None,
    ) -> None:
        self.scale = scale
        self.span, self.reduced, self.families, self.unit = span, reduced, families, unit
        self.generator, self.nonnegative = generator, nonnegative
        self.size = max(loudest, float((span.rows[:, None] * reduced).norm()))
        none = span.mean.new_zeros(0)
        self.found = Found(none.reshape(0, span.rank), none, none.long())

    def run(self, rounds: int, further: bool) -> None:
        """Search until all samples are found; `further`: go on after that, for more explanations than samples."""
        for index in range(rounds):
            missing = self.span.rank - len(self.found.shares)
            if missing <= 0 and (not further or index >= max(4, rounds // 4)):
                return
            turn, span = (None, self.span) if missing <= 0 else self._rest(missing)
            places, shares, family = self._round(span, max(missing, 1), scan=span.rank == 1 and index % 2 == 0)
            self._add(places if turn is None else places @ turn.T, shares, family)
            if len(self.found.shares) > self.span.rank:
                return

    def _rest(self, missing: int) -> tuple[Tensor, Span]:
        """Return the span of what the found samples leave, and how its coordinates are turned into the whole's."""
        errors = self._errors(self.found)
        if self.scale is None:
            took = errors.T @ self._shares(errors) @ self.found.places
        else:
            took = errors.T @ self.found.places * self.scale / self.span.rank
        rest = self.span.rows[:, None] * (self.reduced - took)
        left, _, right = torch.linalg.svd(rest, full_matrices=False)
        turn = right[:missing].T
        span = Span(left[:, :missing], self.span.logits @ turn, self.span.mean @ turn, self.span.rows)
        return turn, span

    def _shares(self, errors: Tensor) -> Tensor:
        """Return what (n, n) the found samples' errors and places have to be joined by to lower the gradient's rank."""
        inverse = torch.linalg.pinv(self.span.rows[:, None] * self.reduced)
        joined: Tensor = torch.linalg.pinv(self.found.places @ inverse @ (self.span.rows * errors).T)
        return joined

    def estimated(self) -> float:
        """Return the factor on the gradient that the samples found say, one by one, in the middle."""
        return (
            float(self._shares(self._errors(self.found)).diagonal().abs().median().clamp(min=SMALLEST)) * self.span.rank
        )

    def _labels(self, found: Found) -> Tensor:
        base, step = self.families.parts(found.family)
        return base + found.shares[:, None] * step

    def _errors(self, found: Found) -> Tensor:
        errors: Tensor = (found.places @ self.span.logits.T).softmax(dim=1) - self._labels(found)
        return errors

    def _round(self, span: Span, missing: int, *, scan: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Give every family one start, pursue the most promising, and return where those end."""
        everyone = torch.arange(len(self.families), device=span.mean.device)
        shares = torch.rand(len(everyone), generator=self.generator, dtype=torch.float64).to(span.mean) / 2
        if self.families.free == 0:
            shares = torch.zeros_like(shares)
        if scan:
            places, shares = self._scanned(span, everyone, shares)
        else:
            places = self._starts(span, len(everyone))
        entries = entries_at_once(span.mean.device, CHUNK_ELEMENTS, 8 * COPIES)
        size = max(1, entries // (self.families.count * (span.rank + 1)))

        def descend(which: Tensor, places: Tensor, shares: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
            parts = [
                descended(span, *self.families.parts(own), places[part], shares[part], self.families.free, steps)
                for part, own in ((slice(n, n + size), which[n : n + size]) for n in range(0, len(which), size))
            ]
            return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]), torch.cat([p[2] for p in parts])

        places, shares, cost = descend(everyone, places, shares, LOOK)
        best = cost.argsort()[: max(4 * missing, len(everyone) // 8)]
        places, shares, cost = descend(best, places[best], shares[best], STEPS)
        good = cost < STICKS_OUT**2
        return places[good], shares[good], best[good]

    def _scanned(self, span: Span, everyone: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return where (F, 1), with these shares or none, the error of each family's label is nearest to the span."""
        base, step = self.families.parts(everyone)
        (up,), none = span.errors.T, torch.zeros_like(shares)
        low, high = math.log(NARROW), math.log(WIDE)
        drawn = torch.rand(SCANNED, generator=self.generator, dtype=torch.float64).to(up)
        grid = (torch.arange(SCANNED, device=up.device) + drawn) / SCANNED
        lengths = (low + (high - low) * grid).exp() / span.logits.std().clamp(min=TINY)
        # Features that are not negative have a positive sum.
        lengths = lengths * span.mean.sign() if self.nonnegative else torch.cat([lengths, -lengths])
        p = span.rows * (lengths[:, None] * span.logits[:, 0]).softmax(dim=1)
        best, places, chosen = torch.full_like(shares, -1), none, none
        for own in (none, shares):
            labels = span.rows * (base + own[:, None] * step)
            along = (p @ up)[:, None] - labels @ up
            whole = p.square().sum(dim=1)[:, None] + labels.square().sum(dim=1)
            # An error that is all but nothing beside p and y has no direction here.
            size = torch.maximum(whole - 2 * p @ labels.T, VANISHED * whole)
            near, which = (along.square() / size).max(dim=0)
            better = near > best
            best, chosen = torch.where(better, near, best), torch.where(better, own, chosen)
            places = torch.where(better, lengths[which], places)
        return places[:, None], chosen

    def _starts(self, span: Span, count: int) -> Tensor:
        """Return places (count, B): features that are not negative lie around their mean, others anywhere."""

        def drawn() -> Tensor:
            return torch.rand(count, 1, generator=self.generator, dtype=torch.float64).to(span.mean.device)

        direction = torch.randn(count, span.rank, generator=self.generator, dtype=torch.float64).to(span.mean.device)
        direction = direction / math.sqrt(span.rank)
        # Any logits between a tenth of the usual and ten times as large.
        usual = (math.log(10) * (2 * drawn() - 1)).exp()
        entry = span.logits.norm() / math.sqrt(span.logits.numel())
        anywhere: Tensor = usual / entry.clamp(min=TINY) * direction
        if not self.nonnegative:
            return anywhere
        mean = span.mean / span.mean.norm().clamp(min=TINY)
        centre = mean / (span.logits @ mean).std().clamp(min=TINY) * (math.log(10) * (2 * drawn() - 1)).exp()
        around = centre + 0.2 * drawn() * centre.norm(dim=1, keepdim=True) * direction
        return torch.where(drawn() < 0.7, around, anywhere)

    def _add(self, places: Tensor, shares: Tensor, family: Tensor) -> None:
        """Bring new explanations home in the whole gradient's span, and keep those that hold and are new."""
        if len(shares) == 0:
            return
        base, step = self.families.parts(family)
        places, shares, cost = descended(self.span, base, step, places, shares, self.families.free, STEPS)
        rounding = self._rounding(places, self._errors(Found(places, shares, family)))
        good = (
            (cost.sqrt() < (ACCEPT * rounding).clamp(min=HOME)) & (ACCEPT * rounding < STICKS_OUT) & shares.isfinite()
        )
        if self.families.free:
            # A label that is smoothed away altogether is every class's.
            most = 1 - KNOWN if self.families.kind == "smoothing" else 1 + KNOWN
            good &= (shares > -KNOWN) & (shares < most)
        order = cost.argsort()
        order = order[good[order]]
        new = Found(places[order], shares[order], family[order])
        known = len(self.found.shares)
        self.found = Found(
            torch.cat([self.found.places, new.places]),
            torch.cat([self.found.shares, new.shares]),
            torch.cat([self.found.family, new.family]),
        )
        # Compare all pairs on the device, read the result once, then choose explanations in order.
        labels = self._labels(self.found)
        direct = "donot_use_mm_for_euclid_dist"
        other = torch.cdist(new.places, self.found.places, compute_mode=direct) > SAME * new.places.norm(dim=1)[:, None]
        other |= torch.cdist(labels[known:], labels, p=1) > ALIKE
        kept = list(range(known))
        for place, apart in enumerate(other.tolist(), start=known):
            if all(apart[n] for n in kept):
                kept.append(place)
        self.found = Found(self.found.places[kept], self.found.shares[kept], self.found.family[kept])

    def _rounding(self, places: Tensor, errors: Tensor) -> Tensor:
        """Return by how much the span's own rounding lets a true error stick out of it, relative to its length."""
        weighted = self.span.rows * errors
        scaled = least_squares(self.span.rows[:, None] * self.reduced, weighted.T).norm(dim=0)
        logits = places @ self.span.logits.T
        own = self.span.rows * logits.softmax(dim=1) * (1 + logits.abs().amax(dim=1, keepdim=True))
        allowed: Tensor = self.unit * (self.size * scaled + own.norm(dim=1)) / weighted.norm(dim=1).clamp(min=TINY)
        return allowed
