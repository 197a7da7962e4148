"""The last digits: Levenberg-Marquardt on what a whole gradient misses, from an image that is nearly right."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from gradleak.leak import Leak

# Columns of the Jacobian that are computed at a time.
CHUNK = 256
STEPS = 12
LEAST_SIZE = 1e-300
DAMPING, LEAST_DAMPING = 1e-8, 1e-15
TRIES = 6
# A step that leaves this much of the misfit has found the gradient's own rounding ...
SETTLED = 0.99
# ... and one with a Jacobian of a place nearby is worth its time while it leaves less than this.
REUSED = 0.5


@dataclass(frozen=True)
class Polished:
    """Inputs (1, …) in float64, and what of the gradient they miss at the start and after every Jacobian."""

    inputs: Tensor
    misfits: tuple[float, ...]


def polished(leak: Leak, inputs: Tensor, labels: Tensor, *, steps: int = STEPS) -> Polished:
    """Move one sample's inputs (1, …) until its gradient is the one observed, as far as its digits go.

    Jacobians are exact, by forward mode over the gradient. Steps follow the valley's bend to second order (geodesic
    acceleration), without which they would have to be short: the misfit is all but flat along a few hundred directions.
    """
    model = copy.deepcopy(leak.model).double().eval()
    residual = _residual(leak, model, labels.double(), inputs.shape)
    place = inputs.double().flatten()
    units = torch.eye(len(place), dtype=torch.float64, device=place.device)
    missed = residual(place)
    misfits, damping = [float(missed.norm())], DAMPING
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.*")
        for _ in range(steps):
            # Jᵀ, a row an entry of the inputs.
            slopes = vmap(lambda unit, at: jvp(residual, (at,), (unit,))[1], (0, None), chunk_size=CHUNK)(units, place)
            square = slopes @ slopes.T
            for _ in range(TRIES):
                solve = _solver(square, damping)
                step = -solve(slopes @ missed)
                bend = jvp(lambda at, step=step: jvp(residual, (at,), (step,))[1], (place,), (step,))[1]
                moved = place + step - solve(slopes @ bend) / 2
                now = residual(moved)
                if now.norm() < misfits[-1]:
                    break
                damping *= 10
            else:
                break
            while now.norm() < missed.norm():
                place, before, missed = moved, float(missed.norm()), now
                if missed.norm() > REUSED * before:
                    break
                moved = place - solve(slopes @ missed)
                now = residual(moved)
            misfits.append(float(missed.norm()))
            damping = max(damping / 30, LEAST_DAMPING)
            if misfits[-1] > SETTLED * misfits[-2]:
                break
    return Polished(place.reshape(inputs.shape), tuple(misfits))


def _solver(square: Tensor, damping: float) -> Callable[[Tensor], Tensor]:
    """Return the solver of (JᵀJ + λ diag JᵀJ) x = y."""
    scale = square.diagonal().clamp(min=torch.finfo(square.dtype).tiny).rsqrt()
    damped = scale[:, None] * square * scale
    damped.diagonal().add_(damping)
    factor = torch.linalg.cholesky(damped)
    return lambda right: scale * torch.cholesky_solve((scale * right)[:, None], factor)[:, 0]


def _residual(leak: Leak, model: nn.Module, labels: Tensor, shape: torch.Size) -> Callable[[Tensor], Tensor]:
    """Return what the gradient at an input misses of the observed one, in units of what it rounds by.

    The last layer's gradient is d xᵀ: its products with one x and one d say all that it holds.
    """
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    weight = f"{leak.head}.weight"
    observed = {name: value.double() for name, value in leak.gradients.items()}
    left = observed[weight] @ observed[weight].sum(dim=0)
    left = left / left.norm()
    right = observed[weight].T @ left
    right = right / right.norm()

    def read(gradients: dict[str, Tensor]) -> Tensor:
        parts = []
        for name, value in gradients.items():
            size = observed[name].abs().max()
            if name == weight:
                parts += [left @ value / size, value @ right / size]
            else:
                # A tensor's entries round alike, but for channels that hold hardly anything.
                own = observed[name].reshape(len(value), -1).abs().amax(dim=1, keepdim=True)
                parts.append((value.reshape(len(value), -1) / (own * size).sqrt().clamp(min=LEAST_SIZE)).flatten())
        return torch.cat(parts)

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, parameters, (image,))
        return -(labels * logits.log_softmax(dim=1)).sum()

    target = read(observed)

    def residual(place: Tensor) -> Tensor:
        return read(grad(loss)(parameters, place.reshape(shape))) - target

    return residual
