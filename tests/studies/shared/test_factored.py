"""Gradients matched by their factors: the engine's loss and slope, and its images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.errors import InputError
from gradleak.images import LBFGS, Adam, Prior, match
from gradleak.images.matching.objective import Distance, Kind, Objective
from gradleak.leak import Leak, observe
from gradleak.studies.shared.factored import Factored, factors, match_factored

KINDS: tuple[Kind, ...] = ("l2", "cosine")


@pytest.fixture(scope="module")
def private() -> tuple[list[Leak], torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    layers = [nn.Linear(108, 12, bias=False), nn.ReLU(), nn.Linear(12, 8, bias=False), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(8, 5, bias=False)).double()
    inputs = torch.randn(3, 3, 6, 6, generator=generator, dtype=torch.float64)
    labels = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    labels = labels / labels.sum(dim=1, keepdim=True)
    return [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(3)], labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variation", [0.0, 0.1])
def test_loss_and_slope_are_the_engines(private: tuple[list[Leak], torch.Tensor], kind: Kind, variation: float) -> None:
    leaks, labels = private
    prior = Prior(variation=variation)
    whole = Objective(leaks, labels.unsqueeze(1), None, Distance(kind), prior)
    places = torch.randn(4, 108, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    owners = torch.tensor([2, 0, 1, 0])
    for one, other in zip(
        Factored(leaks, labels, kind, prior).evaluate(places, owners), whole.evaluate(places, owners), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "optimizer"), [("l2", LBFGS(steps=2, search=False)), ("cosine", Adam(steps=30))])
def test_images_are_the_engines(private: tuple[list[Leak], torch.Tensor], kind: Kind, optimizer: Adam | LBFGS) -> None:
    leaks, labels = private
    images = match_factored(leaks, labels, kind, optimizer, Prior(), [7, 8, 9])
    for n, leak in enumerate(leaks):
        alone = match(leak, labels[n : n + 1], distance=kind, optimizer=optimizer, seed=7 + n)
        torch.testing.assert_close(images[n : n + 1], alone.images, rtol=1e-5, atol=1e-6)


def test_a_gradient_is_its_factors() -> None:
    d, x = torch.randn(4, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    found = factors(torch.outer(d, x))
    torch.testing.assert_close(torch.outer(*found), torch.outer(d, x))
    assert factors(torch.zeros(4, 9))[0].eq(0).all()


def test_other_networks_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4, bias=False), nn.Sigmoid(), nn.Linear(4, 3, bias=False))
    leak = observe(model, torch.rand(1, 3, 2, 2), torch.tensor([1]))
    with pytest.raises(InputError, match="by their factors"):
        Factored([leak], torch.eye(3)[1:2], "l2", Prior())
