"""Match gradients by Levenberg-Marquardt, with the residuals of each tensor in units of its rounding."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from gradleak.arguments import check_fields, checked_arguments
from gradleak.calling import called, copy_of
from gradleak.devices import differentiable
from gradleak.errors import InputError
from gradleak.images.matching.optimizers import Track
from gradleak.leak import Gradients, Leak, check_repeatable, naming, only_logits

# The number of columns of the Jacobians that are computed at a time, on a CPU and on a GPU.
CHUNK, GPU_CHUNK = 64, 4096
# A symmetric product is computed in this many strips.
BLOCKS = 8
LEAST_SIZE = 1e-300
LEAST_DAMPING = 1e-15
TRIES = 12
# A rejected step multiplies the damping by GROWS. An accepted step divides the damping by FALLS, or by FALLS_FAST if it
# reduces the misfit to less than the share A_LOT.
GROWS, FALLS, FALLS_FAST, A_LOT = 4.0, 3.0, 10.0, 0.7
# A step that leaves more than the share SETTLED of the misfit is slow. Accelerated steps end after one slow step. Plain
# steps end after PATIENCE slow steps in a row, or when the misfit is at the level of rounding.
SETTLED, PATIENCE = 0.99, 3
# Take another step with the same Jacobian while each step leaves at most this share of the misfit: for accelerated
# steps, and for plain ones.
REUSED, REUSED_PLAIN = 0.5, 0.1


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Settings of Levenberg-Marquardt.

    Geodesic acceleration (transtrum2012) corrects a step to second order. Near convergence it allows longer steps,
    because the misfit is almost flat along a few hundred directions. From a random start it is misleading, so by
    default it begins only when plain steps no longer help.

    Attributes:
        steps: The number of exact Jacobians, in float64.
        damping: The damping of the first step, relative to the diagonal of JᵀJ.
        bent: Whether to use geodesic acceleration from the start.
        spread: The standard deviation of random starts. Starts from N(0, 1) saturate a network's activations.
    """

    steps: int = 30
    damping: float = 1e-3
    bent: bool = False
    spread: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Polished:
    """Inputs (1, …) in float64, and their misfit of the gradient at the start and after every Jacobian."""

    inputs: Tensor
    misfits: tuple[float, ...]


# The settings for a start that is almost right.
POLISH = LevenbergMarquardt(steps=12, damping=1e-8, bent=True)


@checked_arguments()
def polished(leak: Leak, inputs: Tensor, labels: Tensor, *, steps: int = POLISH.steps) -> Polished:
    """Refine one sample's inputs (1, …) until their gradient matches the observed gradient within rounding.

    Args:
        leak: The gradient of a single sample.
        inputs: The inputs (1, …) to start from.
        labels: The sample's label (1, C).
        steps: The number of Jacobians.
    """
    leak.check_one_step("matching")
    if leak.batch_size != 1 or labels.shape != (1, len(leak.weight)):
        raise InputError(f"one sample and its label (1, {len(leak.weight)}) are refined; got {tuple(labels.shape)}")
    check_repeatable(leak.model, inputs.to(leak.weight), len(leak.weight))
    misfit = Misfit([leak], labels.double().unsqueeze(0), inputs.shape)
    places = inputs.double().reshape(1, -1)
    track = Track.start(places, steps)
    owners = torch.zeros(1, dtype=torch.long, device=places.device)
    with naming(f"the search cannot run and differentiate {type(leak.model).__name__}"):
        levenberg(replace(POLISH, steps=steps), misfit, places, owners, track)
    return Polished(track.best.reshape(inputs.shape), tuple(float(losses) for _, losses in track.history))


