"""Labels and features of every sample in a batch, out of one averaged last-layer gradient.

G = Dᵀ X / B with D = P − Y (B, C) and X (B, I). For B < C and B ≤ I its rank is B, and its singular vectors U, V span
the samples' errors d and features x. So every sample has a q in Rᴮ with

    x = V q,    softmax(W V q) − y ∈ span U,

and a label y of the shape that the prior allows: one of a few families y = y₀ + s y₁ (smoothing: a class c, and
s = ε). Each family is B + 1 unknowns and C − 1 − B equations. What is minimised is the angle between d and the span:
the length of what sticks out of it would be least for d = 0, which every family reaches without being right.

Rows of G are first divided by their size: a gradient's rounding errors are relative ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.errors import InputError
from gradleak.labels.priors import Prior, named
from gradleak.labels.soft.exact import KNOWN
from gradleak.labels.soft.single import Status

# Singular values below this many rounding units of the largest are rounding.
RANK = 8.0
# Problems are solved together up to this many entries of their Jacobians.
CHUNK_ELEMENTS = 2**23
FINEST = 2e-15
# Descents end within this of the span; the fit of the whole batch takes them further.
HOME = 1e-10
# How many steps tell which families are worth pursuing, and how many bring those home.
LOOK, STEPS = 8, 50
WHOLE_STEPS = 10
# A label that sticks out of the span by less than this many rounding errors may be a sample's ...
ACCEPT = 3.0
# ... and so may not one that sticks out by this share of its own length.
STICKS_OUT = 0.01
# Two explanations of a sample are one if their features are this close.
SAME = 1e-2
# Rebuilt from its samples, a gradient misses by rounding alone: this many units at most.
REBUILT = 16.0
# With this many equations to spare a further explanation would be an accident of many digits.
SPARE = 3
MOST_FAMILIES = 20_000
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class BatchLabels:
    """What one averaged gradient says about its B samples; everything in float64.

    `labels` (B, C), `features` (B, I): NaN for samples that were not found; `open` (B,): how far each label may be off
    (L1), by the digits of the gradient; `residual`: relative error of the gradient that they give together, inf if
    some are missing; `status`, and `reason` where it is not "unique".
    """

    labels: Tensor
    features: Tensor
    open: Tensor
    residual: float
    status: Status
    reason: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def found(self) -> Tensor:
        """Which samples were found, (B,)."""
        return ~self.labels[:, 0].isnan()


@dataclass(frozen=True)
class Families:
    """Labels y₀ + s y₁ with s in [low, high], by the classes that each names: (F, 1), or (F, 2) for mixtures."""

    classes: Tensor
    kind: Literal["smoothing", "onehot", "mixup", "known"]
    count: int
    known: Tensor | None = None

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def free(self) -> int:
        """How many numbers of a label are unknown, given its family."""
        return int(self.kind in ("smoothing", "mixup"))

    def parts(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return y₀ (P, C) and y₁ (P, C) of some families."""
        if self.known is not None:
            base = self.known[self.classes[which, 0]]
            return base, torch.zeros_like(base)
        base = F.one_hot(self.classes[which, 0], self.count).double()
        if self.kind == "smoothing":
            return base, 1 / self.count - base
        if self.kind == "mixup":
            return base, F.one_hot(self.classes[which, 1], self.count).double() - base
        return base, torch.zeros_like(base)


@dataclass(frozen=True)
class Span:
    """What the singular vectors leave of a gradient, its rows divided by their size.

    `errors` (C, B): U; `logits` (C, B): W V; `mean` (B,): Vᵀ1; `rows` (C,): one over the rows' sizes.
    """

    errors: Tensor
    logits: Tensor
    mean: Tensor
    rows: Tensor

    @property
    def rank(self) -> int:
        """The number of samples that are looked for."""
        return self.errors.shape[1]


def recover_batch(
    weight_gradient: Tensor,
    weight: Tensor,
    *,
    batch_size: int | None = None,
    prior: str | Prior = "smoothing",
    labels: Tensor | None = None,
    bias: Tensor | None = None,
    bias_gradient: Tensor | None = None,
    nonnegative: bool = True,
    noise: float | None = 0.0,
    rounds: int = 40,
    seed: int = 0,
) -> BatchLabels:
    """Recover the soft labels and the features of a whole batch from its averaged gradient (C, I).

    `batch_size` is the gradient's rank where it is not given. `prior`: "smoothing" (each sample with its own ε),
    "onehot", or "mixup" of two classes; classes may repeat. `labels` (B, C), where they are known, leave the features
    to be found. A bias is a feature that is always 1. `noise`: standard deviation of what the client is known to have
    added to every entry; None estimates it from the singular values beyond the batch size, which must be known then.
    `rounds`: how many starts every family of labels gets at most.
    """
    gradient, matrix = _extended(weight_gradient, weight, bias, bias_gradient)
    with torch.no_grad():
        return _recover(
            gradient, matrix, weight_gradient.dtype, batch_size, prior, labels, bias, nonnegative, noise, rounds, seed
        )


