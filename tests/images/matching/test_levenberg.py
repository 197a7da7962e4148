"""Second-order matching: to the last digit, and no further than rounding."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.images import LevenbergMarquardt, match
from gradleak.images.matching.levenberg import Misfit
from gradleak.leak import observe


def test_levenberg_marquardt_finds_inputs_to_the_last_digit() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(
        *(nn.Conv2d(2, 8, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(8, 8, 5, 2, 2), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(32, 4, bias=False)),
    ).double()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    inputs, labels = torch.randn(3, 2, 8, 8).double(), torch.rand(3, 4).double().softmax(dim=1)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(3)]
    found = match(leaks, labels, optimizer=LevenbergMarquardt(), seed=1, restarts=2)
    assert found.images.dtype == torch.float64
    assert ((found.images - inputs).flatten(1).norm(dim=1) / inputs.flatten(1).norm(dim=1)).max() < 1e-9
    assert found.status == (("settled", "settled"),) * 3


def test_levenberg_marquardt_ends_where_rounding_explains_the_rest() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 8, 5, 2, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 4, bias=False))
    inputs, labels = torch.randn(1, 2, 8, 8), torch.rand(1, 4).softmax(dim=1)
    leak = observe(model, inputs, labels)
    found = match(leak, labels, optimizer=LevenbergMarquardt(steps=60), seed=1)
    assert found.status == (("settled",),)
    # The size that rounding is expected to have: on the way there the misfit falls by five powers of ten in one step.
    rounding = 4 * Misfit([leak], labels[None], inputs.shape).rounding
    arrived = int(found.history[int((found.curves[0, 0] <= rounding).nonzero()[0])])
    assert int(found.history[-1]) <= arrived + 3
    assert ((found.images - inputs).norm() / inputs.norm()) < 1e-4
