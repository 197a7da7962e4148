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
    assert "no choice of active units" in wrong.reason


@pytest.mark.parametrize(
    ("module", "shape", "size", "reason"),
    [
        (nn.Linear(4, 3), (3, 1, 1), 1, "the gradient of a Linear layer does not separate samples"),
        (
            nn.Conv2d(4, 4, 3, groups=4), (4, 4, 4), 1,
            "it convolves groups of channels separately, and a channel has only the few equations of its own kernel",
        ),
        (
            nn.Conv2d(8, 64, 1), (64, 4, 4), 1,
            "its patches do not overlap, so its equations cannot separate the positions",
        ),
        (nn.Conv2d(8, 64, 3, stride=2), (64, 4, 4), 1, "its patches overlap too little, because of its stride"),
        (nn.Conv2d(8, 64, 3, padding=1), (64, 8, 8), 2, "128 output positions (B = 2), but only 64 channels"),
        (nn.Conv2d(4, 400, 3), (400, 1, 1), 17, "17 output positions (B = 17) are too many to try"),
        (nn.Conv2d(8, 64, 3, padding=1), (64, 4, 4), 4, ""),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_opened_is_refused_with_its_reason(
    module: nn.Conv2d | nn.Linear, shape: tuple[int, ...], size: int, reason: str
) -> None:
    assert refused(module, shape, size) == reason
