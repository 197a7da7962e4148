"""What an attack found, observed again: the gradient that its inputs give, beside the one that was seen.

No inversion is called exact without this. Equations that are solved one layer at a time can all be met by inputs that
are wrong: where the gradient was changed, where the client's weights are not the attacker's, where the labels are
others. The gradient of what was found is then another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradleak.leak import Leak, evaluating

TINY = torch.finfo(torch.float64).tiny
# The columns of a gradient's residual are compared in so many entries at a time.
PART = 2**18


@dataclass(frozen=True)
class Again:
    """By how much the gradient of what was found misses the one that was seen, as a share of that, by parameter.

    `unbalanced`: how far the errors p − y, where they were read from the gradient, are from summing to zero, as all
    errors of labels do; 0 where labels were given.
    """

    misses: Mapping[str, float]
    unbalanced: float

    @property
    def worst(self) -> float:
        """The largest of all."""
        return max([self.unbalanced, *self.misses.values()])

    def beyond(self, allowed: float, noise: float, leak: Leak) -> str:
        """Return which parameter's gradient is missed by more than a share, noise on every entry aside, or nothing."""
        if not self.unbalanced <= allowed:
            return f"the errors p − y that the last layer's gradient gives do not sum to zero ({self.unbalanced:.1e})"
        for name, missed in self.misses.items():
            gradient = leak.gradients[name]
            added = noise * math.sqrt(gradient.numel()) / max(float(gradient.double().norm()), TINY) if noise else 0.0
            if not missed <= allowed + 2 * added:
                return f"what was found has another gradient: '{name}' is missed by {missed:.1e} of its size"
        return ""


def observed_again(leak: Leak, inputs: Tensor, labels: Tensor | None, *, dtype: torch.dtype = torch.float64) -> Again:
    """Observe found inputs (B, …) again in float64, or in another `dtype`, and compare with the leak.

    `labels` (B, C); None for those that the inputs themselves imply: the last layer's gradient divided by the features
    that they have gives the errors, in whatever scale they were sent.
    """
    if not inputs.isfinite().all():
        return Again(dict.fromkeys(leak.gradients, math.inf), math.inf)
    values = {name: own.detach().to(dtype) for name, own in leak.model.named_parameters()}
    values |= {n: own.to(dtype) if own.is_floating_point() else own for n, own in leak.model.named_buffers()}
    own = {name: values[name].requires_grad_() for name in leak.gradients}
    seen: list[Tensor] = []
    head = leak.model.get_submodule(leak.head)

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0].detach())

    hook = head.register_forward_pre_hook(keep)
    try:
        with torch.enable_grad(), evaluating(leak.model):
            logits = functional_call(leak.model, values, (inputs.to(dtype),))
            errors = _errors(leak, logits.detach(), seen[-1], labels)
            given = torch.autograd.grad(logits, list(own.values()), errors / len(inputs), allow_unused=True)
    finally:
        hook.remove()
    misses = {name: _missed(leak.gradients[name], gradient) for name, gradient in zip(own, given, strict=True)}
    unbalanced = 0.0
    if labels is None:
        unbalanced = float((errors.sum(dim=1).abs() / errors.abs().sum(dim=1).clamp(min=TINY)).max())
    return Again(misses, unbalanced)


def _errors(leak: Leak, logits: Tensor, features: Tensor, labels: Tensor | None) -> Tensor:
    """Return p − y (B, C), read from the last layer's gradient where no labels are given."""
    if labels is not None:
        return logits.softmax(dim=1) - labels.to(logits)
    errors: Tensor = len(features) * (leak.weight_gradient.to(features) @ torch.linalg.pinv(features)).T
    return errors


def _missed(seen: Tensor, given: Tensor | None) -> float:
    """Return how far a gradient is from the one that was seen, as a share of it."""
    size = float(torch.linalg.vector_norm(seen, dtype=torch.float64))
    if given is None:
        return 0.0 if size == 0 else 1.0
    parts = zip(seen.flatten().split(PART), given.flatten().split(PART), strict=True)
    missed = math.sqrt(sum(float((one - other).square().sum()) for one, other in parts))
    return missed / size if size else (0.0 if missed == 0 else math.inf)
