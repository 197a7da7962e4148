"""Attacks recover what the first layer sees: where the model has dropout before it, the answer says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.images import peel, trace_convolutional, trace_fully_connected
from gradleak.leak import Leak, observe

TRACES: dict[str, tuple[Callable[..., Any], Callable[[], list[nn.Module]]]] = {
    "linear layers backwards": (trace_fully_connected, lambda: [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)]),
    "convolutions backwards": (
        trace_convolutional, lambda: [nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 5)],
    ),
    "layers peeled off": (
        peel, lambda: [*conv(1, 16), *conv(16, 32), nn.Flatten(), nn.Linear(512, 10)],
    ),
}  # fmt: skip


def conv(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()


def network(attack: str, dropout: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(dropout, *TRACES[attack][1]()).double()


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


@pytest.mark.parametrize("attack", TRACES)
def test_dropout_before_the_first_layer_is_said_with_the_answer(attack: str) -> None:
    inputs = batch(attack)
    leak, seen = trained(network(attack, nn.Dropout(0.5)), inputs)
    found = TRACES[attack][0](leak, prior="onehot")
    answer = found.answers[0]
    assert answer.certain
    torch.testing.assert_close(answer.inputs, seen, atol=1e-3, rtol=0)
    assert not torch.allclose(seen, inputs)
    told = "these are the inputs of the first layer; in train mode Dropout '0' changes the network's inputs before it"
    assert answer.in_front == found.in_front == told
    assert leak.model.training


@pytest.mark.parametrize("attack", TRACES)
def test_without_dropout_nothing_is_said(attack: str) -> None:
    leak = observe(network(attack, nn.Dropout(0.0)), batch(attack), torch.tensor([2]))
    answer = TRACES[attack][0](leak, prior="onehot").answers[0]
    assert (answer.certain, answer.in_front) == (True, "")
