"""The gradient matching that closed forms are compared with: DLG's L2 with L-BFGS, and cosine with Adam."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.leak import Leak


@dataclass(frozen=True)
class Matched:
    """The best iterate (1, …), its distance and the seconds that the search took."""

    inputs: Tensor
    distance: float
    seconds: float


def matched(leak: Leak, labels: Tensor, distance: str, steps: int, rate: float, seed: int) -> Matched:
    """Match one sample's gradient from a random start, its label known; the best iterate is kept."""
    model, observed = leak.model, leak.gradients
    parameters = [model.get_parameter(name) for name in observed]
    targets = list(observed.values())
    weight = parameters[0]
    generator = torch.Generator().manual_seed(seed)
    assert leak.input_shape is not None
    image = torch.randn(1, *leak.input_shape, generator=generator).to(weight).requires_grad_()
    labels = labels.to(weight)
    best = Matched(image.detach().clone(), float("inf"), 0.0)
    started = time.perf_counter()

    flat = torch.cat([value.flatten() for value in targets])

    def missed() -> Tensor:
        loss = -(labels * F.log_softmax(model(image), dim=1)).sum()
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        own = torch.cat([value.flatten() for value in gradients])
        return (own - flat).square().sum() if distance == "l2" else 1 - F.cosine_similarity(own, flat, dim=0)

    def closure() -> float:
        nonlocal best
        value = missed()
        (image.grad,) = torch.autograd.grad(value, [image])
        if float(value.detach()) < best.distance:
            best = Matched(image.detach().clone(), float(value.detach()), 0.0)
        return float(value.detach())

    optimizer: torch.optim.Optimizer = (
        torch.optim.LBFGS([image], lr=rate) if distance == "l2" else torch.optim.Adam([image], lr=rate)
    )
    was_training = model.training
    model.eval()
    for _ in range(steps):
        optimizer.step(closure)
    model.train(was_training)
    return Matched(best.inputs, best.distance, time.perf_counter() - started)
