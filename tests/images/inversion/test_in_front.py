"""Attacks recover what the first layer sees: where the model has dropout before it, the answer says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradleak
from gradleak.images import peel, trace_convolutional, trace_fully_connected
from gradleak.leak import Leak, observe

NETWORKS = {
    "linear layers backwards": lambda: [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)],
    "convolutions backwards": lambda: [nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 5)],
    "layers peeled off": lambda: [
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 10),
    ],
}  # fmt: skip
TRACES = {
    "linear layers backwards": trace_fully_connected,
    "convolutions backwards": trace_convolutional,
    "layers peeled off": peel,
}


def network(attack: str, dropout: nn.Module | None) -> nn.Sequential:
    torch.manual_seed(3)
    layers = NETWORKS[attack]()
    return nn.Sequential(*([dropout] if dropout else []), *layers).double()


def batch(attack: str, count: int = 1) -> Tensor:
    shape = (6,) if attack == "linear layers backwards" else (1, 4, 4)
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def trained(model: nn.Sequential, inputs: Tensor) -> tuple[Leak, Tensor]:
    """Return the update of a client in train mode, and what its first layer saw."""
    seen: list[Tensor] = []
    hook = model[1].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    torch.manual_seed(0)
    loss = F.cross_entropy(model.train()(inputs), torch.tensor([2]))
    named = dict(model.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    hook.remove()
    return Leak(model, gradients, f"{len(model) - 1}", 1, tuple(inputs.shape[1:])), seen[0]


@pytest.mark.parametrize("attack", NETWORKS)
def test_dropout_before_the_first_layer_is_said_with_the_answer(attack: str) -> None:
    inputs = batch(attack)
    leak, seen = trained(network(attack, nn.Dropout(0.5)), inputs)
    found = TRACES[attack](leak, prior="onehot")  # type: ignore[operator]
    answer = found.answers[0]
    assert answer.certain
    torch.testing.assert_close(answer.inputs, seen, atol=1e-3, rtol=0)
    assert not torch.allclose(seen, inputs)
    told = "these are the inputs of the first layer; in train mode Dropout '0' changes the network's inputs before it"
    assert answer.in_front == found.in_front == told
    assert leak.model.training


@pytest.mark.parametrize("attack", NETWORKS)
@pytest.mark.parametrize("dropout", [None, nn.Dropout(0.0)])
def test_without_dropout_nothing_is_said(attack: str, dropout: nn.Module | None) -> None:
    leak = observe(network(attack, dropout), batch(attack), torch.tensor([2]))
    answer = TRACES[attack](leak, prior="onehot").answers[0]  # type: ignore[operator]
    assert (answer.certain, answer.in_front) == (True, "")


@pytest.mark.parametrize("attack", [*NETWORKS, "bias attack"])
def test_an_audit_says_it_in_the_finding(attack: str) -> None:
    kind = "linear layers backwards" if attack == "bias attack" else attack
    model = network(kind, nn.Dropout(0.5))
    report = gradleak.audit(model, batch(kind, 3), torch.arange(3), batch_sizes=(1,), steps=1)
    (own,) = [one for one in report.findings if one.attack == attack]
    assert "in train mode Dropout '0' changes the network's inputs before it" in own.sentence
