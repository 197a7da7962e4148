"""Search for the images that give a known map, separately for each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.images.matching.objective import variation

# Returns the maps (B, …) of some inputs, and their relative squared misfit (B,) of the known gradients.
Run = Callable[[Tensor], tuple[Tensor, Tensor]]
RATE, MEMORY, TINY, LEAST = 0.1, (0.9, 0.99), 1e-16, 1e-36
# Below this misfit the rate is proportional to the misfit, which gives fast convergence.
NEAR = 0.1
# A search ends below the misfit GOAL. Gauss–Newton steps follow if the misfit is below FITS.
GOAL, FITS = 3e-4, 1e-2
PRODUCTS = 60
# An image is a sum of LEVELS resolutions and starts with the standard deviation SPREAD. VARIATION is the weight of
# total variation at the first step; the weight falls to zero by half of the steps.
LEVELS, SPREAD, VARIATION = 4, 0.1, 0.3


@dataclass(frozen=True)
class Fronts:
    """Inputs (B, …) whose maps were matched, the relative misfit of each, and the inputs' estimated errors (B,)."""

    images: Tensor
    misfit: Tensor
    error: Tensor


def matched(
    run: Run, precise: Run, maps: Tensor, errors: Tensor, shape: tuple[int, ...], steps: int, seed: int
) -> Fronts:
    """Search for inputs of the given shape for which `run` gives the maps (B, …), known with relative errors (B,).

    `precise` is `run` in float64.
    """
    generator = torch.Generator().manual_seed(seed)
    wanted = maps.float()
    best, misfit = _searched(run, wanted, shape, steps, generator)
    converged = misfit < FITS
    images = best.double()
    error = torch.full_like(misfit, torch.inf, dtype=torch.float64)
    if converged.any():
        found = _polished(run, precise, maps[converged], errors[converged], images[converged], generator)
        images[converged], error[converged] = found
    size = maps.flatten(1).norm(dim=1)
    final_misfit = (precise(images)[0] - maps).flatten(1).norm(dim=1) / size
    return Fronts(images, final_misfit, error)


def _searched(
    run: Run, wanted: Tensor, shape: tuple[int, ...], steps: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the images with the least misfits (B,) that Adam finds, as sums of resolutions."""
    count, size = len(wanted), wanted.flatten(1).norm(dim=1)
    sides = [tuple(-(-side // 2**level) for side in shape[-2:]) for level in range(LEVELS)]
    channels = math.prod(shape[:-2])
    sizes = [channels * math.prod(side) for side in sides]

    def images(at: Tensor) -> Tensor:
        parts = [part.view(-1, channels, *side) for part, side in zip(at.split(sizes, dim=1), sides, strict=True)]
        coarse = [F.interpolate(part, size=sides[0], mode="bilinear") for part in parts[1:]]
        return sum(coarse, parts[0]).view(-1, *shape)

    places = (SPREAD * torch.randn(count, sum(sizes), generator=generator)).to(wanted.device)
    first_moment, second_moment = torch.zeros_like(places), torch.zeros_like(places)
    best, least = images(places), wanted.new_full((count,), torch.inf)
    active = torch.ones(count, dtype=torch.bool, device=wanted.device)
    for step in range(steps):
        rows = active.nonzero()[:, 0]
        if not len(rows):
            break
        batch = places[rows].requires_grad_()
        with torch.enable_grad():
            current = images(batch)
            maps, gradient_misfit = run(current)
            missed = (maps - wanted[rows]).flatten(1).square().sum(dim=1) / size[rows].square()
            weight = VARIATION * max(0, 1 - 2 * step / steps) * missed.detach().clamp(max=1)
            smooth = weight * variation(current[:, None])
            (slope,) = torch.autograd.grad((missed + gradient_misfit + smooth).sum(), batch)
        misfit = missed.detach().sqrt()
        better = misfit < least[rows]
        least[rows[better]], best[rows[better]] = misfit[better], current.detach()[better]
        first_moment[rows] += (1 - MEMORY[0]) * (slope - first_moment[rows])
        second_moment[rows] += (1 - MEMORY[1]) * (slope.square() - second_moment[rows])
        rate = RATE * (misfit / NEAR).clamp(max=1)[:, None] * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        bias = [1 - memory ** (step + 1) for memory in MEMORY]
        places[rows] -= rate * (first_moment[rows] / bias[0]) / ((second_moment[rows] / bias[1]).sqrt() + TINY)
        active[rows[misfit < GOAL]] = False
    return best, least


def _polished(
    run: Run, precise: Run, maps: Tensor, errors: Tensor, images: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the images after two Gauss–Newton steps, and their errors.

    The errors are estimated by the step that the final residual gives with random signs, if it is as large as the
    maps' error at least.
    """
    for _ in range(2):
        residual = precise(images)[0] - maps
        images = images - _stepped(run, images, residual)
    residual = precise(images)[0] - maps
    signs = torch.randint(2, residual.shape, generator=generator).to(residual) * 2 - 1
    size, ones = residual.flatten(1).norm(dim=1).clamp(min=TINY), [1] * (maps.ndim - 1)
    larger = (errors * maps.flatten(1).norm(dim=1) / size).clamp(min=1).view(-1, *ones)
    error = _stepped(run, images, residual * larger * signs)
    return images, error.flatten(1).square().mean(dim=1).sqrt()


def _stepped(run: Run, images: Tensor, left: Tensor) -> Tensor:
    """Return the least-squares step that is to be subtracted to remove the residual `left`, by conjugate gradients."""
    ones = [1] * (images.ndim - 1)
    scale = left.flatten(1).norm(dim=1).clamp(min=TINY)
    with torch.enable_grad():
        point = images.float().requires_grad_()
        maps, _ = run(point)
        # Jᵀu is linear in u, so the gradient of (Jᵀu)·v with respect to u is J v.
        dummy = torch.zeros_like(maps, requires_grad=True)
        (pullback,) = torch.autograd.grad(maps, point, dummy, create_graph=True)
    scaled = (left / scale.view(-1, *[1] * (left.ndim - 1))).float()
    (residual,) = torch.autograd.grad(maps, point, scaled, retain_graph=True)
    step, direction = torch.zeros_like(residual), residual.clone()
    power = residual.flatten(1).square().sum(dim=1)
    for _ in range(PRODUCTS):
        (product,) = torch.autograd.grad(pullback, dummy, direction, retain_graph=True)
        length = (power / product.flatten(1).square().sum(dim=1).clamp(min=LEAST)).view(-1, *ones)
        step += length * direction
        residual = residual - length * torch.autograd.grad(maps, point, product, retain_graph=True)[0]
        new_power = residual.flatten(1).square().sum(dim=1)
        direction = residual + (new_power / power.clamp(min=LEAST)).view(-1, *ones) * direction
        power = new_power
    result: Tensor = step.double() * scale.view(-1, *ones)
    return result
