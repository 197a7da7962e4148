"""Match gradients of single samples of fully connected networks by their factors, without computing any matrix.

The gradient of a layer for a single sample is δ hᵀ, where h is the layer's input and δ the loss's gradient after the
linear map. Distances between such matrices need only inner products of the factors. If the observed gradient is e h*ᵀ
with ‖e‖ = 1, and γ = e·δ, the squared distance is a sum of terms that are not negative:

    ‖δ hᵀ − e h*ᵀ‖² = ‖γ h − h*‖² + ‖δ − γ e‖² ‖h‖²
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.errors import InputError
from gradleak.images.inversion import chain
from gradleak.images.inversion.chain import Layer
from gradleak.images.matching.engine import Reconstruction, Watch, search, searched
from gradleak.images.matching.objective import Distance, ImagePrior, Objective, one_minus_cosine
from gradleak.images.matching.optimizers import LBFGS, Adam, Track
from gradleak.leak import Leak

# A gradient whose factors have a larger relative error, in rounding units, is not that of a single undefended sample.
MISSED = 1000


@dataclass(frozen=True)
class Factors:
    """The gradients of a leak as products of vectors.

    Attributes:
        leak: The leak without its gradients.
        errors: The vector e (O,) of each layer, of length 1, in float64.
        inputs: The vector h* (I,) of each layer in float64, with an additional entry for a bias.
    """

    leak: Leak
    errors: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]


def factored(leak: Leak) -> Factors:
    """Return the factors of each layer's gradient; raise `InputError` if a gradient does not have rank one."""
    leak.check_one_step("matching by factors")
    pairs = [_factors(leak, layer) for layer in _layers(leak.model)]
    return Factors(
        replace(leak, gradients={}), tuple(error for error, _ in pairs), tuple(inputs for _, inputs in pairs)
    )


def _layers(model: nn.Module) -> list[Layer]:
    first = next((module for module in model.modules() if isinstance(module, nn.Linear)), None)
    return chain.layers(model, (nn.Linear,), (first.in_features if first is not None else 1,))


def _gradient(leak: Leak, layer: Layer) -> Tensor:
    """Return the gradient of a layer's weight, with the gradient of the bias as an additional column."""
    names = [f"{layer.name}.weight"] + ([] if layer.module.bias is None else [f"{layer.name}.bias"])
    missing = [name for name in names if name not in leak.gradients]
    if missing:
        raise InputError(f"matching by factors needs every layer's gradient; the leak lacks {', '.join(missing)}")
    weight, *bias = (leak.gradients[name] for name in names)
    return torch.cat([weight, bias[0][:, None]], dim=1) if bias else weight


def _factors(leak: Leak, layer: Layer) -> tuple[Tensor, Tensor]:
    gradient = _gradient(leak, layer)
    size = gradient.norm()
    if size == 0:
        return gradient.new_zeros(len(gradient)).double(), gradient.new_zeros(gradient.shape[1]).double()
    error = (gradient @ gradient[gradient.norm(dim=1).argmax()]).double()
    error = error / error.norm()
    inputs = error.to(gradient) @ gradient
    missed = float(torch.addr(gradient, error.to(gradient), inputs, alpha=-1).norm() / size)
    if not missed <= MISSED * torch.finfo(gradient.dtype).eps:
        raise InputError(
            f"the gradient of '{layer.name}' is not of rank one, unlike that of a single undefended sample: "
            f"{leak.batch_size} samples, relative error {missed:.1e}"
        )
    return error, inputs.double()


