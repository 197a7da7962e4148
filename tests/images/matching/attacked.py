"""Small clients whose gradients are attacked in the tests, and one attack as a plain loop."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.images import Distance, Prior
from gradleak.leak import Leak, observe


def small(seed: int, classes: int, activation: nn.Module, bias: bool, norm: bool) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, stride=2, padding=1), activation]
    if norm:
        layers.insert(1, nn.BatchNorm2d(4))
    return nn.Sequential(*layers, nn.Conv2d(4, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, classes, bias))


def observed(model: nn.Module, count: int, size: int, classes: int, seed: int) -> tuple[list[Leak], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(count * size, 2, 8, 8, generator=generator).to(dtype)
    labels = torch.rand(count * size, classes, generator=generator).to(dtype).softmax(dim=1)
    leaks = [observe(model, inputs[n * size : (n + 1) * size], labels[n * size : (n + 1) * size]) for n in range(count)]
    return leaks, inputs, labels


def noisy(leak: Leak, deviation: float, generator: torch.Generator) -> Leak:
    """Return the leak of a client that adds normal noise to its gradients."""
    noise = {name: torch.randn(v.shape, generator=generator, dtype=v.dtype) for name, v in leak.gradients.items()}
    return replace(leak, gradients={name: v + deviation * noise[name] for name, v in leak.gradients.items()})


def plain(
    leak: Leak, inputs: Tensor, labels: Tensor, distance: Distance, prior: Prior, features: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The loss of one attack and its gradient, by autograd and nothing else."""
    inputs = inputs.clone().requires_grad_()
    seen: list[Tensor] = []
    hook = leak.model.get_submodule(leak.head).register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    loss = -(labels * F.log_softmax(leak.model.eval()(inputs), dim=1)).sum(dim=1).mean()
    hook.remove()
    names = list(leak.gradients)
    own = torch.autograd.grad(loss, [leak.model.get_parameter(name) for name in names], create_graph=True)
    weights = [distance.head if name.startswith(f"{leak.head}.") else 1.0 for name in names]
    pairs = [(w, g.flatten(), leak.gradients[n].flatten()) for w, g, n in zip(weights, own, names, strict=True) if w]
    if distance.kind == "l2":
        value = sum(w * (a - b).square().sum() for w, a, b in pairs)
    else:
        scaled = [torch.cat([w**0.5 * side for w, *both in pairs for side in both[i : i + 1]]) for i in (0, 1)]
        value = 1 - F.cosine_similarity(*scaled, dim=0)
    if features is not None:
        a, b = seen[0].flatten(), features.flatten()
        own_term = (a - b).square().sum() if distance.kind == "l2" else 1 - F.cosine_similarity(a, b, dim=0)
        value = value + distance.feature * own_term
    across = (inputs[..., 1:] - inputs[..., :-1]).abs().mean()
    down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().mean()
    value = value + prior.variation * (across + down)
    (slope,) = torch.autograd.grad(value, [inputs])
    return value.detach(), slope
