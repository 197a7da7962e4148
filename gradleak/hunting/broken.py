"""Define clients that violate one assumption of the attacks without the attacker's knowledge."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.leak import Gradients, Leak
from gradleak.losses import Focal, Loss

Changed = Callable[[Gradients, str, torch.Generator], Gradients]


@dataclass(frozen=True)
class Broken:
    """One broken assumption.

    Attributes:
        words: A description.
        changed: Changes the gradients, given the last layer's name and a generator.
        rate: If positive, the client computes its gradient after an additional step of gradient descent with this
            learning rate.
        loss: The client's loss, if it is not the cross-entropy.
        prior: The wrong prior for the labels that the attacker uses.
        more: The number of samples by which the attacker overestimates the batch size.
        fronts: Functions, of which the network applies one to its inputs. The attacker has this network.
    """

    words: str
    changed: Changed | None = None
    rate: float = 0.0
    loss: Loss | None = None
    prior: str | None = None
    more: int = 0
    fronts: tuple[Callable[[Tensor], Tensor], ...] = ()

    def sent(self, look: Callable[[nn.Module], Leak], model: nn.Module, generator: torch.Generator) -> Leak:
        """Return the leak that an attacker with `model` receives; `look` returns the client's leak of a model."""
        if self.fronts:
            front = self.fronts[int(torch.randint(len(self.fronts), (1,), generator=generator))]
            model.register_forward_pre_hook(lambda _, args: (front(args[0]), *args[1:]))
        leak = look(model)
        if self.rate:
            ahead = copy.deepcopy(model)
            with torch.no_grad():
                for name, parameter in ahead.named_parameters():
                    if name in leak.gradients:
                        parameter.sub_(self.rate * leak.gradients[name])
            leak = replace(look(ahead), model=model)
        if self.changed is not None:
            leak = replace(leak, gradients=self.changed(leak.gradients, leak.head, generator))
        return replace(leak, batch_size=leak.batch_size + self.more)


def _each(change: Callable[[Tensor, torch.Generator], Tensor], *, lower: bool = False) -> Changed:
    """Change each tensor independently; with `lower` only the tensors of layers below the last."""

    def changed(gradients: Gradients, head: str, generator: torch.Generator) -> Gradients:
        return {
            name: value if lower and name.rpartition(".")[0] == head else change(value, generator)
            for name, value in gradients.items()
        }

    return changed


def _noisy(level: float) -> Changed:
    """Add normal noise, with `level` times the whole gradient's root mean square, to every entry."""

    def changed(gradients: Gradients, head: str, generator: torch.Generator) -> Gradients:
        square = sum(float(value.double().square().sum()) for value in gradients.values())
        deviation = level * math.sqrt(square / sum(value.numel() for value in gradients.values()))

        def noise(value: Tensor) -> Tensor:
            return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)

        return {name: value + deviation * noise(value) for name, value in gradients.items()}

    return changed


def _scaled(value: Tensor, generator: torch.Generator) -> Tensor:
    """Scale a tensor by a random factor from 0.3 to 1."""
    return value * (0.3 + 0.7 * float(torch.rand(1, generator=generator)))


def _signs(value: Tensor, generator: torch.Generator) -> Tensor:
    return value.sign() * value.abs().mean()


def _half(value: Tensor, generator: torch.Generator) -> Tensor:
    """Set the smaller half of the entries to zero."""
    return torch.where(value.abs() > value.abs().median(), value, 0) if value.numel() > 1 else value


def _one_entry(gradients: Gradients, head: str, generator: torch.Generator) -> Gradients:
    """Set the largest entry of one tensor to zero."""
    name = list(gradients)[int(torch.randint(len(gradients), (1,), generator=generator))]
    changed = gradients[name].clone().flatten()
    changed[changed.abs().argmax()] = 0
    return gradients | {name: changed.view(gradients[name].shape)}


FRONTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.clamp(-0.5, 0.5), torch.relu, torch.abs, lambda x: (8 * x).round() / 8, lambda x: x / x.norm(),
    lambda x: x - x.mean(), lambda x: x - x.mean(dim=0), lambda x: x / x.max(), lambda x: x.sort(dim=-1).values,
    lambda x: 2 * x - 1 if x.min() >= 0 else x, lambda x: x / 2 if x.max() > 1 else x,
    lambda x: x.flip(-1) if torch.rand(()) < 0.5 else x,
)  # fmt: skip
BROKEN: dict[str, Broken] = {
    "none": Broken("every assumption holds"),
    "clipped": Broken("the gradient is halved", _each(lambda value, _: value / 2)),
    "clipped by tensor": Broken("each tensor is scaled by its own factor", _each(_scaled)),
    "lower layers clipped": Broken(
        "all tensors but the last layer's are halved", _each(lambda value, _: value / 2, lower=True)
    ),
    "signs": Broken("only signs are sent, times one magnitude for each tensor", _each(_signs)),
    "signs of lower layers": Broken(
        "only signs are sent for all tensors but the last layer's, times one magnitude for each tensor",
        _each(_signs, lower=True),
    ),
    "noise of 1e-7": Broken("noise of 1e-7 of the gradient's root mean square", _noisy(1e-7)),
    "noise of 1e-5": Broken("noise of 1e-5 of the gradient's root mean square", _noisy(1e-5)),
    "noise of 1e-3": Broken("noise of 1e-3 of the gradient's root mean square", _noisy(1e-3)),
    "half dropped": Broken("the smaller half of each tensor's entries is dropped", _each(_half)),
    "one entry dropped": Broken("the largest entry of one tensor is dropped", _one_entry),
    "rounded to bfloat16": Broken(
        "the gradient is rounded to eight binary digits", _each(lambda value, _: value.to(torch.bfloat16).to(value))
    ),
    "weights a small step ahead": Broken("the weights are one training step ahead, at learning rate 1e-4", rate=1e-4),
    "weights a step ahead": Broken("the weights are one training step ahead, at learning rate 1e-2", rate=1e-2),
    "another loss": Broken("the client trains with the focal loss", loss=Focal()),
    "another prior": Broken("labels are soft, but the attacker takes them for one-hot labels", prior="onehot"),
    "another batch size": Broken("the batch has fewer samples than the attacker assumes", more=1),
    "changed inputs": Broken("the network changes its inputs, by their values or at random", fronts=FRONTS),
}


def options(broken: Broken) -> dict[str, Any]:
    """Return the arguments of `observe` for a client, which include the loss if it differs."""
    return {} if broken.loss is None else {"loss": broken.loss}
