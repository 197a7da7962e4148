"""Check an attack's result: compute the gradient of the inputs that were found, and compare it with the leak.

Every inversion must pass this check to be "exact". Wrong inputs can satisfy all equations that are solved one layer at
a time. This happens if the gradient was changed, if the client's weights differ from the attacker's, or if the labels
are wrong. The gradient of the inputs then differs from the leak.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.calling import with_values
from gradleak.leak import Leak, at_places, evaluating, hooked

TINY = torch.finfo(torch.float64).tiny
# Gradients are compared this many entries at a time, to save memory.
PART = 2**18


@dataclass(frozen=True)
class Again:
    """The errors of the gradient that the found inputs give.

    Attributes:
        misses: The relative error of the gradient of each parameter.
        unbalanced: If the errors p − y were computed from the gradient, how far a sample's errors are from summing to
            zero, relative to the sum of their absolute values. It is 0 if labels were given.
    """

    misses: Mapping[str, float]
    unbalanced: float

    @property
    def worst(self) -> float:
        """The largest of all errors."""
        return max([self.unbalanced, *self.misses.values()])

    def beyond(self, allowed: float, noise: float, leak: Leak) -> str:
        """Return why the check fails, "" if it passes.

        Args:
            allowed: The largest relative error that passes.
            noise: The standard deviation of the noise on every entry of the leak, which raises this limit.
            leak: The leak.
        """
        if not self.unbalanced <= allowed:
            sums = f"should sum to zero, but their sum is {self.unbalanced:.1e} of their absolute sum"
            return f"the errors p − y in the last layer's gradient {sums}"
        for name, missed in self.misses.items():
            gradient = leak.gradients[name]
            added = noise * math.sqrt(gradient.numel()) / max(size_of(gradient), TINY) if noise else 0.0
            if not missed <= allowed + 2 * added:
                return f"what was found has another gradient: '{name}' is missed by {missed:.1e} of its size"
        return ""


def observed_again(leak: Leak, inputs: Tensor, labels: Tensor | None, *, dtype: torch.dtype = torch.float64) -> Again:
    """Compute the gradient of found inputs (B, …) in the given `dtype`, and compare it with the leak.

    Without `labels` (B, C), divide the last layer's gradient by the features of the inputs to get the errors p − y,
    which are then at the scale of the leak.
    """
    if not inputs.isfinite().all():
        return Again(dict.fromkeys(leak.gradients, math.inf), math.inf)
    values = {name: own.detach().to(dtype) for name, own in leak.model.named_parameters()}
    values |= {key: own.to(dtype) if own.is_floating_point() else own for key, own in leak.model.named_buffers()}
    own = {name: values[name].requires_grad_() for name in leak.gradients}
    passed: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    heads = [leak.model.get_submodule(name) for name in leak.averaged or (leak.head,)]

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        passed[module] = args[0].detach(), output

    def differentiated() -> tuple[Tensor, tuple[Tensor | None, ...]]:
        output = leak.model(inputs.to(dtype, copy=True))
        pairs = [at_places(*passed[head], output) for head in heads]
        logits = torch.stack([own for _, own in pairs]).mean(dim=0)
        errors = _errors(leak, logits.detach(), [features for features, _ in pairs], labels)
        return errors, torch.autograd.grad(logits, list(own.values()), errors / len(inputs), allow_unused=True)

    # The logits are read from the last layers, because models may wrap them into other objects.
    hooks = (head.register_forward_hook(keep) for head in heads)
    with hooked(hooks), torch.enable_grad(), evaluating(leak.model):
        errors, gradients = with_values(leak.model, values, differentiated)
    misses = {name: _missed(leak.gradients[name], gradient) for name, gradient in zip(own, gradients, strict=True)}
    unbalanced = 0.0
    if labels is None:
        unbalanced = float((errors.sum(dim=1).abs() / errors.abs().sum(dim=1).clamp(min=TINY)).max())
    return Again(misses, unbalanced)


def _errors(leak: Leak, logits: Tensor, features: Sequence[Tensor], labels: Tensor | None) -> Tensor:
    """Return p − y (B, C), computed from the gradients of the last layers if no labels are given.

    The errors of layers whose outputs are averaged are equal parts of p − y.
    """
    if labels is not None:
        return logits.softmax(dim=1) - labels.to(logits)
    sent = [leak.gradient(f"{name}.weight") for name in leak.averaged] or [leak.weight_gradient]
    parts = [len(own) * (one.to(own) @ torch.linalg.pinv(own)).T for one, own in zip(sent, features, strict=True)]
    return torch.stack(parts).sum(dim=0)


def size_of(values: Tensor) -> float:
    """Return the Euclidean norm, computed in float64."""
    return _length(part.double() for part in values.flatten().split(PART))


def _length(parts: Iterable[Tensor]) -> float:
    """Return the Euclidean norm of a vector in parts: faster than `torch.linalg.vector_norm` in float64."""
    return math.sqrt(sum(float(torch.dot(part, part)) for part in parts))


def _missed(seen: Tensor, given: Tensor | None) -> float:
    """Return the relative error of a computed gradient, with the leak's gradient as the reference."""
    size = size_of(seen)
    if given is None:
        return 0.0 if size == 0 else 1.0
    parts = zip(seen.flatten().split(PART), given.flatten().split(PART), strict=True)
    missed = _length((sent - computed).double() for sent, computed in parts)
    return missed / size if size else (0.0 if missed == 0 else math.inf)
