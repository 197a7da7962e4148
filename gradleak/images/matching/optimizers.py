"""First-order searches over many attacks at once: Adam and L-BFGS, each attack with a state of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak import reporting
from gradleak.devices import steps_a_read
from gradleak.errors import InputError

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# The decay of geiping2020, which wang2024 took over: a tenth of the rate from each of these parts of the way on.
DECAY = (3 / 8, 5 / 8, 7 / 8)
# torch's L-BFGS stops below these.
LEAST_SLOPE, LEAST_CHANGE = 1e-7, 1e-9
LEAST_CURVATURE = 1e-10
# The part of the descent that the slope promises which a step has to give (Armijo), and how often it is shortened.
ARMIJO = 1e-4
TRIES = 20
POINTS = 100


@dataclass(frozen=True)
class Adam:
    """Adam, raw or on the gradient's sign; the rate falls to a tenth at each of `decay`, parts of all steps.

    `spread`: standard deviation of random starts.
    """

    steps: int = 4800
    rate: float = 0.1
    signed: bool = False
    decay: tuple[float, ...] = DECAY
    spread: float = 1.0


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS, `inner` iterations a step, pairs of the last `history`.

    `search`: a step is shortened until the loss falls enough, so that no run can diverge; otherwise every step is
    taken whole, as torch's optimiser and the published code do, with the rate decaying as Adam's. `spread`: standard
    deviation of random starts.
    """

    steps: int = 300
    rate: float = 1.0
    inner: int = 20
    history: int = 100
    search: bool = True
    decay: tuple[float, ...] = ()
    spread: float = 1.0


