"""Peel a network from the last layer down: slopes give δ, δ gives a layer's inputs, and inputs give slopes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.images.inversion.convolutional import FEATURE
from gradleak.images.inversion.fully_connected import LayerReport
from gradleak.images.peeling.joints import seen
from gradleak.images.peeling.layer import Equations, Solution, completed, counted, short, solved
from gradleak.images.peeling.network import Network, Step
from gradleak.images.peeling.opening import opened, refused
from gradleak.leak import Leak

# An output of ReLU counts as positive if it is this many standard deviations above zero.
ABOVE = 8.0
# ReLU has no negative outputs, so negative values show the true deviation, if there are at least this many.
BELOW = 8
# Inputs with a larger estimated relative error are discarded.
LOST = 0.03
# A channel is explained if the relative error of its gradient is below this multiple of the layer's.
EXPLAINED = 10.0
# A slope is changed only if this explains more than this share of the squared residual.
FLIPS = 0.1


@dataclass(frozen=True)
class Known:
    """The value of a step for every sample (B, …), and the relative error of each sample's value (B,)."""

    value: Tensor
    error: Tensor


class Sweep:
    """The private values of a network found so far: `values` by step, `slopes` by activation, `reports` by layer."""

    def __init__(
        self, network: Network, leak: Leak, features: Tensor, errors: Tensor, loose: Tensor, unit: float
    ) -> None:
        self.network, self.leak, self.unit = network, leak, unit
        self.count = len(features)
        self.values: dict[str, Known] = {}
        self.slopes: dict[str, Tensor] = {}
        self.reports: list[LayerReport] = []
        self.reason = ""
        self._told = {network.output: errors / self.count}
        self._deltas: dict[str, Tensor | None] = {}
        # Errors that no residual shows: the client's rounding of values, and the uncertainty of p − y.
        self._least = (loose.square() + (FEATURE * unit) ** 2).sqrt()
        head = network.steps[network.output]
        self.values[head.inputs[0]] = Known(features, self._least)

    def run(self) -> None:
        """Visit all steps from the last to the first, and find their values and slopes where possible."""
        for step in reversed(self.network.steps.values()):
            self._visit(step)

    def delta(self, name: str) -> Tensor | None:
        """Return the gradient of the client's loss with respect to a step's value (B, …), None if it is not known."""
        if name in self._told:
            return self._told[name]
        if name not in self._deltas:
            parts = [self._through(user, name) for user in self.network.steps[name].users]
            terms = [part for part in parts if part is not None]
            self._deltas[name] = sum(terms[1:], terms[0]) if parts and len(terms) == len(parts) else None
        return self._deltas[name]

    def _through(self, user: str, name: str) -> Tensor | None:
        delta, step = self.delta(user), self.network.steps[user]
        if delta is None:
            return None
        if step.kind in ("affine", "reshaped"):
            return self.network.pushed(user, delta)[name]
        return self.slopes[user] * delta if user in self.slopes else None

    def _visit(self, step: Step) -> None:
        above = [self.network.steps[user] for user in step.users]
        if step.name not in self.values:
            for user in above:
                if user.kind == "reshaped" and user.name in self.values:
                    known = self.values[user.name]
                    self.values[step.name] = Known(known.value.reshape(self.count, *step.shape), known.error)
        if step.name not in self.values and any(user.layer is not None for user in above):
            self._solve(step, above)
        if step.kind == "activation" and step.name not in self.slopes:
            if step.name in self.values and step.activation is not None:
                self.slopes[step.name] = step.activation.slope(self.values[step.name].value)
            elif not self.slopes:
                self._open(step)
        elif step.kind == "other" and not self.reason:
            self.reason = f"{step.says} cannot be walked back"

    def _open(self, step: Step) -> None:
        """Find the slopes of the first activation, whose values are unknown, from the gradient of a layer below."""
        delta, levels = self.delta(step.name), step.levels
        if delta is None or step.activation is None:
            return
        reasons = [] if levels else [f"the slopes of {step.says} are not two numbers"]
        for path in self.network.below(step.name) if levels else []:
            layer, size = self.network.steps[path[-1]], self.network.steps[self.network.steps[path[-1]].inputs[0]].shape
            assert layer.layer is not None
            reason = refused(layer.layer, layer.shape, self.count) or self.leak.withheld(f"{layer.parameter}.weight")
            if not reason and levels and isinstance(layer.layer, nn.Conv2d):
                layer_delta = self._down(path, delta)
                slopes, reason = opened(layer.layer, self._gradient(layer), layer_delta, size[1:], levels, self.unit)
                if slopes is not None:
                    self.slopes[step.name] = slopes
                    return
            reasons.append(f"'{layer.parameter}': {reason}")
        self.reason = self.reason or "; ".join(reasons) or f"{step.says} has no layer below"

    def _down(self, path: list[str], delta: Tensor) -> Tensor:
        """Return the gradient at the value of the last step of a path, from the gradient at that of the first."""
        for upper, lower in itertools.pairwise(path):
            delta = self.network.pushed(upper, delta)[lower]
        return delta

    def _gradient(self, step: Step) -> Tensor:
        gradient = self.leak.gradients[f"{step.parameter}.weight"].double()
        return gradient if gradient.ndim == 4 else gradient[:, :, None, None]

    def _equations(self, above: list[Step]) -> list[tuple[Step, Equations]]:
        """Return the layers among these steps that have a known δ, with their equations."""
        known = [(user, self.delta(user.name), user.layer) for user in above]
        return [
            (user, Equations(layer, delta, self._gradient(user)))
            for user, delta, layer in known
            if layer is not None and delta is not None and not self.leak.withheld(f"{user.parameter}.weight")
        ]

    def unsolved(self) -> list[tuple[str, Equations]]:
        """Return the equations of convolutions with known δ but unknown inputs, with the name of the inputs' step."""
        return [
            (step.name, equations)
            for step in self.network.steps.values()
            if step.name not in self.values
            for _, equations in self._equations([self.network.steps[user] for user in step.users])
            if isinstance(equations.module, nn.Conv2d) and equations.module.groups == 1
        ]

    def _solve(self, step: Step, above: list[Step]) -> None:
        layer_equations = self._equations(above)
        if not layer_equations:
            return
        layers, equations = [layer for layer, _ in layer_equations], [one for _, one in layer_equations]
        shape = step.shape if len(step.shape) == 3 else (*step.shape, 1, 1)
        name = "+".join(layer.parameter for layer in layers)
        count, unknowns = counted([one.module for one in equations], shape, self.count)
        grouped = any(isinstance(one.module, nn.Conv2d) and one.module.groups > 1 for one in equations)
        if count <= unknowns:
            solution = Solution(reason=short(count, unknowns))
        elif grouped:
            solution = Solution(reason="it convolves groups of channels separately, which is not solved here")
        else:
            solution = solved(equations, shape, self.unit)
        if solution.value is None and not grouped:
            known = {name: one.value for name, one in self.values.items()}
            joint = seen(self.network, known, step.name)
            completion = None if joint is None else completed(equations, shape, joint, self.unit)
            solution = solution if completion is None or completion.value is None else completion
        reason, error = solution.reason, math.inf
        value = solution.value
        if value is not None and solution.deviation is not None:
            value, errors = self._read(step, value, solution.deviation)
            sizes = value.flatten(1).norm(dim=1)
            error = float((errors * sizes).norm() / sizes.norm())
            if error > LOST:
                reason = f"its inputs are known to {error:.0e} of their size"
            else:
                self._mend(layers, equations, value, solution)
                value = value.reshape(self.count, *step.shape)
                self.values[step.name] = Known(value, errors)
        self.reports.append(
            LayerReport(name, count, unknowns, unknowns * (not solution.reason), solution.misfit, reason, error, value)
        )
        if reason and not self.reason:
            self.reason = f"layer '{name}': {reason}"

    def _read(self, step: Step, value: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values, with outputs of ReLU set to zero if they are zero within errors, and their errors (B,)."""
        size = value.flatten(1).square().mean(dim=1).sqrt()
        if self.network.source(step.name).rectifies:
            deviation = deviation * _calibration(value / deviation)
            rounding = (FEATURE * self.unit * size).view(-1, *[1] * (value.ndim - 1))
            value = torch.where(value > ABOVE * (deviation.square() + rounding.square()).sqrt(), value, 0)
        error = deviation.flatten(1).square().mean(dim=1).sqrt() / size
        return value, (error.square() + self._least.square()).sqrt()

    def _mend(self, layers: list[Step], equations: list[Equations], value: Tensor, found: Solution) -> None:
        """Correct the slopes in channels that were dropped as outliers, now that the layer's inputs are known."""
        for layer, equation, dropped in zip(layers, equations, found.dropped, strict=True):
            if not dropped or not isinstance(equation.module, nn.Conv2d):
                continue
            name, path = self._activation_above(layer)
            levels = self.network.steps[name].levels if name else None
            if name not in self.slopes or levels is None:
                continue
            delta, slopes = self.delta(name), self.slopes[name].clone()
            assert delta is not None
            full_delta = self._down([*path, layer.name], delta).flatten(2)
            padding, stride = equation.module.padding, equation.module.stride
            assert not isinstance(padding, str)
            patches = F.unfold(value, equation.module.kernel_size, padding=padding, stride=stride)
            for channel in dropped:
                channel_slopes = slopes[:, channel].flatten(1)
                gradient = equation.gradient[channel].flatten()
                channel_slopes = _flipped(
                    gradient, patches, full_delta[:, channel], channel_slopes, levels, found.misfit
                )
                slopes[:, channel] = channel_slopes.view_as(slopes[:, channel])
            self.slopes[name] = slopes
            self._deltas.clear()

    def _activation_above(self, layer: Step) -> tuple[str, list[str]]:
        """Return the activation that a layer's outputs reach in place, "" if none, and the steps between them."""
        for step in self.network.steps.values():
            if step.kind == "activation":
                for path in self.network.below(step.name):
                    if path[-1] == layer.name:
                        return step.name, path[:-1]
        return "", []


def _flipped(
    gradient: Tensor, patches: Tensor, whole: Tensor, slopes: Tensor, levels: tuple[float, float], misfit: float
) -> Tensor:
    """Return the slopes (B, P) of one channel, changed one by one until they explain the channel's gradient.

    `patches` (B, K, P) has the layer's inputs, and `whole` (B, P) the channel's gradient δ if every slope were one.
    """
    flat, (low, high) = slopes.clone(), levels
    sizes, enough = patches.square().sum(dim=1), EXPLAINED * misfit * float(gradient.norm())
    for _ in range(flat.numel()):
        residual = gradient - torch.einsum("bkp,bp->k", patches, whole * flat)
        if float(residual.norm()) <= enough:
            break
        change = whole * torch.where(flat > low, low - high, high - low)
        gain = 2 * change * torch.einsum("bkp,k->bp", patches, residual) - change.square() * sizes
        best = int(gain.argmax())
        if float(gain.flatten()[best]) <= FLIPS * float(residual.square().sum()):
            break
        b, p = divmod(best, flat.shape[1])
        flat[b, p] = low if flat[b, p] > low else high
    return flat


def _calibration(ratio: Tensor) -> Tensor:
    """Return the ratio (B, 1, …) of the true to the estimated deviation of values that cannot be negative.

    `ratio` (B, C, …) has the values divided by their estimated deviations.
    """
    negative, square = ratio < 0, ratio.clamp(max=0).square_()
    place, few = _below(negative, square, (1,))
    sample, scarce = _below(negative, square, tuple(range(1, ratio.ndim)))
    whole, _ = _below(negative, square, tuple(range(ratio.ndim)))
    sample = torch.where(scarce, whole, sample).clamp(min=0.1)
    return torch.where(few, sample, torch.maximum(place, sample))


def _below(negative: Tensor, square: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the root mean square of negative values, and where there are too few of them.

    `negative` says which values are negative; `square` has the squares of these values, and 0 for others.
    """
    number = negative.sum(dim=axes, keepdim=True)
    size = (square.sum(dim=axes, keepdim=True) / number.clamp(min=1)).sqrt()
    return size, number < BELOW
