"""A user's module with a model and private batches."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

brought = SimpleNamespace(
    make=lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)).double(),
    batches=lambda: (
        torch.randn(12, 20, generator=torch.Generator().manual_seed(0)).double(), torch.arange(12) % 8,
    ),
)  # fmt: skip
