"""A user's module with a model and private batches, and the options of an audit of it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from gradleak.auditing import options

AUDITED = options.Options(
    "brought:make", "brought:batches", None, "1,2", None, "none,clip/1", "cross-entropy", 60.0, None, True, None,
    None, 0.1, 1, 0.0, 0.0, None, 0, (), 2,
)  # fmt: skip
brought = SimpleNamespace(
    make=lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)).double(),
    batches=lambda: (
        torch.randn(12, 20, generator=torch.Generator().manual_seed(0)).double(), torch.arange(12) % 8,
    ),
)  # fmt: skip