def _extended(
    weight_gradient: Tensor, weight: Tensor, bias: Tensor | None, bias_gradient: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return gradient and weight in float64, with a last column for the bias where there is one."""
    if weight.ndim != 2 or weight_gradient.shape != weight.shape:
        raise InputError(
            f"a batch's weight gradient must be (C, I), as its weight: got {tuple(weight_gradient.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if (bias is None) != (bias_gradient is None):
        raise InputError("a bias comes with its gradient, and the gradient with its bias")
    gradient, matrix = weight_gradient.double(), weight.detach().double()
    if bias is not None and bias_gradient is not None:
        gradient = torch.cat([gradient, bias_gradient.double().reshape(-1, 1)], dim=1)
        matrix = torch.cat([matrix, bias.detach().double().reshape(-1, 1)], dim=1)
    if not gradient.isfinite().all() or not matrix.isfinite().all():
        raise InputError("weight and gradient must not hold NaN or infinite values")
    return gradient, matrix


def _recover(
    gradient: Tensor,
    matrix: Tensor,
    dtype: torch.dtype,
    batch_size: int | None,
    prior: str | Prior,
    labels: Tensor | None,
    bias: Tensor | None,
    nonnegative: bool,
    noise: float | None,
    rounds: int,
    seed: int,
) -> BatchLabels:
    classes, features = gradient.shape
    if noise is None:
        noise = _tail(gradient, batch_size)
    # Singular vectors are computed in float64, and are good to some of its rounding errors.
    unit = max(torch.finfo(dtype).eps / 2, FINEST)
    sizes = gradient.norm(dim=1)
    # Rows are weighed so that an entry's error is about the unit, by rounding or by noise.
    sizes = (sizes.square() + (noise / unit) ** 2 * features).sqrt()
    rows = torch.where(sizes > 0, 1 / sizes.clamp(min=TINY), 0)
    left, values, right = torch.linalg.svd(rows[:, None] * gradient, full_matrices=False)
    # The largest singular value of noise alone, its entries being of the size that the rows' weights make them.
    loudest = 1 + math.sqrt(classes / features) if noise else 0.0
    rank = int((values > unit * max(RANK * float(values[0]), 2 * loudest)).sum())
    count = rank if batch_size is None else batch_size
    lost = _Lost(max(count, 1), classes, features - (bias is not None), gradient)
    if count < 1:
        return lost("the gradient is zero: nothing is known of the samples")
    if rank < count or (rank > count and not noise):
        return lost(
            f"the gradient has rank {rank} where {count} samples with features and errors of their own give {count}"
        )
    families = _families(prior, labels, classes, gradient.device)
    spare = classes - 1 - count - (count + families.free)
    if spare < 0:
        return lost(
            f"{count} samples in {classes} classes have {count + families.free} unknowns each and "
            f"{max(0, classes - 1 - count)} equations: anything fits"
        )
    basis = right[:count].T
    span = Span(left[:, :count], matrix @ basis, basis.sum(dim=0), rows)
    generator = torch.Generator().manual_seed(seed)
    search = _Search(span, gradient @ basis, families, unit, loudest, generator, nonnegative)
    search.run(rounds, further=spare < SPARE)
    if len(search.found.shares) == 0:
        return lost(f"none of the {count} samples was found in {rounds} rounds")
    return _certified(search, gradient, matrix, basis, lost)


def _certified(search: _Search, gradient: Tensor, matrix: Tensor, basis: Tensor, lost: _Lost) -> BatchLabels:
    """Rebuild the gradient from the samples found, and say what they are worth."""
    whole, count, found = search.whole(), search.span.rank, len(search.found.shares)
    hidden = whole.places @ basis.T
    logits = hidden @ matrix.T
    rest = gradient - (logits.softmax(dim=1) - whole.labels).T @ hidden / count
    # Softmax turns the rounding of a logit into a relative error of so many of its units.
    steep = math.sqrt(len(gradient)) * search.unit * (1 + float(logits.abs().max()))
    fits = float((search.span.rows[:, None] * rest).norm()) <= REBUILT * steep
    residual = float(rest.norm() / gradient.norm()) if found == count else math.inf
    status: Status = "ambiguous"
    reason = ""
    if found > count:
        reason = f"{count} samples have more explanations than that"
    elif found < count:
        status, reason = "failed", f"{found} of {count} samples were found"
    elif not fits:
        status, reason = "failed", f"the samples found miss the gradient by {residual:.1e}, more than rounding"
    elif float(whole.open.max()) > KNOWN:
        reason = f"the gradient's digits leave a label open by {float(whole.open.max()):.1g} (L1)"
    else:
        status = "unique"
    order = sorted(range(found), key=lambda n: (int(whole.labels[n].argmax()), -float(whole.labels[n].max())))[:count]
    result = lost(reason)
    # Of a bias' feature, the last, nothing is said: it is always 1.
    for empty, value in zip(
        (result.labels, result.features, result.open), (whole.labels, hidden, whole.open), strict=True
    ):
        empty[: len(order)] = value[order][..., : empty.shape[-1]] if empty.ndim > 1 else value[order]
    return replace(result, residual=residual, status=status)


def _tail(gradient: Tensor, batch_size: int | None) -> float:
    """Return the standard deviation of noise that the singular values beyond a batch's rank show."""
    if batch_size is None:
        raise InputError("noise can be estimated only where the batch size is known")
    values = torch.linalg.svdvals(gradient)[batch_size:]
    entries = (gradient.shape[0] - batch_size) * (gradient.shape[1] - batch_size)
    return float((values.square().sum() / max(1, entries)).sqrt())


class _Lost:
    """Says that nothing was found."""

    def __init__(self, count: int, classes: int, features: int, like: Tensor) -> None:
        self.shape, self.like = (count, classes, features), like

    def __call__(self, reason: str) -> BatchLabels:
        count, classes, features = self.shape
        labels, hidden, whole = (
            self.like.new_full(shape, value)
            for shape, value in (((count, classes), math.nan), ((count, features), math.nan), ((count,), math.inf))
        )
        return BatchLabels(labels, hidden, whole, math.inf, "failed", reason)


def _families(prior: str | Prior, labels: Tensor | None, classes: int, device: torch.device) -> Families:
    everyone = torch.arange(classes, device=device)[:, None]
    if labels is not None:
        if labels.ndim != 2 or labels.shape[1] != classes:
            raise InputError(f"known labels must be (B, C) with C = {classes}; got {tuple(labels.shape)}")
        distinct = labels.to(device).double().unique(dim=0)
        return Families(torch.arange(len(distinct), device=device)[:, None], "known", classes, distinct)
    wanted = named(prior) if isinstance(prior, str) else prior
    if wanted == Prior(1, "equal"):
        return Families(everyone, "smoothing", classes)
    if wanted == Prior(1, "zero"):
        return Families(everyone, "onehot", classes)
    if wanted != Prior(2, "zero"):
        raise InputError("the labels of a batch are one-hot, smoothed, or mixtures of two classes")
    if classes * (classes - 1) // 2 > MOST_FAMILIES:
        raise InputError(f"{classes} classes have {classes * (classes - 1) // 2} pairs: too many to try in a batch")
    return Families(torch.combinations(torch.arange(classes, device=device)), "mixup", classes)


@dataclass
class _Found:
    """Explanations of samples: `places` (n, B): q; `shares` (n,): s; `family` (n,)."""

    places: Tensor
    shares: Tensor
    family: Tensor


class _Search:
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
    ) -> None:
        self.span, self.reduced, self.families, self.unit = span, reduced, families, unit
        self.generator, self.nonnegative = generator, nonnegative
        self.size = max(loudest, float((span.rows[:, None] * reduced).norm()))
        none = span.mean.new_zeros(0)
        self.found = _Found(none.reshape(0, span.rank), none, none.long())

    def run(self, rounds: int, further: bool) -> None:
        """Search until all samples are found; `further`: go on after that, for more explanations than samples."""
        for index in range(rounds):
            missing = self.span.rank - len(self.found.shares)
            if missing <= 0 and (not further or index >= max(4, rounds // 4)):
                return
            turn, span = (None, self.span) if missing <= 0 else self._rest(missing)
            places, shares, family = self._round(span, max(missing, 1))
            self._add(places if turn is None else places @ turn.T, shares, family)
            if len(self.found.shares) > self.span.rank:
                return

    def _rest(self, missing: int) -> tuple[Tensor, Span]:
        """Return the span of what the found samples leave, and how its coordinates are turned into the whole's."""
        errors = self._errors(self.found)
        rest = self.span.rows[:, None] * (self.reduced - errors.T @ self.found.places / self.span.rank)
        left, _, right = torch.linalg.svd(rest, full_matrices=False)
        turn = right[:missing].T
        span = Span(left[:, :missing], self.span.logits @ turn, self.span.mean @ turn, self.span.rows)
        return turn, span

    def _errors(self, found: _Found) -> Tensor:
        base, step = self.families.parts(found.family)
        errors: Tensor = (found.places @ self.span.logits.T).softmax(dim=1) - base - found.shares[:, None] * step
        return errors

    def _round(self, span: Span, missing: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give every family one start, pursue the most promising, and return where those end."""
        everyone = torch.arange(len(self.families), device=span.mean.device)
        places = self._starts(span, len(everyone))
        shares = torch.rand(len(everyone), generator=self.generator, dtype=torch.float64).to(places) / 2
        if self.families.free == 0:
            shares = torch.zeros_like(shares)
        size = max(1, CHUNK_ELEMENTS // (self.families.count * (span.rank + 1)))

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
        rounding = self._rounding(places, self._errors(_Found(places, shares, family)))
        good = (
            (cost.sqrt() < (ACCEPT * rounding).clamp(min=HOME)) & (ACCEPT * rounding < STICKS_OUT) & shares.isfinite()
        )
        if self.families.free:
            # A label that is smoothed away altogether is every class's.
            most = 1 - KNOWN if self.families.kind == "smoothing" else 1 + KNOWN
            good &= (shares > -KNOWN) & (shares < most)
        order = cost.argsort()
        for n in order[good[order]].tolist():
            if len(self.found.shares):
                far = (self.found.places - places[n]).norm(dim=1) > SAME * places[n].norm()
                if not far.all():
                    continue
            self.found = _Found(
                torch.cat([self.found.places, places[n : n + 1]]),
                torch.cat([self.found.shares, shares[n : n + 1]]),
                torch.cat([self.found.family, family[n : n + 1]]),
            )

    def _rounding(self, places: Tensor, errors: Tensor) -> Tensor:
        """Return by how much the span's own rounding lets a true error stick out of it, relative to its length."""
        weighted = self.span.rows * errors
        scaled = torch.linalg.lstsq(self.span.rows[:, None] * self.reduced, weighted.T).solution.norm(dim=0)
        logits = places @ self.span.logits.T
        own = self.span.rows * logits.softmax(dim=1) * (1 + logits.abs().amax(dim=1, keepdim=True))
        allowed: Tensor = self.unit * (self.size * scaled + own.norm(dim=1)) / weighted.norm(dim=1).clamp(min=TINY)
        return allowed

    def whole(self) -> Whole:
        """Fit all samples to the gradient together; where some are missing, the others stay as they were found."""
        places, shares = self.found.places, self.found.shares
        base, step = self.families.parts(self.found.family)
        if len(shares) != self.span.rank:
            return Whole(base + shares[:, None] * step, places, torch.full_like(shares, math.inf))
        best = _fitted(self, places, shares, base, step)
        for _ in range(WHOLE_STEPS):
            damped = best.square + 1e-14 * torch.diag(best.square.diagonal())
            change = torch.linalg.solve_ex(damped, best.slope)[0].reshape(len(shares), -1)
            new_places = places - change[:, : self.span.rank]
            new_shares = shares - change[:, -1] if self.families.free else shares
            new = _fitted(self, new_places, new_shares, base, step)
            if not new.misfit < best.misfit:
                break
            places, shares, best = new_places, new_shares, new
        opened = torch.zeros_like(shares)
        if self.families.free:
            spare = max(1, self.reduced.numel() - len(best.slope))
            variance = torch.linalg.pinv(best.square, hermitian=True).diagonal().clamp(min=0) * best.misfit**2 / spare
            opened = 3 * variance.reshape(len(shares), -1)[:, -1].sqrt() * step.abs().sum(dim=1)
        return Whole(base + shares[:, None] * step, places, opened)


@dataclass(frozen=True)
class Whole:
    """All samples of a batch: `labels` (n, C), `places` (n, B), and how far each label is open (n,), in L1."""

    labels: Tensor
    places: Tensor
    open: Tensor


@dataclass(frozen=True)
class _Fit:
    """The normal equations of all samples' unknowns at once: JᵀJ, Jᵀr, ‖r‖ with r = R (G V − Σ d qᵀ / B)."""

    square: Tensor
    slope: Tensor
    misfit: float


def _fitted(search: _Search, places: Tensor, shares: Tensor, base: Tensor, step: Tensor) -> _Fit:
    """Return the normal equations for samples at q (n, B) and s (n,).

    Sample b adds d_b q_bᵀ, so its unknown j moves T_bj q_bᵀ + d_b e_jᵀ, where T_b is the derivative of d_b and e_j is
    zero for s. The inner products of such matrices are made from those of their factors.
    """
    span, free, count = search.span, search.families.free, len(shares)
    p = (places @ span.logits.T).softmax(dim=1)
    errors = span.rows * (p - base - shares[:, None] * step)
    slopes = (span.rows * p).unsqueeze(2) * (span.logits - (p @ span.logits).unsqueeze(1))
    longer = places
    if free:
        slopes = torch.cat([slopes, (-span.rows * step).unsqueeze(2)], dim=2)
        longer = torch.cat([places, torch.zeros_like(shares)[:, None]], dim=1)
    size = slopes.shape[2]
    flat = slopes.transpose(0, 1).reshape(slopes.shape[1], -1)
    unit = torch.diag((torch.arange(size) < span.rank).to(places))
    inner = (flat.T @ flat).reshape(count, size, count, size) * (places @ places.T)[:, None, :, None]
    across = (flat.T @ errors.T).reshape(count, size, count)[:, :, :, None] * longer[:, None, None, :]
    inner = inner + across + across.permute(2, 3, 0, 1)
    inner = inner + (errors @ errors.T)[:, None, :, None] * unit[None, :, None, :]
    rest = span.rows[:, None] * search.reduced * span.rank - errors.T @ places
    slope = -torch.einsum("bcj,ck,bk->bj", slopes, rest, places)
    slope[:, : span.rank] -= errors @ rest
    total = count * size
    return _Fit(inner.reshape(total, total), slope.reshape(total), float(rest.norm()))


def descended(
    span: Span, base: Tensor, step: Tensor, places: Tensor, shares: Tensor, free: int, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn the errors of P labels into the span, by Levenberg-Marquardt; return q, s and the squared sine of the angle.

    With e = R (softmax(A q) − y₀ − s y₁), R the rows' weights, the residual is (I − UUᵀ) e / ‖e‖.
    """
    rank = places.shape[1]
    damping = torch.full_like(shares, 1e-3)
    rows, errors = span.rows, span.errors

    def residual(q: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p = (q @ span.logits.T).softmax(dim=1)
        e = rows * (p - base - s[:, None] * step)
        size = e.norm(dim=1, keepdim=True).clamp(min=TINY)
        e = e / size
        r = e - (e @ errors) @ errors.T
        return p, size, e, r

    p, size, e, r = residual(places, shares)
    cost = r.square().sum(dim=1)
    for _ in range(steps):
        mean = p @ span.logits
        jacobian = (rows * p / size).unsqueeze(2) * (span.logits - mean.unsqueeze(1))
        if free:
            jacobian = torch.cat([jacobian, (-rows * step / size).unsqueeze(2)], dim=2)
        along = (e.unsqueeze(1) @ jacobian)[:, 0]
        out = (r.unsqueeze(1) @ jacobian)[:, 0]
        inside = errors.T @ jacobian
        square = jacobian.mT @ jacobian - inside.mT @ inside
        cross = out.unsqueeze(2) * along.unsqueeze(1)
        square = square - cross - cross.mT + cost[:, None, None] * along.unsqueeze(2) * along.unsqueeze(1)
        slope = out - cost[:, None] * along
        diagonal = square.diagonal(dim1=1, dim2=2).clamp(min=TINY)
        diagonal = torch.maximum(diagonal, 1e-12 * diagonal.amax(dim=1, keepdim=True))
        damped = square + torch.diag_embed((damping[:, None] + 1e-15) * diagonal)
        change = torch.linalg.solve_ex(damped, slope)[0].nan_to_num(0, 0, 0)
        new_places = places - change[:, :rank]
        new_shares = shares - change[:, rank] if free else shares
        new = residual(new_places, new_shares)
        new_cost = new[3].square().sum(dim=1)
        better = new_cost < cost
        wide = better[:, None]
        places, shares = torch.where(wide, new_places, places), torch.where(better, new_shares, shares)
        p, size, e, r = (torch.where(wide, one, other) for one, other in zip(new, (p, size, e, r), strict=True))
        cost = torch.where(better, new_cost, cost)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e12)
    return places, shares, cost