class Residuals:
    """The differences between the gradients of attacks, which depend on their places, and the observed ones.

    Attributes:
        model: A copy of the network in float64.
        parameters: Its parameters whose gradients were observed.
        rounding: The norm of the residual of the true inputs, which is not zero because gradients are rounded.
    """

    rounding: float

    def __init__(self, leak: Leak) -> None:
        self.model: nn.Module = copy_of(leak.model).double().eval().requires_grad_(False)
        self.parameters: Gradients = {name: self.model.get_parameter(name) for name in leak.gradients}

    def one(self, place: Tensor, *known: Any) -> Tensor:
        """Return the residual (R,) of an attack at its place (P,); `known` is as the method `known` returns it."""
        raise NotImplementedError

    def known(self, owners: Tensor) -> tuple[Any, ...]:
        """Return what is known of the leaks (A,) that are attacked."""
        return ()

    def of(self, owners: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the residuals (A, R) of attacks on these leaks (A,), as a function of their places (A, P)."""
        known = self.known(owners)
        return lambda places: vmap(self.one)(places, *known)

    def jacobian(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the exact Jᵀ of every attack (A, P, R) by forward-mode derivatives, a row for each input entry."""
        units = torch.eye(places.shape[1], dtype=places.dtype, device=places.device)
        columns = max(1, (GPU_CHUNK if places.is_cuda else CHUNK) // len(places))

        def rows(place: Tensor, *known: Any) -> Any:
            return vmap(lambda unit: jvp(lambda at: self.one(at, *known), (place,), (unit,))[1], chunk_size=columns)(
                units
            )

        jacobians: Tensor = vmap(rows)(places, *self.known(owners))
        return jacobians


class Misfit(Residuals):
    """The residuals of gradients with respect to the observed gradients of N leaks, in units of their rounding.

    A single sample's last-layer gradient is d xᵀ, so its products with one vector from each side determine it.
    """

    def __init__(self, leaks: list[Leak], labels: Tensor, shape: torch.Size | tuple[int, ...]) -> None:
        first = leaks[0]
        super().__init__(first)
        self.shape, self.labels = shape, labels.double()
        self.weight = first.parameter("weight")
        self.single = first.batch_size == 1
        observed = {name: torch.stack([leak.gradients[name] for leak in leaks]).double() for name in first.gradients}
        self.scales = {name: self._scale(value) for name, value in observed.items()}
        head_gradients = torch.stack([leak.weight_gradient for leak in leaks]).double()
        # The rows' sum is zero up to rounding, so the longest row is taken.
        longest = head_gradients.norm(dim=2).argmax(dim=1)
        left = torch.einsum("nci,ni->nc", head_gradients, head_gradients[torch.arange(len(longest)), longest])
        left = left / left.norm(dim=1, keepdim=True)
        right = torch.einsum("nci,nc->ni", head_gradients, left)
        self.sides = (left, right / right.norm(dim=1, keepdim=True))
        self.targets = vmap(self._read)(observed, self.scales, self.sides)
        self.rounding = torch.finfo(first.weight_gradient.dtype).eps * self.targets.shape[1] ** 0.5

    @staticmethod
    def _scale(observed: Tensor) -> Tensor:
        """Return the unit of every row of a tensor's gradients (N, rows, 1).

        All entries of a tensor have similar rounding errors, except in channels with very small gradients. So the unit
        is the geometric mean of the largest entry of the row and that of the tensor.
        """
        rows = observed.reshape(*observed.shape[:2], -1).abs().amax(dim=2, keepdim=True)
        return (rows * rows.amax(dim=1, keepdim=True)).sqrt().clamp(min=LEAST_SIZE)

    def _read(self, gradients: Gradients, scales: Gradients, sides: tuple[Tensor, Tensor]) -> Tensor:
        parts = []
        for name, value in gradients.items():
            rows = value.reshape(len(value), -1)
            if name == self.weight and self.single:
                size = scales[name].amax()
                parts += [sides[0] @ rows / size, rows @ sides[1] / size]
            else:
                parts.append((rows / scales[name]).flatten())
        return torch.cat(parts)

    def one(self, place: Tensor, *known: Any) -> Tensor:
        """Return the residual (R,) of one attack at its place (P,)."""
        labels, scales, sides, target = known

        def loss(parameters: Gradients) -> Tensor:
            logits: Tensor = only_logits(called(self.model, parameters, (place.reshape(self.shape),)))
            mean: Tensor = -(labels * logits.log_softmax(dim=1)).sum(dim=1).mean()
            return mean

        residual: Tensor = self._read(grad(loss)(self.parameters), scales, sides) - target
        return residual

    def known(self, owners: Tensor) -> tuple[Any, ...]:
        """Return the labels, scales, sides and targets of these leaks."""
        scales = {name: value[owners] for name, value in self.scales.items()}
        left, right = self.sides
        return self.labels[owners], scales, (left[owners], right[owners]), self.targets[owners]


def levenberg(settings: LevenbergMarquardt, misfit: Residuals, places: Tensor, owners: Tensor, track: Track) -> None:
    """Run Levenberg-Marquardt on A attacks from places (A, P); each has its own damping and ends on convergence."""
    with differentiable(misfit.model, twice=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.*")
        _search(settings, misfit, places, owners, track)


def _search(settings: LevenbergMarquardt, misfit: Residuals, places: Tensor, owners: Tensor, track: Track) -> None:
    active = torch.arange(len(places), device=places.device)
    places = places.double().clone()
    residuals = misfit.of(owners)(places)
    damping = places.new_full((len(places),), settings.damping)
    bent = torch.full_like(active, settings.bent, dtype=torch.bool)
    slow = torch.zeros_like(active)
    track.see(active, places, residuals.norm(dim=1))
    track.stepped(0)
    for number in track.rounds():
        before = residuals.norm(dim=1)
        slopes = misfit.jacobian(places, owners)
        square = _square(slopes)
        factors, scales = torch.empty_like(square), places.new_empty(places.shape)
        moved = torch.zeros_like(active, dtype=torch.bool)
        for _ in range(TRIES):
            # Attacks whose last step was rejected try a shorter one.
            pending = (~moved).nonzero()[:, 0]
            if len(pending) == 0:
                break
            factors[pending], scales[pending] = _factored(square[pending], damping[pending])
            solve = _solver(factors[pending], scales[pending])
            residual = misfit.of(owners[pending])
            origin = places[pending]
            step = -solve(torch.einsum("apr,ar->ap", slopes[pending], residuals[pending]))
            if bent[pending].any():
                curvature = _bend(residual, origin, step)
                step = step - bent[pending, None] * solve(torch.einsum("apr,ar->ap", slopes[pending], curvature)) / 2
            tried = origin + step
            new_residuals = residual(tried)
            good = new_residuals.norm(dim=1) < residuals[pending].norm(dim=1)
            places[pending[good]], residuals[pending[good]], moved[pending[good]] = (
                tried[good],
                new_residuals[good],
                True,
            )
            damping[pending[~good]] *= GROWS
        reuse_share = torch.where(bent, REUSED, REUSED_PLAIN)
        repeated = (moved & (residuals.norm(dim=1) <= reuse_share * before)).nonzero()[:, 0]
        while len(repeated):
            previous = residuals[repeated].norm(dim=1)
            solve = _solver(factors[repeated], scales[repeated])
            tried = places[repeated] - solve(torch.einsum("apr,ar->ap", slopes[repeated], residuals[repeated]))
            new_residuals = misfit.of(owners[repeated])(tried)
            good = new_residuals.norm(dim=1) < previous
            places[repeated[good]], residuals[repeated[good]] = tried[good], new_residuals[good]
            repeated = repeated[good & (new_residuals.norm(dim=1) <= reuse_share[repeated] * previous)]
        after = residuals.norm(dim=1)
        divisors = torch.where(after < A_LOT * before, FALLS_FAST, FALLS)
        damping = (damping / divisors).clamp(min=LEAST_DAMPING)
        track.see(active, places, after)
        track.stepped(number + 1)
        slow = torch.where(after > SETTLED * before, slow + 1, 0)
        converged = ~bent & (after <= misfit.rounding)
        stuck = ~moved | converged | (slow >= torch.where(bent, 1, PATIENCE))
        ended = stuck & bent
        damping[stuck], slow[stuck] = POLISH.damping, 0
        bent |= stuck
        track.settled[active[ended]] = True
        if ended.all():
            return
        active, places, residuals, damping, bent, slow, owners = (
            value[~ended] for value in (active, places, residuals, damping, bent, slow, owners)
        )


def _bend(residual: Callable[[Tensor], Tensor], at: Tensor, step: Tensor) -> Tensor:
    """Return the second derivative of the residuals (A, R) along a step."""
    bend: Tensor = jvp(lambda place: jvp(residual, (place,), (step,))[1], (at,), (step,))[1]
    return bend


def _square(slopes: Tensor) -> Tensor:
    """Return JᵀJ of every attack (A, P, P); only the blocks up to the diagonal are computed, the others mirrored."""
    square = slopes.new_empty(*slopes.shape[:2], slopes.shape[1])
    size = -(-slopes.shape[1] // BLOCKS)
    for start in range(0, slopes.shape[1], size):
        end = start + size
        square[:, start:end, :end] = slopes[:, start:end] @ slopes[:, :end].mT
        square[:, :start, start:end] = square[:, start:end, :start].mT
    return square


def _factored(square: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factors of JᵀJ + λ diag JᵀJ, scaled to a unit diagonal of JᵀJ, and the scales (A, P)."""
    scale = square.diagonal(dim1=1, dim2=2).clamp(min=torch.finfo(square.dtype).tiny).rsqrt()
    damped = scale.unsqueeze(2) * square * scale.unsqueeze(1)
    damped.diagonal(dim1=1, dim2=2).add_(damping.unsqueeze(1))
    return torch.linalg.cholesky_ex(damped)[0], scale


def _solver(factor: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that solves (JᵀJ + λ diag JᵀJ) x = y for every attack (A, P)."""
    return lambda right: scale * torch.cholesky_solve((scale * right).unsqueeze(2), factor).squeeze(2)
