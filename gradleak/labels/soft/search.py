"""Search for the scalar as wang2024 publishes it: Algorithm 1 (L-BFGS) and Algorithm 2 (a particle swarm).

Both look for a scalar s, with x = s g_r / coefficient, at which 1000 times the label's loss is below 1e-9. They stop by
that loss alone. The authors' code also compares s with the true scalar before it counts a success, which an attacker
cannot do; `metrics.oracle_success` computes that figure.
"""

from __future__ import annotations

import functools
import logging.config
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.labels.priors import LabelPrior, Score
from gradleak.labels.soft.path import LabelPath

# The factor on the loss, and the value below which a search stops.
SCALE, ENOUGH = 1000.0, 1e-9
# L-BFGS: the largest scalar, the number of steps, and the learning rate.
BOUND, STEPS, RATE = 100.0, 100, 0.5
# Where the last three losses differ by a smaller share than PLATEAU, the scalar is moved by PUSH, then twice as far,
# and so on.
PLATEAU, PUSH = 1e-3, 0.5
# Appendix E divides the unknown by 4; the authors' notebooks use 2 for mixup.
COEFFICIENTS = {"smoothing": 4.0, "mixup": 2.0}
# The swarm: particles and iterations, the nearest window, the farthest scalar, and the extension of each window at its
# lower end.
POPULATION, ITERATIONS = 500, 40
NEAR, FAR, SPILL = (1.0, 6.0), 70.0, 0.3
SWARM = {"c1": 0.5, "c2": 0.5, "w": 0.8}


@dataclass(frozen=True)
class ScalarLoss:
    """1000 times the loss of one sample's label as a function of s, in the gradient's precision."""

    path: LabelPath
    prior: LabelPrior | Score
    coefficient: float

    @property
    def width(self) -> float:
        """The width of the swarm's outer windows."""
        return 20.0 if not isinstance(self.prior, LabelPrior) or self.prior.free == 1 else 50.0

    def values(self, scalars: Tensor) -> Tensor:
        """Return the loss at s (K,)."""
        labels = self.path.labels(scalars.unsqueeze(0) / self.coefficient)[0]
        if not isinstance(self.prior, LabelPrior):
            return SCALE * self.prior(labels)
        return SCALE * labels.sort(dim=1).values[:, : labels.shape[1] - self.prior.free].var(dim=1, correction=0)

    def slope(self, scalar: Tensor) -> tuple[float, Tensor]:
        """Return the loss and its derivative at a single s (1,)."""
        if not isinstance(self.prior, LabelPrior):
            with torch.enable_grad():
                at = scalar.detach().requires_grad_()
                value = self.values(at).sum()
                (gradient,) = torch.autograd.grad(value, [at])
            return float(value), gradient
        at = scalar / self.coefficient
        logits, pull = self.path.logits[0], self.path.ratios[0] / at
        scores = at * logits if self.path.bias is None else at * logits + self.path.bias
        probability = scores.softmax(dim=0)
        label = probability - pull
        change = probability * (logits - probability @ logits) + pull / at
        rest = label.argsort()[: len(label) - self.prior.free]
        apart = label[rest] - label[rest].mean()
        return SCALE * float(apart.square().mean()), 2 * SCALE / self.coefficient * (apart * change[rest]).mean()[None]


def lbfgs(objective: ScalarLoss) -> float:
    """Return the scalar at which Algorithm 1 stops, or NaN: L-BFGS from ±1, with a push where the loss is flat."""
    for sign in (1.0, -1.0):
        found = _descend(objective, sign)
        if not math.isnan(found):
            return found
    return math.nan


def _descend(objective: ScalarLoss, sign: float) -> float:
    ratios = objective.path.ratios
    scalar = torch.full((1,), sign, dtype=ratios.dtype, device=ratios.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([scalar], lr=RATE)
    losses: list[float] = []
    push = PUSH

    def closure() -> float:
        value, scalar.grad = objective.slope(scalar.detach())
        return value

    for _ in range(STEPS):
        at = float(scalar.detach())
        losses.append(objective.slope(scalar.detach())[0])
        if not math.isfinite(losses[-1]) or abs(at) > BOUND:
            return math.nan
        if losses[-1] < ENOUGH:
            return at
        last = losses[-3:]
        if len(last) == 3 and max(last) - min(last) < PLATEAU * sum(last) / 3:
            with torch.no_grad():
                scalar += sign * push
            push *= 2
        else:
            optimizer.step(closure)
    return math.nan


def swarm(objective: ScalarLoss, seed: int = 0) -> float:
    """Return the scalar at which Algorithm 2 stops, or NaN: one swarm per window, from near to far, with both signs."""
    for low, high in windows(objective.width):
        for edges in ((low - SPILL, high), (-high - SPILL, -low)):
            value, scalar = swarm_window(objective, edges, POPULATION, ITERATIONS, seed)
            if value < ENOUGH:
                return scalar
    return math.nan


def windows(width: float) -> list[tuple[float, float]]:
    """Return the windows of |s| that are searched, given the width of the outer ones."""
    edges = [NEAR, (NEAR[1], NEAR[1] + width / 5)]
    while edges[-1][1] + width < FAR:
        edges.append((edges[-1][1], edges[-1][1] + width))
    return edges


def swarm_window(
    objective: ScalarLoss, edges: tuple[float, float], population: int, iterations: int, seed: int
) -> tuple[float, float]:
    """Return the least loss that a swarm finds between two edges, and its scalar; all particles run together."""

    def losses(positions: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found = objective.values(torch.from_numpy(positions[:, 0]).to(objective.path.ratios))
        return found.nan_to_num(math.inf).double().cpu().numpy()

    optimizer_class = _quiet_swarm()
    # pyswarms draws from numpy's global generator; restore that generator's state afterwards.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        optimizer = optimizer_class(
            population, 1, SWARM, bounds=(np.array([edges[0]]), np.array([edges[1]])), bh_strategy="nearest"
        )
        value, place = optimizer.optimize(losses, iterations, verbose=False)
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return float(value), float(place[0])


@functools.cache
def _quiet_swarm() -> Any:
    """Import pyswarms without the report.log that it opens and without its changes to the logging configuration."""
    configure = logging.config.dictConfig
    logging.config.dictConfig = lambda config: None
    try:
        from pyswarms.single.global_best import GlobalBestPSO
        from pyswarms.utils.reporter import Reporter
    finally:
        logging.config.dictConfig = configure
    Reporter._setup_logger = lambda self, path=None: None
    return GlobalBestPSO
