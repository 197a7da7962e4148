"""Matching by factors, against the engine that writes every gradient out."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from gradleak.images import Distance, Prior
from gradleak.images.matching.factored import FactoredObjective, factored
from gradleak.images.matching.objective import Objective
from gradleak.leak import Leak
from tests.images.matching.attacked import observed

KINDS = ("l2", "cosine")
ACTIVATIONS = (nn.ReLU(), nn.Sigmoid(), nn.LeakyReLU(0.2), nn.Tanh(), nn.ELU())


def network(activation: nn.Module, bias: bool, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    widths = (128, 24, 16)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), activation]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 5, bias=bias)).to(dtype)


def singles(model: nn.Module, count: int) -> tuple[list[Leak], Tensor, Tensor]:
    return observed(model, count, 1, 5, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("joint", "bias"), [(False, True), (True, False)])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_losses_and_slopes_equal_the_engines(activation: nn.Module, joint: bool, bias: bool, kind: str) -> None:
    leaks, inputs, labels = singles(network(activation, bias), 3)
    distance, prior = Distance(kind), Prior(variation=0.01)  # type: ignore[arg-type]
    known = None if joint else labels[:, None]
    sent = [factored(leak) for leak in leaks]
    pair = Objective(leaks, known, None, distance, prior), FactoredObjective(sent, known, distance, prior)
    generator = torch.Generator().manual_seed(5)
    owners = torch.tensor([2, 0, 2, 1])
    places = torch.randn(4, 128 + 5 * joint, generator=generator).double()
    # One of them is nearly where the gradients are alike.
    places[1, :128] = inputs[0].flatten() * (1 + 1e-6)
    (losses, slopes), (other, others) = (objective.evaluate(places, owners) for objective in pair)
    torch.testing.assert_close(other, losses, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(others, slopes, rtol=1e-7, atol=1e-12)


def test_single_precision_keeps_its_digits_near_the_end() -> None:
    model = network(nn.ReLU(), bias=False, dtype=torch.float32)
    leaks, inputs, labels = singles(model, 1)
    sent = [factored(leaks[0])]
    size = sum(float(value.square().sum()) for value in leaks[0].gradients.values())
    for kind in KINDS:
        objective = FactoredObjective(sent, labels[:, None], Distance(kind), Prior())  # type: ignore[arg-type]
        for length in (1.0, 1 + 1e-4, 1 + 1e-3):
            loss = float(objective.losses(length * inputs.flatten(1), torch.tensor([0])))
            assert -1e-15 <= loss <= 20 * size * ((length - 1) ** 2 + 1e-13)
            assert length == 1 or loss > 0
