"""SPEAR's core: batches out of one layer's low rank and zeros, and no more once the draws run out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.images import spear
from gradleak.leak import observe

WIDTH, INPUTS, CLASSES = 120, 40, 10


def _sent(size: int, dtype: torch.dtype) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nn.Linear(INPUTS, WIDTH)
        model = nn.Sequential(first, nn.ReLU(), nn.Linear(WIDTH, CLASSES)).to(dtype)
    inputs = torch.randn(size, INPUTS, generator=generator, dtype=torch.float64)
    leak = observe(model, inputs.to(dtype), torch.randint(CLASSES, (size,), generator=generator))
    return inputs, (first.weight, first.bias, leak.gradients["0.weight"], leak.gradients["0.bias"])


@pytest.mark.parametrize(
    ("size", "dtype", "exact"),
    [(1, torch.float64, 1e-10), (3, torch.float64, 1e-9), (6, torch.float64, 1e-8), (4, torch.float32, 1e-3)],
)
def test_a_batch_comes_out_of_one_layer(size: int, dtype: torch.dtype, exact: float) -> None:
    inputs, layer = _sent(size, dtype)
    found = spear(*layer, size)
    assert found.inputs is not None
    assert float(torch.cdist(inputs, found.inputs).amin(dim=1).max()) < exact
    assert float(torch.cdist(found.inputs, inputs).amin(dim=1).max()) < exact


def test_without_the_draws_there_is_no_batch() -> None:
    _, layer = _sent(24, torch.float64)
    found = spear(*layer, 24, draws=5000)
    assert found.inputs is None
    assert found.draws == 8192
