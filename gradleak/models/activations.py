"""Define the activations that networks with a choice of activation can have."""

from __future__ import annotations

from torch import nn

from gradleak.errors import unknown

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "selu": nn.SELU, "silu": nn.SiLU,
}  # fmt: skip


def activation_of(name: str) -> type[nn.Module]:
    """Return the module class of an activation by its name."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]