@dataclass
class Track:
    """The best iterate of each of A attacks, and how their losses went.

    `best` (A, P), `losses` (A,) the least loss of each, `bad` (A,) how many losses were not finite, `lost` (A,) whether
    one of those ended the search, `settled` (A,) whether it came to its end by itself; `history`: steps and, at each,
    the least losses so far (A,), thinned. `watch` is shown the best iterates when the history is written.
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
    # After how many steps some attack went on.
    busy: Tensor | int = 0

    @classmethod
    def start(cls, places: Tensor, steps: int, watch: Callable[[int, Tensor], None] | None = None) -> Track:
        """Begin at the attacks' starts."""
        count = len(places)
        losses = places.new_full((count,), torch.inf)
        zeros = torch.zeros(count, dtype=torch.long, device=places.device)
        return cls(places.clone(), losses, zeros, zeros.bool(), zeros.bool(), steps, watch)

    def rounds(self) -> Iterator[int]:
        """Give the steps one by one, and show how far the search is."""
        return reporting.steps(range(self.steps), self.steps, f"matching, {len(self.best)} at once")

    def see(self, active: Tensor, places: Tensor, losses: Tensor, going: Tensor | None = None) -> None:
        """Take note of iterates (a, P) of the attacks `active` (a,), and of their losses.

        `active` is in order. `going` (a,): which of them count, all by default.
        """
        best, least = self._of("best", active), self._of("losses", active)
        better, bad = losses < least, ~torch.isfinite(losses)
        if going is not None:
            better, bad = better & going, bad & going
        self._set("best", active, torch.where(better[:, None], places, best))
        self._set("losses", active, torch.where(better, losses, least))
        self._set("bad", active, self._of("bad", active) + bad)

    def end(self, active: Tensor, *, settled: Tensor, lost: Tensor | None = None) -> None:
        """Take note of which of the attacks `active` (a,), in order, settled, and which were lost."""
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
        """Take back the steps since the last attack ended: on a GPU this is read some steps later."""
        self.taken = int(self.busy) + 1
        self.history = [(step, losses) for step, losses in self.history if step <= self.taken]

    def stepped(self, step: int, going: Tensor | None = None) -> None:
        """Write the history, at about a hundred steps of all; `going` (a,): which attacks have not ended."""
        self.taken = step
        if going is not None:
            self.busy = self.busy + going.any()
        if step % max(1, self.steps // POINTS) == 0 or step == self.steps:
            self.history.append((step, self.losses.clone()))
            if self.watch:
                self.watch(step, self.best)


def schedule(rate: float, step: int, steps: int, decay: tuple[float, ...]) -> float:
    """Return the rate of a step."""
    return rate * 0.1 ** sum(step >= int(steps * part) for part in decay)


class Moments:
    """Adam's running means of the slopes of A attacks, and of their squares, (A, P) each."""

    def __init__(self, places: Tensor) -> None:
        self.mean, self.square = torch.zeros_like(places), torch.zeros_like(places)
        self.taken = 0

    def keep(self, stay: Tensor) -> None:
        """Forget the attacks that left."""
        self.mean, self.square = self.mean[stay], self.square[stay]

    def move(self, slopes: Tensor, rate: float) -> Tensor:
        """Return the step (A, P) against slopes, to be taken off the places."""
        self.taken += 1
        self.mean.lerp_(slopes, 0.1)
        self.square.mul_(0.999).addcmul_(slopes, slopes, value=0.001)
        size = (self.square / (1 - 0.999**self.taken)).sqrt_().add_(1e-8)
        return rate / (1 - 0.9**self.taken) * self.mean / size


def adam(
    settings: Adam, evaluate: Evaluate, places: Tensor, track: Track, boxed: Callable[[Tensor], Tensor], enough: float
) -> None:
    """Run Adam on A attacks; an attack that is not finite, or near enough, leaves."""
    active = torch.arange(len(places), device=places.device)
    going = torch.ones_like(active, dtype=torch.bool)
    moments, every = Moments(places), steps_a_read(places.device)
    for step in track.rounds():
        losses, slopes = evaluate(places, active)
        track.see(active, places, losses, going)
        finite = torch.isfinite(losses) & torch.isfinite(slopes).all(dim=1)
        track.end(active, lost=going & ~finite, settled=going & (losses <= enough))
        going = going & finite & (losses > enough)
        if ((step + 1) % every == 0 or step + 1 == settings.steps) and not going.all():
            stay = going.nonzero()[:, 0]
            active, places, slopes, going = (value[stay] for value in (active, places, slopes, going))
            moments.keep(stay)
        if settings.signed:
            slopes = slopes.sign()
        rate = schedule(settings.rate, step, settings.steps, settings.decay)
        places = boxed(places - moments.move(slopes, rate))
        track.stepped(step + 1, going)
        if len(active) == 0:
            track.finish()
            return
    track.see(active, places, evaluate(places, active)[0], going)


class _Memory:
    """The last pairs of steps s and changes of the gradient y of A attacks, and the products that L-BFGS needs."""

    def __init__(self, places: Tensor, history: int, relative: bool) -> None:
        count, size = places.shape
        self.length, self.relative = history, relative
        self.s, self.y = (places.new_zeros(count, history, size) for _ in range(2))
        # sᵢ·yⱼ and yᵢ·yⱼ by slots; a slot is used again when all are full.
        self.sy, self.yy = (places.new_zeros(count, history, history, dtype=torch.float64) for _ in range(2))
        # sᵢ·g and yᵢ·g of the gradient where each attack is.
        self.sg, self.yg = (places.new_zeros(count, history, dtype=torch.float64) for _ in range(2))
        self.pushed = torch.zeros(count, dtype=torch.long, device=places.device)
        self.scale = places.new_ones(count, dtype=torch.float64)
        # How many slots are in use at most, as far as is known without reading; on a CPU reading is free.
        self.most, self.reads = 0, steps_a_read(places.device) == 1

    def keep(self, stay: Tensor) -> None:
        """Forget the attacks that left."""
        for name in ("s", "y", "sy", "yy", "sg", "yg", "pushed", "scale"):
            setattr(self, name, getattr(self, name)[stay])

    def forget(self, lost: Tensor) -> None:
        """Forget the pairs of the attacks where `lost` (A,) is true."""
        self.pushed, self.scale = self.pushed.masked_fill(lost, 0), self.scale.masked_fill(lost, 1)

    def push(self, which: Tensor, s: Tensor, y: Tensor, slopes: Tensor, taken: Tensor) -> None:
        """Move the attacks `which` (a,) by s, which changed their gradient by y to `slopes`, (a, P) each.

        Attacks where `taken` (a,) is false stay. A pair is kept unless its curvature is not positive. Whatever is
        multiplied with the history is so in one go: reading it is what a step costs.
        """
        unit = s.norm(dim=1) * y.norm(dim=1) if self.relative else 1.0
        curved = taken & ((s * y).sum(dim=1) > LEAST_CURVATURE * unit)
        slot, wide = self.pushed[which] % self.length, curved[:, None]
        self.s[which, slot] = torch.where(wide, s, self.s[which, slot])
        self.y[which, slot] = torch.where(wide, y, self.y[which, slot])
        self.pushed[which] += curved
        self.most += 1
        held = self._held()
        if held == 0:
            return
        rows = torch.stack([s, y, slopes], dim=1)
        if len(which) < len(self.s):
            # The others' products are of no use; taking their histories out would cost more.
            rows = rows.new_zeros(len(self.s), *rows.shape[1:]).index_copy_(0, which, rows)
        by_s = torch.bmm(rows[:, 1:], self.s[:, :held].mT).double()[which]
        by_y = torch.bmm(rows, self.y[:, :held].mT).double()[which]
        for products, new in ((self.sg, by_s[:, 1]), (self.yg, by_y[:, 2])):
            products[which, :held] = torch.where(taken[:, None], new, products[which, :held])
        for products, row, column in ((self.sy, by_y[:, 0], by_s[:, 0]), (self.yy, by_y[:, 1], by_y[:, 1])):
            products[which, slot, :held] = torch.where(wide, row, products[which, slot, :held])
            products[which, :held, slot] = torch.where(wide, column, products[which, :held, slot])
        scale = self.sy[which, slot, slot] / self.yy[which, slot, slot]
        self.scale[which] = torch.where(curved, scale, self.scale[which])

    def _held(self) -> int:
        """Return how many slots are in use, or a few more where that was not read yet."""
        if self.reads:
            self.most = int(self.pushed.max()) if len(self.pushed) else 0
        return min(self.length, self.most)

    def direction(self, slopes: Tensor) -> Tensor:
        """Return −H g (A, P), H the inverse Hessian that the pairs tell (Byrd, Nocedal and Schnabel's compact form).

        `slopes` g are those of the last push.
        """
        held = self._held()
        if held == 0:
            return -slopes
        count = self.pushed.clamp(max=self.length).unsqueeze(1)
        place = torch.arange(held, device=slopes.device).unsqueeze(0)
        there = place < count
        order = torch.where(there, (self.pushed.unsqueeze(1) - count + place) % self.length, place)
        s, y = self.s[:, :held], self.y[:, :held]
        along, across = (products[:, :held].gather(1, order) * there for products in (self.sg, self.yg))
        rows = order.unsqueeze(2).expand(-1, -1, held)
        both = there.unsqueeze(2) & there.unsqueeze(1)
        sy, yy = (matrix[:, :held, :held].gather(1, rows).gather(2, rows.mT) * both for matrix in (self.sy, self.yy))
        blank = torch.diag_embed((~there).double())
        upper = sy.triu() + blank
        scale = self.scale.unsqueeze(1)
        first = torch.linalg.solve_triangular(upper, along.unsqueeze(2), upper=True).squeeze(2)
        middle = sy.diagonal(dim1=1, dim2=2) * first + scale * torch.bmm(yy, first.unsqueeze(2)).squeeze(2)
        middle = (middle - scale * across) * there
        second = torch.linalg.solve_triangular(upper.mT, middle.unsqueeze(2), upper=False).squeeze(2)
        into = torch.empty_like(order).scatter_(1, order, place.expand_as(order))
        weights = torch.stack([second * there, -scale * first * there], dim=1).gather(
            2, into.unsqueeze(1).expand(-1, 2, -1)
        )
        weights = weights.to(slopes)
        found = torch.baddbmm(torch.bmm(weights[:, :1], s), weights[:, 1:], y).squeeze(1)
        return -(scale.to(slopes) * slopes + found)


def lbfgs(settings: LBFGS, evaluate: Evaluate, places: Tensor, track: Track, enough: float) -> None:
    """Run L-BFGS on A attacks, each with its own history and step; one that settled or is not finite leaves."""
    if settings.history < 1 or settings.inner < 1:
        raise InputError(f"history and inner must be at least 1; got {settings.history} and {settings.inner}")
    run = _Searched if settings.search else _Plain
    attack = run(settings, evaluate, places.clone(), track, enough)
    for step in track.rounds():
        attack.step(schedule(settings.rate, step, settings.steps, settings.decay))
        track.stepped(step + 1, attack.going)
        if len(attack.active) == 0:
            track.finish()
            return
    if not attack.going.any():
        track.finish()


class _Run:
    """What both kinds of L-BFGS share: places, losses, slopes and pairs of the attacks that are still running.

    `going` (A,): which of these have not ended; those that have leave when this is read.
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

    def _over(self) -> Tensor:
        """Return which attacks are at an end: not finite, near enough, or flat."""
        finite = torch.isfinite(self.losses) & torch.isfinite(self.slopes).all(dim=1)
        # Whole steps end where torch's do; a search knows by itself when nothing is left to gain.
        least = 0.0 if self.settings.search else LEAST_SLOPE
        flat = finite & ((self.slopes.abs().amax(dim=1) <= least) | (self.losses <= self.enough))
        self.track.end(self.active, lost=self.going & ~finite, settled=self.going & flat)
        return ~finite | flat

    def _leave(self, gone: Tensor) -> None:
        """End the attacks where `gone` (A,) is true."""
        self.going = self.going & ~gone
        if not self._due() or len(self.active) == 0:
            return
        self.unread = 0
        # One read for both: whether all go on, and how many pairs there are.
        everyone, self.memory.most = torch.stack([self.going.all().long(), self.memory.pushed.max()]).tolist()
        if not everyone:
            stay = self.going.nonzero()[:, 0]
            for name in ("places", "active", "losses", "slopes", "fresh", "going"):
                setattr(self, name, getattr(self, name)[stay])
            self.memory.keep(stay)

    def _due(self) -> bool:
        """Return whether so many steps were taken that what has ended is read."""
        return self.every == 1 or self.unread >= self.every

    def _first(self, rate: float) -> Tensor:
        """Return the length of a first step, along the slope itself (A,)."""
        return rate * (1 / self.slopes.abs().sum(dim=1)).clamp(max=1)


class _Searched(_Run):
    """L-BFGS with a backtracking line search: the loss of an attack never rises."""

    def step(self, rate: float) -> None:
        """Take up to `inner` steps."""
        for _ in range(self.settings.inner):
            if len(self.active) == 0:
                return
            self.unread += 1
            direction = self.memory.direction(self.slopes)
            promised = (direction * self.slopes).sum(dim=1)
            lost = ~(promised < 0) | ~torch.isfinite(direction).all(dim=1)
            self.memory.forget(lost)
            direction = torch.where(lost[:, None], -self.slopes, direction)
            promised = torch.where(lost, -self.slopes.square().sum(dim=1), promised)
            steepest = self.memory.pushed == 0
            length = torch.where(steepest, self._first(rate), torch.full_like(promised, rate))
            moved, losses, slopes, taken = self._searched(direction, promised, length)
            # A search that finds nothing even along the slope is at an end: the loss is flat to its last digit.
            stuck = ~taken & steepest
            self.memory.forget(~taken)
            everyone = torch.arange(len(taken), device=taken.device)
            self.memory.push(everyone, moved - self.places, slopes - self.slopes, slopes, taken)
            self.places, self.losses, self.slopes = moved, losses, slopes
            self.track.end(self.active, settled=self.going & stuck)
            self._leave(self._over() | stuck)

    def _searched(self, direction: Tensor, promised: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        moved, losses, slopes = self.places.clone(), self.losses.clone(), self.slopes.clone()
        taken = torch.zeros_like(self.going)
        rows, active, open_ = torch.arange(len(self.active), device=self.active.device), self.active, self.going
        for _ in range(TRIES):
            tried = self.places[rows] + length[rows, None] * direction[rows]
            now, slope = self.evaluate(tried, active)
            self.track.see(active, tried, now, open_)
            before, gain = self.losses[rows], length[rows] * promised[rows]
            finite = torch.isfinite(now) & torch.isfinite(slope).all(dim=1)
            good = open_ & finite & (now < before) & (now <= before + ARMIJO * gain)
            for values, new in ((moved, tried), (slopes, slope)):
                values[rows] = torch.where(good[:, None], new, values[rows])
            losses[rows], taken[rows] = torch.where(good, now, before), good
            # The least of the parabola through what is known, within a tenth and a half of the step.
            least = -gain / (2 * (now - before - gain))
            shorter = torch.where(finite, least, torch.full_like(least, 0.1)).nan_to_num(0.5).clamp(0.1, 0.5)
            length[rows] *= shorter
            # The one read of a try.
            rows = rows[(open_ & ~good).nonzero()[:, 0]]
            if len(rows) == 0:
                break
            active, open_ = self.active[rows], torch.ones_like(rows, dtype=torch.bool)
        return moved, losses, slopes, taken


class _Plain(_Run):
    """L-BFGS as torch's optimiser runs it for one attack, with every step taken whole."""

    def step(self, rate: float) -> None:
        """Take `inner` steps; one that changes next to nothing ends an attack's own, as a whole call would."""
        inside, rows = self.going, torch.arange(len(self.active), device=self.active.device)
        for _ in range(self.settings.inner):
            direction = self.memory.direction(self.slopes)
            length = torch.where(self.fresh, self._first(rate), torch.full_like(self.losses, rate))
            promised = (direction * self.slopes).sum(dim=1)
            inside = inside & (promised <= -LEAST_CHANGE)
            if self._due():
                rows, self.unread = inside.nonzero()[:, 0], 0
                if len(rows) == 0:
                    break
            self.unread += 1
            own = inside[rows]
            active = self.active if len(rows) == len(self.active) else self.active[rows]
            moves = (length[:, None] * direction)[rows]
            moved = self.places[rows] + moves
            losses, slopes = self.evaluate(moved, active)
            self.track.see(active, moved, losses, own)
            self.memory.push(rows, moves, slopes - self.slopes[rows], slopes, own)
            change = (losses - self.losses[rows]).abs()
            self.places[rows] = torch.where(own[:, None], moved, self.places[rows])
            self.slopes[rows] = torch.where(own[:, None], slopes, self.slopes[rows])
            self.losses[rows] = torch.where(own, losses, self.losses[rows])
            self.fresh[rows] = self.fresh[rows] & ~own
            ended = (moves.abs().amax(dim=1) <= LEAST_CHANGE) | (change < LEAST_CHANGE) | ~torch.isfinite(losses)
            inside = inside.index_copy(0, rows, own & ~ended)
        # An attack whose next step promises nothing would stay where it is for ever.
        promised = (self.memory.direction(self.slopes) * self.slopes).sum(dim=1)
        flat = promised > -LEAST_CHANGE
        self.track.end(self.active, settled=self.going & flat)
        self._leave(self._over() | flat)
