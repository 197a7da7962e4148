"""Run Adam and L-BFGS on many attacks at once, with a separate optimizer state for each attack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak import reporting
from gradleak.arguments import check_fields
from gradleak.devices import Replayed, accelerated, steps_a_read
from gradleak.errors import InputError

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# The schedule of geiping2020 and wang2024: the rate falls to a tenth after each of these shares of the steps.
DECAY = (3 / 8, 5 / 8, 7 / 8)
# The tolerances of torch's L-BFGS.
LEAST_SLOPE, LEAST_CHANGE = 1e-7, 1e-9
LEAST_CURVATURE = 1e-10
# The share of the decrease predicted by the slope that a step must achieve (Armijo), and the number of tries.
ARMIJO = 1e-4
TRIES = 20
POINTS = 100
# On a GPU ended attacks are removed when they are at least this share: they cost little, and every removal costs a new
# CUDA graph.
GONE = 1 / 8


@dataclass(frozen=True)
class Adam:
    """Settings of Adam.

    Attributes:
        steps: The number of steps.
        rate: The rate of the first step.
        signed: Whether Adam gets only the sign of each derivative instead of its value.
        decay: The shares of all steps after which the rate falls to a tenth.
        spread: The standard deviation of random starts.
    """

    steps: int = 4800
    rate: float = 0.1
    signed: bool = False
    decay: tuple[float, ...] = DECAY
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class LBFGS:
    """Settings of L-BFGS.

    Attributes:
        steps: The number of steps.
        rate: The length of a step relative to the quasi-Newton step.
        inner: The number of iterations in a step.
        history: The number of pairs of steps and gradient changes that are kept.
        search: Whether a backtracking line search shortens a step until the loss falls enough, so that no run diverges.
            Otherwise every step has its full length, as in torch's optimizer and in the published code.
        decay: The shares of all steps after which the rate falls to a tenth.
        spread: The standard deviation of random starts.
    """

    steps: int = 300
    rate: float = 1.0
    inner: int = 20
    history: int = 100
    search: bool = True
    decay: tuple[float, ...] = ()
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class Track:
    """The best iterate of each of A attacks, and the course of their losses.

    Attributes:
        best: The best iterates (A, P).
        losses: The least losses (A,).
        bad: The number of losses that were not finite (A,).
        lost: Whether a loss or slope that was not finite ended the search (A,).
        settled: Whether the search converged (A,).
        steps: The number of steps of the whole search.
        watch: Called with the step and the best iterates whenever the history is written.
        history: About a hundred steps, each with the least losses so far (A,).
        taken: The number of steps taken.
    """

    best: Tensor
    losses: Tensor
    bad: Tensor
    lost: Tensor
    settled: Tensor
    steps: int
    watch: Callable[[int, Tensor], None] | None = None
    history: list[tuple[int, Tensor]] = field(default_factory=list)
    taken: int = 0
    # The number of steps after which some attack was still running.
    busy: Tensor | int = 0

    @classmethod
    def start(cls, places: Tensor, steps: int, watch: Callable[[int, Tensor], None] | None = None) -> Track:
        """Return a track that begins at the attacks' starts (A, P)."""
        count = len(places)
        losses = places.new_full((count,), torch.inf)
        zeros = torch.zeros(count, dtype=torch.long, device=places.device)
        return cls(places.clone(), losses, zeros, zeros.bool(), zeros.bool(), steps, watch)

    def rounds(self) -> Iterator[int]:
        """Yield the numbers of the steps, and show the progress of the search."""
        return reporting.steps(range(self.steps), self.steps, f"matching, {len(self.best)} at once")

    def see(self, active: Tensor, places: Tensor, losses: Tensor, going: Tensor | None = None) -> None:
        """Record iterates (a, P) of the attacks `active` (a,), which are in order, and their losses (a,).

        Attacks where `going` (a,) is false are ignored.
        """
        if len(self.best) == len(active) == 1 and not accelerated(losses.device):
            # Numbers are compared faster than tensors of one number.
            if going is None or going:
                if (loss := float(losses)) < float(self.losses):
                    self.best, self.losses = places.clone(), losses
                if not abs(loss) < math.inf:
                    self.bad = self.bad + 1
            return
        best, least = self._of("best", active), self._of("losses", active)
        better, bad = losses < least, ~(losses.abs() < torch.inf)
        if going is not None:
            better, bad = better & going, bad & going
        self._set("best", active, torch.where(better[:, None], places, best))
        self._set("losses", active, torch.where(better, losses, least))
        self._set("bad", active, self._of("bad", active) + bad)

    def end(self, active: Tensor, *, settled: Tensor, lost: Tensor | None = None) -> None:
        """Record which of the attacks `active` (a,), which are in order, have converged, and which have diverged."""
        self._set("settled", active, self._of("settled", active) | settled)
        if lost is not None:
            self._set("lost", active, self._of("lost", active) | lost)

    def _of(self, name: str, active: Tensor) -> Tensor:
        values: Tensor = getattr(self, name)
        return values if len(active) == len(values) else values[active]

    def _set(self, name: str, active: Tensor, values: Tensor) -> None:
        if len(active) == len(self.best):
            setattr(self, name, values)
        else:
            getattr(self, name)[active] = values

    def finish(self) -> None:
        """Discard the steps after the last attack ended, because on a GPU the host reads this some steps later."""
        self.taken = int(self.busy) + 1
        self.history = [(step, losses) for step, losses in self.history if step <= self.taken]

    @property
    def stride(self) -> int:
        """The number of steps from one point of the history to the next."""
        return max(1, self.steps // POINTS)

    def stepped(self, step: int, going: Tensor | None = None) -> None:
        """Record the end of a step, at which the attacks `going` (a,) have not ended, and write the history if due."""
        self.taken = step
        if going is not None:
            # On a CPU attacks that have ended are removed at once.
            self.busy = self.busy + (going.any() if accelerated(going.device) else len(going) > 0)
        if step % self.stride == 0 or step == self.steps:
            self.history.append((step, self.losses.clone()))
            if self.watch:
                self.watch(step, self.best)


def schedule(rate: float, step: int, steps: int, decay: tuple[float, ...]) -> float:
    """Return the rate at a step: a tenth of it after each of the shares `decay` of all steps."""
    return rate * 0.1 ** sum(step >= int(steps * part) for part in decay)


def _staying(going: Tensor) -> Tensor | None:
    """Return the indices of the attacks that have not ended, or None if too few have ended to remove them."""
    stay = going.nonzero()[:, 0]
    least = max(1.0, GONE * len(going)) if accelerated(going.device) else 1
    return stay if len(going) - len(stay) >= least or not len(stay) else None


def all_finite(losses: Tensor, slopes: Tensor) -> Tensor:
    """Return whether the loss and the slopes (A, P) of each attack are finite (A,)."""
    return torch.maximum(losses.abs(), slopes.abs().amax(dim=1)) < torch.inf


def _all_running(losses: Tensor, slopes: Tensor, enough: float) -> bool:
    """Return whether all losses and slopes are finite, and all losses larger than `enough`.

    This is asked in every step, and numbers are compared faster than tensors.
    """
    least, most = losses.aminmax()
    return enough < least.item() and most.item() < math.inf and slopes.abs().max().item() < math.inf


class Moments:
    """Adam's running means of the slopes of A attacks and of their squares, (A, P) each."""

    def __init__(self, places: Tensor) -> None:
        self.mean, self.square = torch.zeros_like(places), torch.zeros_like(places)
        self.taken = 0

    def keep(self, stay: Tensor) -> None:
        """Keep only the attacks with the indices `stay`."""
        self.mean, self.square = self.mean[stay], self.square[stay]

    def moved(self, places: Tensor, slopes: Tensor, rate: float) -> Tensor:
        """Return the places (A, P) after a step."""
        self.taken += 1
        self.mean.lerp_(slopes, 0.1)
        self.square.mul_(0.999).addcmul_(slopes, slopes, value=0.001)
        size = (self.square / (1 - 0.999**self.taken)).sqrt_().add_(1e-8)
        return places - (rate / (1 - 0.9**self.taken) * self.mean).div_(size)


def adam(
    settings: Adam, evaluate: Evaluate, places: Tensor, track: Track, boxed: Callable[[Tensor], Tensor], enough: float
) -> None:
    """Run Adam on A attacks; an attack ends if it is not finite, or if its loss is at most `enough`."""
    active = torch.arange(len(places), device=places.device)
    going = torch.ones_like(active, dtype=torch.bool)
    moments, every = Moments(places), steps_a_read(places.device)
    for step in track.rounds():
        losses, slopes = evaluate(places, active)
        # If the host reads every step, attacks that have ended are already removed.
        track.see(active, places, losses, going if every > 1 else None)
        if every > 1 or not _all_running(losses, slopes, enough):
            finite = all_finite(losses, slopes)
            running = finite & (losses > enough)
            track.end(active, lost=going & ~finite, settled=going & (losses <= enough))
            going = going & running
            due = (step + 1) % every == 0 or step + 1 == settings.steps
            if due and (stay := _staying(going)) is not None:
                active, places, slopes, going = (value[stay] for value in (active, places, slopes, going))
                moments.keep(stay)
        if settings.signed:
            slopes = slopes.sign()
        rate = schedule(settings.rate, step, settings.steps, settings.decay)
        places = boxed(moments.moved(places, slopes, rate))
        track.stepped(step + 1, going)
        if len(active) == 0:
            track.finish()
            return
    track.see(active, places, evaluate(places, active)[0], going)


class _Memory:
    """The last pairs of steps s and gradient changes y of A attacks, and the products that L-BFGS needs."""

    def __init__(self, places: Tensor, history: int, relative: bool) -> None:
        count, size = places.shape
        self.length, self.relative = history, relative
        self.s, self.y = (places.new_zeros(count, history, size) for _ in range(2))
        # sᵢ·yⱼ and yᵢ·yⱼ by slots; when all slots are full, the oldest is overwritten.
        self.sy, self.yy = (places.new_zeros(count, history, history, dtype=torch.float64) for _ in range(2))
        # sᵢ·g and yᵢ·g with each attack's current gradient g.
        self.sg, self.yg = (places.new_zeros(count, history, dtype=torch.float64) for _ in range(2))
        self.pushed = torch.zeros(count, dtype=torch.long, device=places.device)
        self.scale = places.new_ones(count, dtype=torch.float64)
        # An upper bound on the number of slots in use; only on a CPU the exact number can be read without delay.
        self.most, self.reads = 0, steps_a_read(places.device) == 1
        self._multiply, self._direct = Replayed(self._multiplied), Replayed(self._directed)

    def keep(self, stay: Tensor) -> None:
        """Keep only the attacks with the indices `stay`."""
        for name in ("s", "y", "sy", "yy", "sg", "yg", "pushed", "scale"):
            setattr(self, name, getattr(self, name)[stay])

    def forget(self, lost: Tensor) -> None:
        """Forget the pairs of the attacks where `lost` (A,) is true."""
        self.pushed.masked_fill_(lost, 0)
        self.scale.masked_fill_(lost, 1)

    def push(self, which: Tensor | None, s: Tensor, y: Tensor, slopes: Tensor, taken: Tensor) -> None:
        """Record steps s of the attacks `which` (a,) that changed their gradient by y to `slopes`, (a, P) each.

        Attacks where `taken` (a,) is false did not move. A pair is kept only if its curvature is positive. All products
        with the history are computed together, because reading the history dominates the cost of a step.

        Args:
            which: The indices of the attacks; None for all of them.
            s: The steps.
            y: The changes of the gradient.
            slopes: The gradients after the steps.
            taken: Which attacks moved.
        """
        unit = s.norm(dim=1) * y.norm(dim=1) if self.relative else 1.0
        curved = taken & ((s * y).sum(dim=1) > LEAST_CURVATURE * unit)
        rows = torch.stack([s, y, slopes], dim=1)
        if which is not None:
            # Compute unused products for the other attacks, because selecting histories would cost more.
            taken, curved, rows = (
                value.new_zeros(len(self.s), *value.shape[1:]).index_copy_(0, which, value)
                for value in (taken, curved, rows)
            )
        slot = self.pushed % self.length
        self.pushed += curved
        self.most += 1
        self._multiply(rows, slot, taken, curved, self._held())

    def _multiplied(self, rows: Tensor, slot: Tensor, taken: Tensor, curved: Tensor, held: Tensor) -> tuple[()]:
        """Put new pairs into their slots, and compute the products of their rows with the history."""
        for history, new in ((self.s, rows[:, 0]), (self.y, rows[:, 1])):
            _put(history, 1, slot, torch.where(curved[:, None], new, _taken_from(history, 1, slot)))
        used = held.shape[1]
        if used == 0:
            return ()
        # Of rows that are not contiguous the product takes twice the time.
        by_s = torch.bmm(rows[:, 1:].contiguous(), held.mT).double()
        by_y = torch.bmm(rows, self.y[:, :used].mT).double()
        for products, update in ((self.sg, by_s[:, 1]), (self.yg, by_y[:, 2])):
            products[:, :used] = torch.where(taken[:, None], update, products[:, :used])
        slot = slot.clamp(max=used - 1)
        for products, row, column in ((self.sy, by_y[:, 0], by_s[:, 0]), (self.yy, by_y[:, 1], by_y[:, 1])):
            part = products[:, :used, :used]
            _put(part, 1, slot, torch.where(curved[:, None], row, _taken_from(part, 1, slot)))
            _put(part, 2, slot, torch.where(curved[:, None], column, _taken_from(part, 2, slot)))
        self_products = [_taken_from(_taken_from(products, 1, slot), 1, slot) for products in (self.sy, self.yy)]
        self.scale.copy_(torch.where(curved, self_products[0] / self_products[1], self.scale))
        return ()

    def _held(self) -> Tensor:
        """Return the steps (A, n, P) in the slots in use, or in more of them until their number is read."""
        if self.reads:
            self.most = int(self.pushed.max()) if len(self.pushed) else 0
        # A full history is always the same tensor, so that the work on it can be recorded.
        return self.s if self.most >= self.length else self.s[:, : self.most]

    def direction(self, slopes: Tensor) -> Tensor:
        """Return −H g (A, P) for the L-BFGS inverse Hessian H, in Byrd, Nocedal and Schnabel's compact form.

        The `slopes` g must be those of the last push.
        """
        return self._direct(slopes, self._held())[0]

    def _directed(self, slopes: Tensor, s: Tensor) -> tuple[Tensor]:
        used = s.shape[1]
        if used == 0:
            return (-slopes,)
        count = self.pushed.clamp(max=self.length).unsqueeze(1)
        slot = torch.arange(used, device=slopes.device).unsqueeze(0)
        filled = slot < count
        # The slots from the oldest pair to the newest, then the slots that are not filled.
        order = torch.where(filled, (self.pushed.unsqueeze(1) - count + slot) % self.length, slot)
        along, across = (products[:, :used] * filled for products in (self.sg, self.yg))
        pairs = order.unsqueeze(2) * self.length + order.unsqueeze(1)
        # sᵢ·yⱼ from the oldest pair to the newest. Only the part above the diagonal is read, and of the slots that are
        # not filled only the diagonal matters.
        ordered = self.sy.flatten(1).gather(1, pairs.flatten(1)).view_as(pairs)
        ordered.diagonal(dim1=1, dim2=2).masked_fill_(~filled, 1)
        scale = self.scale.unsqueeze(1)

        def solved(matrix: Tensor, values: Tensor, *, upper: bool) -> Tensor:
            solution = torch.linalg.solve_triangular(matrix, values.gather(1, order).unsqueeze(2), upper=upper)
            return torch.empty_like(values).scatter_(1, order, solution.squeeze(2))

        first = solved(ordered, along, upper=True)
        diagonal = self.sy.diagonal(dim1=1, dim2=2)[:, :used]
        middle = diagonal * first + scale * torch.bmm(self.yy[:, :used, :used], first.unsqueeze(2)).squeeze(2)
        second = solved(ordered.mT, (middle - scale * across) * filled, upper=False)
        weights = torch.stack([second * filled, -scale * first], dim=1)
        weights = weights.to(slopes)
        correction = torch.baddbmm(torch.bmm(weights[:, :1], s), weights[:, 1:], self.y[:, :used]).squeeze(1)
        return (-(scale.to(slopes) * slopes + correction),)


def _places(values: Tensor, dimension: int, slot: Tensor) -> Tensor:
    """Return indices that name, in a dimension of values (A, …), the place `slot` (A,) of each attack."""
    shape = list(values.shape)
    shape[dimension] = 1
    return slot.reshape(-1, *[1] * (values.ndim - 1)).expand(shape)


def _taken_from(values: Tensor, dimension: int, slot: Tensor) -> Tensor:
    """Return what values (A, …) hold in a dimension at each attack's place."""
    return values.gather(dimension, _places(values, dimension, slot)).squeeze(dimension)


def _put(values: Tensor, dimension: int, slot: Tensor, new: Tensor) -> None:
    """Write into values (A, …) at each attack's place in a dimension.

    Indexing would do the same. In torch's deterministic mode it sorts the indices first, with many kernels.
    """
    values.scatter_(dimension, _places(values, dimension, slot), new.unsqueeze(dimension))


def lbfgs(settings: LBFGS, evaluate: Evaluate, places: Tensor, track: Track, enough: float) -> None:
    """Run L-BFGS on A attacks, each with its own history; an attack ends if it has converged or is not finite."""
    if settings.history < 1 or settings.inner < 1:
        raise InputError(f"history and inner must be at least 1; got {settings.history} and {settings.inner}")
    searching = _Paced if accelerated(places.device) else _Searched
    run = searching if settings.search else _Plain
    attack = run(settings, evaluate, places.clone(), track, enough)
    for step in track.rounds():
        attack.step(step)
        track.stepped(step + 1, attack.going_after(step))
        if len(attack.active) == 0:
            track.finish()
            return
    if not attack.going.any():
        track.finish()


class _Run:
    """The state of L-BFGS with or without a line search: places, losses, slopes and pairs of the running attacks.

    `going` (A,) says which attacks have not ended. The others are removed when the host next reads it.
    """

    def __init__(self, settings: LBFGS, evaluate: Evaluate, places: Tensor, track: Track, enough: float) -> None:
        self.settings, self.evaluate, self.track, self.enough = settings, evaluate, track, enough
        self.places = places
        self.active = torch.arange(len(places), device=places.device)
        self.going = torch.ones_like(self.active, dtype=torch.bool)
        self.every, self.unread = steps_a_read(places.device), 0
        self.memory = _Memory(places, settings.history, relative=settings.search)
        self.losses, self.slopes = evaluate(places, self.active)
        track.see(self.active, places, self.losses)
        self.fresh = torch.ones_like(self.active, dtype=torch.bool)
        self._leave(self._over())

    def going_after(self, step: int) -> Tensor:
        """Return which attacks (A,) had not ended after a step."""
        return self.going

    def _rate(self, step: int) -> float:
        return schedule(self.settings.rate, step, self.settings.steps, self.settings.decay)

    def _over(self) -> Tensor:
        """Return which attacks end: those that are not finite, have a loss of at most `enough`, or no slope."""
        finite = all_finite(self.losses, self.slopes)
        # Without a line search use torch's tolerance. A line search detects convergence when it finds no step.
        least = 0.0 if self.settings.search else LEAST_SLOPE
        flat = finite & ((self.slopes.abs().amax(dim=1) <= least) | (self.losses <= self.enough))
        self.track.end(self.active, lost=self.going & ~finite, settled=self.going & flat)
        return ~finite | flat

    def _leave(self, gone: Tensor) -> None:
        """End the attacks where `gone` (A,) is true."""
        self.going = self.going & ~gone
        if self._due() and len(self.active):
            self.unread = 0
            self._remove()

    def _remove(self) -> None:
        """Remove the attacks that have ended, if it is worth it."""
        stay = _staying(self.going)
        if stay is not None:
            for name in ("places", "active", "losses", "slopes", "fresh", "going"):
                setattr(self, name, getattr(self, name)[stay])
            self.memory.keep(stay)

    def _due(self) -> bool:
        """Return whether to read now which attacks have ended."""
        return self.every == 1 or self.unread >= self.every

    def _first(self, rate: float) -> Tensor:
        """Return the length (A,) of a first step, which goes along the steepest descent."""
        return rate * (1 / self.slopes.abs().sum(dim=1)).clamp(max=1)


class _Searched(_Run):
    """L-BFGS with a backtracking line search: the loss of an attack never rises."""

    def step(self, step: int) -> None:
        """Take up to `inner` iterations."""
        for _ in range(self.settings.inner):
            if len(self.active) == 0:
                return
            self.unread += 1
            every = torch.ones_like(self.going)
            direction, promised, length, steepest = self._aimed(self._rate(step), every)
            moved, losses, slopes, taken = self._searched(direction, promised, length)
            # A search that fails even along the steepest descent has converged: the loss is flat within rounding.
            stuck = ~taken & steepest
            self.memory.forget(~taken)
            self.memory.push(None, moved - self.places, slopes - self.slopes, slopes, taken)
            self.places, self.losses, self.slopes = moved, losses, slopes
            self.track.end(self.active, settled=self.going & stuck)
            self._leave(self._over() | stuck)

    def _aimed(self, rate: float, starting: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return a direction (A, P) for the attacks that start an iteration, the slope along it, the first length, and
        whether it is the steepest descent.

        If L-BFGS gives no descent, its pairs are forgotten.
        """
        direction = self.memory.direction(self.slopes)
        promised = (direction * self.slopes).sum(dim=1)
        invalid = starting & (~(promised < 0) | ~torch.isfinite(direction).all(dim=1))
        self.memory.forget(invalid)
        direction = torch.where(invalid[:, None], -self.slopes, direction)
        promised = torch.where(invalid, -self.slopes.square().sum(dim=1), promised)
        steepest = self.memory.pushed == 0
        return direction, promised, torch.where(steepest, self._first(rate), torch.full_like(promised, rate)), steepest

    def _searched(self, direction: Tensor, promised: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        moved, losses, slopes = self.places.clone(), self.losses.clone(), self.slopes.clone()
        taken = torch.zeros_like(self.going)
        rows, active, searching = torch.arange(len(self.active), device=self.active.device), self.active, self.going
        for _ in range(TRIES):
            trial = self.places[rows] + length[rows, None] * direction[rows]
            trial_losses, trial_slopes = self.evaluate(trial, active)
            self.track.see(active, trial, trial_losses, searching)
            enough, shrink = _judged(self.losses[rows], length[rows] * promised[rows], trial_losses, trial_slopes)
            accepted = searching & enough
            for values, update in ((moved, trial), (slopes, trial_slopes)):
                values[rows] = torch.where(accepted[:, None], update, values[rows])
            losses[rows], taken[rows] = torch.where(accepted, trial_losses, losses[rows]), accepted
            length[rows] *= shrink
            rows = rows[(searching & ~accepted).nonzero()[:, 0]]
            if len(rows) == 0:
                break
            active, searching = self.active[rows], torch.ones_like(rows, dtype=torch.bool)
        return moved, losses, slopes, taken


def _judged(losses: Tensor, gain: Tensor, trial_losses: Tensor, trial_slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of A trial steps lower the loss enough, and the factor by which to shorten the others.

    The factor is the minimum of the parabola through both losses and the slope, limited to 0.1 to 0.5.

    Args:
        losses: The losses before the step.
        gain: The change of the loss that the slope predicts.
        trial_losses: The losses after the step.
        trial_slopes: The slopes there.
    """
    finite = all_finite(trial_losses, trial_slopes)
    enough = finite & (trial_losses < losses) & (trial_losses <= losses + ARMIJO * gain)
    minimum = -gain / (2 * (trial_losses - losses - gain))
    return enough, torch.where(finite, minimum, torch.full_like(minimum, 0.1)).nan_to_num(0.5).clamp(0.1, 0.5)


class _Paced(_Searched):
    """The same search at each attack's own pace, for a GPU: no attack waits for the line search of another.

    Every round evaluates one trial step of each attack. An attack that accepts its step begins its next iteration in
    the next round, while others shorten their steps. They wait for each other only at the points of the history, so the
    host rarely reads their state, and the batch keeps its shape.
    """

    def step(self, step: int) -> None:
        """Take the iterations of all steps up to the next point of the history."""
        stride = self.track.stride if not self.settings.decay else 1
        if step % stride or len(self.active) == 0:
            return
        self.first, budget = step, self.settings.inner * min(stride, self.settings.steps - step)
        self.taken = torch.zeros_like(self.active)
        starting, tries = torch.ones_like(self.going), torch.zeros_like(self.active)
        aim = self._aimed(self._rate(step), starting)
        for round in itertools.count(1):
            direction, promised, length, steepest = aim
            searching = self.going & (self.taken < budget)
            trial = self.places + length[:, None] * direction
            losses, slopes = self.evaluate(trial, self.active)
            self.track.see(self.active, trial, losses, searching)
            enough, shrink = _judged(self.losses, length * promised, losses, slopes)
            accepted, tries = searching & enough, tries + 1
            failed = searching & ~accepted & (tries == TRIES)
            self.memory.forget(failed)
            self.memory.push(None, trial - self.places, slopes - self.slopes, slopes, accepted)
            self.places = torch.where(accepted[:, None], trial, self.places)
            self.slopes = torch.where(accepted[:, None], slopes, self.slopes)
            self.losses = torch.where(accepted, losses, self.losses)
            starting = accepted | failed
            self.taken, tries = self.taken + starting, tries.masked_fill(starting, 0)
            stuck = failed & steepest
            self.track.end(self.active, settled=self.going & stuck)
            self.going = self.going & ~(self._over() | stuck)
            # No attack can be ready earlier. Every read makes the host wait for the GPU.
            if round >= budget and (round - budget) % self.every == 0:
                busy = (self.going & (self.taken < budget)).any()
                some, self.memory.most = torch.stack([busy.long(), self.memory.pushed.max()]).tolist()
                if not some:
                    return
            new = self._aimed(self._rate(step), starting)
            aim = (
                torch.where(starting[:, None], new[0], direction),
                torch.where(starting, new[1], promised),
                torch.where(starting, new[2], length * shrink),
                torch.where(starting, new[3], steepest),
            )

    def going_after(self, step: int) -> Tensor:
        """Return which attacks had not ended after a step; those that ended early in these steps are removed now."""
        later = self.going | (self.taken > self.settings.inner * (step + 1 - self.first))
        if (step + 1) % self.track.stride == 0 or self.settings.decay:
            self._remove()
        return later


class _Plain(_Run):
    """L-BFGS without a line search, as torch's optimizer runs it for a single attack."""

    def step(self, step: int) -> None:
        """Take up to `inner` iterations; an attack stops early after a tiny change, as torch's optimizer does."""
        rate = self._rate(step)
        inside, active = self.going, self.active
        # The indices of the attacks that move in this step; None for all of them.
        rows: Tensor | None = None
        for _ in range(self.settings.inner):
            direction = self.memory.direction(self.slopes)
            length = torch.where(self.fresh, self._first(rate), torch.full_like(self.losses, rate))
            promised = (direction * self.slopes).sum(dim=1)
            inside = inside & (promised <= -LEAST_CHANGE)
            if self._due():
                self.unread = 0
                stay = _staying(_at(inside, rows))
                if stay is not None:
                    rows, active = stay if rows is None else rows[stay], active[stay]
                if len(active) == 0:
                    break
            self.unread += 1
            moving, moves = _at(inside, rows), _at(length[:, None] * direction, rows)
            places, old_losses, old_slopes = (_at(value, rows) for value in (self.places, self.losses, self.slopes))
            moved = places + moves
            losses, slopes = self.evaluate(moved, active)
            self.track.see(active, moved, losses, moving)
            self.memory.push(rows, moves, slopes - old_slopes, slopes, moving)
            change = (losses - old_losses).abs()
            self.places = _with(self.places, rows, torch.where(moving[:, None], moved, places))
            self.slopes = _with(self.slopes, rows, torch.where(moving[:, None], slopes, old_slopes))
            self.losses = _with(self.losses, rows, torch.where(moving, losses, old_losses))
            self.fresh = _with(self.fresh, rows, _at(self.fresh, rows) & ~moving)
            ended = (moves.abs().amax(dim=1) <= LEAST_CHANGE) | (change < LEAST_CHANGE) | ~torch.isfinite(losses)
            inside = _with(inside, rows, moving & ~ended)
        # An attack whose next step predicts no decrease would never move again.
        promised = (self.memory.direction(self.slopes) * self.slopes).sum(dim=1)
        flat = promised > -LEAST_CHANGE
        self.track.end(self.active, settled=self.going & flat)
        self._leave(self._over() | flat)


def _at(values: Tensor, rows: Tensor | None) -> Tensor:
    """Return the rows of values, or all values if there are no row numbers."""
    return values if rows is None else values[rows]


def _with(values: Tensor, rows: Tensor | None, new: Tensor) -> Tensor:
    """Return values with new ones in these rows, or all new ones if there are no row numbers."""
    return new if rows is None else values.index_copy(0, rows, new)
