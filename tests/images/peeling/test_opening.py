"""The last map opened: positions and samples told apart by overlapping patches alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.grad import conv2d_weight

from gradleak.images.peeling.opening import opened, refused


@pytest.mark.parametrize(("side", "stride"), [(3, 1), (5, 2)])
@pytest.mark.parametrize("levels", [(0.0, 1.0), (0.1, 1.0)])
def test_masks_of_a_batch_are_read_from_one_gradient(side: int, stride: int, levels: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(0)
    module = nn.Conv2d(20, 64, side, stride=stride, padding=side // 2, bias=False)
    inputs = torch.randn(3, 20, 4 * stride, 4 * stride, generator=generator, dtype=torch.float64).relu()
    arrived = torch.randn(3, 64, 1, 1, generator=generator, dtype=torch.float64).expand(-1, -1, 4, 4)
    slopes = torch.where(torch.rand(3, 64, 4, 4, generator=generator) < 0.5, levels[0], levels[1]).double()
    gradient = conv2d_weight(inputs, (64, 20, side, side), arrived * slopes, stride=stride, padding=side // 2)
    found = opened(module, gradient, arrived, tuple(inputs.shape[2:]), levels, 1e-16)
    assert found.slopes is not None, found.reason
    torch.testing.assert_close(found.slopes, slopes)
    assert found.off < 1e-8
    wrong = opened(module, gradient, arrived.flip(1), tuple(inputs.shape[2:]), levels, 1e-16)
    assert wrong.slopes is None
    assert "no on and off" in wrong.reason


def test_what_cannot_be_opened_is_refused_by_its_count() -> None:
    assert "do not overlap" in refused(nn.Conv2d(8, 64, 1), (64, 4, 4), 1)
    assert "too little" in refused(nn.Conv2d(8, 64, 3, stride=2), (64, 4, 4), 1)
    assert refused(nn.Conv2d(8, 64, 3, padding=1), (64, 8, 8), 2) == "128 positions of 2 samples in 64 channels"
    assert refused(nn.Conv2d(8, 64, 3, padding=1), (64, 4, 4), 4) == ""