class FactoredObjective(Objective):
    """The loss of A attacks on N leaks of one fully connected network, computed from the factors of gradients."""

    def __init__(self, leaks: Sequence[Factors], labels: Tensor | None, distance: Distance, prior: ImagePrior) -> None:
        if distance not in (Distance("l2"), Distance("cosine")):
            raise InputError(f"matching by factors supports the plain distances l2 and cosine; got {distance}")
        super().__init__([factors.leak for factors in leaks], labels, None, distance, prior)
        self.layers = _layers(leaks[0].leak.model)
        self.errors, self.hidden = (
            [torch.stack(parts) for parts in zip(*(getattr(factors, name) for factors in leaks), strict=True)]
            for name in ("errors", "inputs")
        )

    def labels_at(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the labels (A, B, C) of places: the known labels, or the softmax of the scores where they are NaN."""
        if self.labels is None or places.shape[1] == self.size:
            return super().labels_at(places, owners)
        known, scores = self.labels[owners], places[:, self.size :].reshape(-1, 1, self.classes)
        return torch.where(known.isnan(), scores.softmax(dim=2), known)

    def factors(self, inputs: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return δ (A, O) and h (A, I) of every layer for clients with inputs (A, D) and labels (A, C)."""
        hidden, value = [], inputs
        for layer in self.layers:
            hidden.append(value)
            bias = None if layer.module.bias is None else layer.module.bias.detach()
            value = layer.activation_module(F.linear(value, layer.module.weight.detach(), bias))
        error = value.softmax(dim=1) * labels.sum(dim=1, keepdim=True) - labels
        errors = [error]
        for above, layer, output in zip(self.layers[:0:-1], self.layers[-2::-1], hidden[:0:-1], strict=True):
            error = (error @ above.module.weight.detach()) * layer.activation.slope(output)
            errors.append(error)
        ones = inputs.new_ones(len(inputs), 1)
        return [
            (error, value if layer.module.bias is None else torch.cat([value, ones], dim=1))
            for error, value, layer in zip(reversed(errors), hidden, self.layers, strict=True)
        ]

    def losses(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the loss (A,) at places."""
        inputs, labels = self.inputs(places), self.labels_at(places, owners)
        pairs = [
            # float64 avoids cancellation where gradients are almost equal, and costs little compared to the layers.
            (error.double(), value.double(), observed_error[owners], observed_input[owners])
            for (error, value), observed_error, observed_input in zip(
                self.factors(inputs.flatten(1), labels[:, 0]), self.errors, self.hidden, strict=True
            )
        ]
        if self.distance.kind == "l2":
            value = torch.stack([_squared(*pair) for pair in pairs]).sum(dim=0)
        else:
            parts = zip(*(_products(*pair) for pair in pairs), strict=True)
            value = one_minus_cosine(*(torch.stack(part).sum(dim=0) for part in parts))
        return value.to(places) + self.prior.of(inputs)


def _squared(error: Tensor, value: Tensor, seen: Tensor, held: Tensor) -> Tensor:
    """Return ‖δ hᵀ − e h*ᵀ‖² (A,)."""
    along = _dot(error, seen)[:, None]
    return (along * value - held).square().sum(dim=1) + (error - along * seen).square().sum(dim=1) * _dot(value, value)


def _products(error: Tensor, value: Tensor, seen: Tensor, held: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inner products (A,) of δ hᵀ with e h*ᵀ, of δ hᵀ with itself, and of e h*ᵀ with itself."""
    return _dot(error, seen) * _dot(value, held), _dot(error, error) * _dot(value, value), _dot(held, held)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(dim=1)


def match_factored(
    leaks: Sequence[Factors],
    labels: Tensor | None,
    *,
    distance: Distance,
    optimizer: Adam | LBFGS,
    prior: ImagePrior | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    watch: Watch | None = None,
) -> Reconstruction:
    """Search as `match` does, from one start for each single sample of a fully connected network.

    Args:
        leaks: The factors of N leaks of the same network.
        labels: Known labels (N, C), NaN for leaks whose labels are searched with the inputs; None to search all.
        distance: The distance between gradients, "l2" or "cosine" without further weights.
        optimizer: The settings of the optimizer.
        prior: The prior of the images, by default none.
        seed: The seed of the random starts: inputs first, then the scores of searched labels.
        start: Inputs (N, …) to start from instead of random ones.
        watch: As in `match`.
    """
    given = None if labels is None else labels.unsqueeze(1)
    objective = FactoredObjective(leaks, given, distance, prior or ImagePrior())
    generator, like = torch.Generator().manual_seed(seed), objective.layers[0].module.weight.detach()
    places = (optimizer.spread * torch.randn(len(leaks), objective.size, generator=generator)).to(like)
    if start is not None:
        places = start.to(places).flatten(1)
    if given is None or given.isnan().any():
        scores = torch.randn(len(leaks), objective.classes, generator=generator).to(like)
        places = torch.cat([places, scores], dim=1)

    def walk(starts: Tensor, owners: Tensor, track: Track) -> None:
        search(optimizer, objective, None, starts, owners, track)

    return searched(objective, walk, places, 1, optimizer.steps, watch)
