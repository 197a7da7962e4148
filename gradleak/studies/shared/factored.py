"""Gradient matching on a fully connected network, with every layer's gradient as the two factors that it is made of.

One sample's gradient of a linear layer is δ xᵀ, so that what matching needs of two gradients are inner products of
their factors: ⟨δ xᵀ, δ* x*ᵀ⟩ = ⟨δ, δ*⟩ ⟨x, x*⟩. Nothing as large as a weight is made, and one reading of the weights
serves all images.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.images import LBFGS, Adam, Prior
from gradleak.images.matching.optimizers import Track, adam, lbfgs
from gradleak.leak import Leak


class Factored:
    """The loss of attacks on N leaks of one sample each, and its gradient; labels (N, C) are known.

    The network: linear layers without bias, ReLU between them.
    """

    def __init__(self, leaks: Sequence[Leak], labels: Tensor, kind: str, prior: Prior) -> None:
        model = leaks[0].model
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        others = [module for module in model.modules() if not list(module.children()) and module not in layers.values()]
        if any(layer.bias is not None for layer in layers.values()) or not all(
            isinstance(module, nn.ReLU | nn.Flatten) for module in others
        ):
            raise InputError("gradients are matched by their factors in linear layers without bias, ReLU between them")
        assert leaks[0].input_shape is not None
        self.shape = leaks[0].input_shape
        self.labels, self.kind, self.prior = labels, kind, prior
        self.weights = [layer.weight.detach() for layer in layers.values()]
        pairs = [[factors(leak.gradients[f"{name}.weight"]) for leak in leaks] for name in layers]
        self.observed = [(torch.stack([d for d, _ in own]), torch.stack([x for _, x in own])) for own in pairs]

    def losses(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the loss (A,) of attacks at inputs (A, P), `owners` (A,) telling whose leak each looks at."""
        seen, masks = [places], []
        for weight in self.weights[:-1]:
            before = seen[-1] @ weight.T
            masks.append(before > 0)
            seen.append(before.relu())
        errors = [(seen[-1] @ self.weights[-1].T).softmax(dim=1) - self.labels[owners]]
        for weight, mask in zip(self.weights[:0:-1], masks[::-1], strict=True):
            errors.insert(0, (errors[0] @ weight) * mask)
        product, own, other = (torch.zeros(len(places), dtype=torch.float64, device=places.device) for _ in range(3))
        for d, x, (true_d, true_x) in zip(errors, seen, self.observed, strict=True):
            product = product + dot(d, true_d[owners]) * dot(x, true_x[owners])
            own = own + dot(d, d) * dot(x, x)
            other = other + dot(true_d[owners], true_d[owners]) * dot(true_x[owners], true_x[owners])
        distance = own - 2 * product + other if self.kind == "l2" else 1 - product / (own * other).sqrt()
        return distance + self.prior.of(places.reshape(-1, 1, *self.shape))

    def evaluate(self, places: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss (A,) at places (A, P) and its gradient there."""
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            losses = self.losses(places, owners)
            (slopes,) = torch.autograd.grad(losses.sum(), [places])
        return losses.detach().to(places), slopes


def factors(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return δ (O,) and x (I,) of a gradient δ xᵀ, x of length 1."""
    row = gradient[gradient.square().sum(dim=1).argmax()]
    unit = row / row.norm().clamp(min=torch.finfo(row.dtype).tiny)
    return gradient @ unit, unit


def dot(one: Tensor, other: Tensor) -> Tensor:
    """Return the inner products (A,) of rows, in float64."""
    return (one.double() * other.double()).sum(dim=1)


def match_factored(
    leaks: Sequence[Leak], labels: Tensor, kind: str, optimizer: Adam | LBFGS, prior: Prior, seeds: Sequence[int]
) -> Tensor:
    """Return the images (N, …) of N leaks, each from a random start of its own seed: the iterates of least loss."""
    objective = Factored(leaks, labels, kind, prior)
    size = torch.Size(objective.shape).numel()
    starts = [torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    places = torch.cat(starts).to(labels)
    track = Track.start(places, optimizer.steps)
    if isinstance(optimizer, Adam):
        adam(optimizer, objective.evaluate, places, track, lambda at: at, 0.0)
    else:
        lbfgs(optimizer, objective.evaluate, places, track, 0.0)
    return track.best.reshape(-1, *objective.shape)
