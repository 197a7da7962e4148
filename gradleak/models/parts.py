"""Define what the networks have in common: their options, their activations, and a last layer named `head`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from gradleak.errors import unknown

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "selu": nn.SELU, "silu": nn.SiLU,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The options with which a network is built."""

    classes: int
    bias: bool
    in_channels: int
    image_size: int
    activation: str

    def head(self, width: int) -> nn.Linear:
        """Return the last layer, for features of this width."""
        return nn.Linear(width, self.classes, bias=self.bias)

    def active(self) -> nn.Module:
        """Return a module of the chosen activation."""
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)
        return ACTIVATIONS[self.activation]()


class Headed(nn.Module):
    """A body that gives features (B, I), and a Linear layer named `head`."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.body(x))
        return out


class Flattened(Headed):
    """The same with a body that gives maps, which are flattened."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        out: Tensor = self.head(self.body(x).flatten(1))
        return out
