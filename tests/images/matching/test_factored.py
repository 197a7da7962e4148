"""Matching by factors, against the engine that writes every gradient out."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.images import LBFGS, Adam, Distance, Prior, match
from gradleak.images.matching.factored import FactoredObjective, factored, match_factored
from gradleak.images.matching.objective import Objective
from gradleak.images.matching.optimizers import DECAY
from gradleak.leak import Leak, observe

KINDS = ("l2", "cosine")
ACTIVATIONS = (nn.ReLU(), nn.Sigmoid(), nn.LeakyReLU(0.2), nn.Tanh(), nn.ELU())


def network(activation: nn.Module, bias: bool, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    widths = (32, 24, 16)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), activation]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 5, bias=bias)).to(dtype)


def singles(model: nn.Module, count: int) -> tuple[list[Leak], Tensor, Tensor]:
    generator, like = torch.Generator().manual_seed(4), next(model.parameters())
    inputs = torch.randn(count, 2, 4, 4, generator=generator).to(like)
    labels = torch.randn(count, 5, generator=generator).softmax(dim=1).to(like)
    return [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(count)], inputs, labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_losses_and_slopes_equal_the_engines(activation: nn.Module, joint: bool, bias: bool, kind: str) -> None:
    leaks, inputs, labels = singles(network(activation, bias), 3)
    distance, prior = Distance(kind), Prior(variation=0.01)  # type: ignore[arg-type]
    known = None if joint else labels[:, None]
    sent = [factored(leak) for leak in leaks]
    pair = Objective(leaks, known, None, distance, prior), FactoredObjective(sent, known, distance, prior)
    generator = torch.Generator().manual_seed(5)
    owners = torch.tensor([2, 0, 2, 1])
    places = torch.randn(4, 32 + 5 * joint, generator=generator).double()
    # One of them is nearly where the gradients are alike.
    places[1, :32] = inputs[0].flatten() * (1 + 1e-6)
    (losses, slopes), (other, others) = (objective.evaluate(places, owners) for objective in pair)
    torch.testing.assert_close(other, losses, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(others, slopes, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("labels", ["given", "dlg"])
@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        ("cosine", Adam(steps=12, rate=0.05, decay=DECAY)),
        ("l2", LBFGS(steps=2, rate=0.3, inner=4, search=False, decay=DECAY)),
        ("l2", LBFGS(steps=3, inner=1)),
    ],
    ids=["adam", "whole", "searched"],
)
def test_a_few_steps_give_the_same_iterates(kind: str, optimizer: Adam | LBFGS, labels: str) -> None:
    leaks, _, truth = singles(network(nn.ReLU(), bias=False), 3)
    common = {"distance": Distance(kind), "optimizer": optimizer, "restarts": 2, "seed": 8}  # type: ignore[arg-type]
    known = truth if labels == "given" else labels
    slow = match(leaks, known, **common)  # type: ignore[arg-type]
    seen: list[int] = []
    fast = match_factored(
        [factored(leak) for leak in leaks],
        truth if labels == "given" else None,
        watch=lambda step, best: seen.append(step),
        **common,  # type: ignore[arg-type]
    )
    torch.testing.assert_close(fast.attempts, slow.attempts, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(fast.labels, slow.labels, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(fast.curves, slow.curves, rtol=1e-6, atol=1e-12)
    assert fast.status == slow.status
    assert seen == list(range(1, optimizer.steps + 1))


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


def test_what_is_no_single_samples_gradient_is_refused() -> None:
    model = network(nn.ReLU(), bias=True)
    leaks, inputs, labels = singles(model, 2)
    with pytest.raises(InputError, match=r"'1' is not of rank one.*2 samples"):
        factored(observe(model, inputs, labels))
    noisy = {name: value + 1e-6 * torch.randn_like(value) for name, value in leaks[0].gradients.items()}
    with pytest.raises(InputError, match="not of rank one"):
        factored(replace(leaks[0], gradients=noisy))
    fewer = {name: value for name, value in leaks[0].gradients.items() if name != "3.bias"}
    with pytest.raises(InputError, match=r"lacks 3\.bias"):
        factored(replace(leaks[0], gradients=fewer))
    with pytest.raises(InputError, match="plain distances"):
        FactoredObjective([factored(leaks[0])], labels[:1, None], Distance("l2", feature=1.0), Prior())
