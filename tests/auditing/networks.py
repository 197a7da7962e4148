"""Small networks and batches that tests of the audit share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A network of some layers whose forward pass is a function of the network and its inputs."""

    def __init__(self, compute: Callable[[Any, Tensor], object], **layers: nn.Module) -> None:
        super().__init__()
        self.compute, self.passes = compute, 0
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        """Count the pass and compute."""
        self.passes += 1
        return self.compute(self, x)


def mlp(inputs: int = 40, classes: int = 12) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, classes))


def vectors(count: int = 12, inputs: int = 40, classes: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, inputs, generator=generator), torch.arange(count) % classes
