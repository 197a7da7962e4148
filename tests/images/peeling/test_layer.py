"""The inputs of convolutions: least squares, and δ that one channel's gradient contradicts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.grad import conv2d_weight

from gradleak.images.peeling.layer import Equations, solved


def _equations(module: nn.Conv2d, inputs: torch.Tensor, generator: torch.Generator) -> Equations:
    outputs = module.double()(inputs)
    delta = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    delta = delta * (torch.rand(outputs.shape, generator=generator) < 0.5)
    shape = tuple(module.weight.shape)
    gradient = conv2d_weight(inputs, shape, delta, stride=module.stride, padding=module.padding)  # type: ignore[arg-type]
    return Equations(module, delta, gradient)


def test_a_channel_with_a_wrong_slope_is_left_out_and_named() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 6, 6, 6, generator=generator, dtype=torch.float64)
    right = _equations(nn.Conv2d(6, 24, 3, padding=1), inputs, generator)
    delta = right.delta.clone()
    delta[0, 7, 2, 3] += 1
    found = solved([Equations(right.module, delta, right.gradient)], (6, 6, 6), 1e-16)
    assert found.dropped == ((7,),)
    assert found.value is not None
    torch.testing.assert_close(found.value, inputs, atol=1e-9, rtol=0)


def test_errors_are_claimed_as_large_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 40, 6, 6, generator=generator, dtype=torch.float64)
    exact = _equations(nn.Conv2d(40, 16, 3, padding=1), inputs, generator)
    noise = 1e-5 * torch.randn(exact.gradient.shape, generator=generator, dtype=torch.float64)
    found = solved([Equations(exact.module, exact.delta, exact.gradient + noise)], (40, 6, 6), 6e-8)
    assert found.value is not None
    assert found.deviation is not None
    ratio = ((found.value - inputs) / found.deviation).square().mean().sqrt()
    assert 0.5 < float(ratio) < 2
