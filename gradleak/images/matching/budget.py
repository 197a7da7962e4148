"""Search for inputs within a budget: one schedule for all networks and numbers of steps, coarse to fine.

Where the batch is small and the budget large, second order ends the search. It finds the batch to the last digits if
the gradient allows it; otherwise what was found before is kept.

Each step moves every pixel by the sign of a blurred derivative. The blur falls from a sixth of the image's side to
nothing, so the search settles colours and large shapes before details. It starts from a nearly flat image, because
noise at the start never leaves an image within a short budget.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gradleak.arguments import check_fields
from gradleak.errors import InputError
from gradleak.images.matching.levenberg import LevenbergMarquardt, Misfit, levenberg
from gradleak.images.matching.objective import Distance, Objective
from gradleak.images.matching.optimizers import Evaluate, Moments, Track

# The distance between gradients, and the weight of total variation beside its logarithm.
DISTANCE, VARIATION = Distance("layers"), 2.0
# The standard deviation of the first blur, relative to the image's side. Less than LEAST_BLUR pixels change nothing.
BLUR, LEAST_BLUR = 5 / 32, 0.3
# Second order ends a search if JACOBIANS exact Jacobians take at most the share ENDING of its steps. Its image is taken
# if the gradient is then the observed one, up to SAME times the rounding.
JACOBIANS, ENDING, SAME = 6, 1 / 3, 10.0
# A budget of CPU-time in words.
SECONDS = re.compile(r"(\d+(?:\.\d+)?) ?s")
SETTLED = "settled"
# The number of steps by whose time a budget in seconds is converted to steps.
TIMED = 3
# The budget "settled" doubles the steps from FIRST to at most LAST, until a doubling lowers no loss by the share FALLS.
# Losses are logarithms.
FIRST, LAST, FALLS = 100, 6400, 0.05
# The PSNR (dB) of images by the loss at the end: the line through the batches of the page on budgets, and the deviation
# from it that nine of ten batches have at most.
LINE, WITHIN = (12.1, -1.47), 3.9


class Ended(Protocol):
    """The result of a search: the least losses (N, R)."""

    @property
    def losses(self) -> Tensor: ...


Found = TypeVar("Found", bound=Ended)


@dataclass(frozen=True)
class CoarseToFine:
    """Settings of the search within a budget.

    Attributes:
        steps: The number of steps.
        ending: The steps that second order takes after them, see `ending_of`.
        rate: The rate of the first step; it falls to zero along half a period of a cosine.
        spread: The standard deviation of random starts.
    """

    steps: int
    ending: int = 0
    rate: float = 0.05
    spread: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self)


def ending_of(steps: int, size: int) -> int:
    """Return how many of a budget's steps are left to second order for a batch of `size` numbers, 0 if it is too dear.

    Measured on LeNet and on networks of Linear layers, a Jacobian takes the time of `size` / 8 steps, and its square
    that of a number of steps that grows with the third power.
    """
    ending = math.ceil(JACOBIANS * (size / 8 + (size / 280) ** 3))
    return ending if ending <= ENDING * steps else 0


def spent(budget: int | str, run: Callable[[int], Found]) -> tuple[Found, bool]:
    """Run a search with the steps of a budget; return its result, and whether its loss has stopped falling.

    Args:
        budget: Steps, CPU-time such as "30s", or "settled".
        run: Searches with a number of steps.
    """
    if isinstance(budget, int):
        if budget < 1:
            raise InputError(f"a budget is at least 1 step; got {budget}")
        return run(budget), False
    if seconds := SECONDS.fullmatch(budget):
        return run(_steps_within(float(seconds[1]), run)), False
    if budget != SETTLED:
        raise InputError(f"a budget is a number of steps, a time such as '30s', or '{SETTLED}'; got '{budget}'")
    steps, found = FIRST, run(FIRST)
    while steps < LAST:
        steps, before = 2 * steps, found
        found = run(steps)
        least = found.losses.amin(dim=1)
        if bool((least >= before.losses.amin(dim=1) - FALLS).all()):
            return found, True
    return found, False


def expected(loss: float) -> tuple[float, float]:
    """Return the range of PSNR (dB) in which nine of ten batches with this loss lay on the page on budgets."""
    middle = LINE[0] + LINE[1] * loss
    return middle - WITHIN, middle + WITHIN


def _steps_within(seconds: float, run: Callable[[int], Ended]) -> int:
    """Return the number of steps that take this CPU-time (s), by the time of a few steps, which is part of it."""
    begun = time.process_time()
    run(1)
    warm = time.process_time()
    run(TIMED)
    now = time.process_time()
    # A search evaluates the gradient once more at its end.
    return max(1, int((seconds - (now - begun)) * (TIMED + 1) / max(now - warm, 1e-9)) - 1)


def descend(
    settings: CoarseToFine, evaluate: Evaluate, objective: Objective, places: Tensor, track: Track, enough: float
) -> None:
    """Run the search for A attacks from places (A, P); an attack that is no longer finite stays where it is."""
    active = torch.arange(len(places), device=places.device)
    going = torch.ones_like(active, dtype=torch.bool)
    places, moments = objective.boxed(places), Moments(places)
    for step in track.rounds():
        losses, slopes = evaluate(places, active)
        track.see(active, places, losses, going)
        finite = torch.isfinite(losses) & torch.isfinite(slopes).all(dim=1)
        track.end(active, lost=going & ~finite, settled=going & (losses <= enough))
        going = going & finite & (losses > enough)
        left = 1 - step / settings.steps
        inputs = blurred(objective.inputs(slopes), BLUR * left**2).flatten(1)
        slopes = torch.cat([inputs, slopes[:, objective.size :]], dim=1).sign()
        rate = settings.rate * (1 + math.cos(math.pi * (1 - left))) / 2
        moved = objective.boxed(moments.moved(places, slopes, rate))
        places = torch.where(going[:, None], moved, places)
        track.stepped(step + 1, going)
    track.see(active, places, evaluate(places, active)[0], going)


def finish(settings: CoarseToFine, misfit: Misfit, objective: Objective, owners: Tensor, track: Track) -> None:
    """Go on by second order from the best places; keep what it finds where the gradient is the observed one."""
    found = Track.start(track.best.double(), JACOBIANS)
    levenberg(LevenbergMarquardt(JACOBIANS), misfit, found.best, owners, found)
    places = objective.boxed(found.best.to(track.best))
    losses, _ = objective.evaluate(places, owners)
    same = misfit.of(owners)(places.double()).norm(dim=1) <= SAME * misfit.rounding
    track.best = torch.where(same[:, None], places, track.best)
    track.losses = torch.where(same, losses, track.losses)
    track.settled = track.settled | same
    track.history.append((settings.steps + settings.ending, track.losses.clone()))


def blurred(images: Tensor, share: float) -> Tensor:
    """Return images (…, H, W) blurred by a Gaussian with this share of their sides; other inputs as they are."""
    if images.ndim < 5 or share * max(images.shape[-2:]) < LEAST_BLUR:
        return images
    down, across = (_gaussian(side, share * side).to(images) for side in images.shape[-2:])
    return down @ images @ across.mT


def _gaussian(side: int, deviation: float) -> Tensor:
    places = torch.arange(side, dtype=torch.float64)
    weights = torch.exp(-(places[:, None] - places).square() / (2 * max(deviation, LEAST_BLUR) ** 2))
    return weights / weights.sum(dim=1, keepdim=True)
