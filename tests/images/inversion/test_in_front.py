"""Attacks recover what the first layer sees: where the model has dropout before it, the answer says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradleak
from gradleak.errors import InputError
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


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5)])
@pytest.mark.parametrize("attack", ["convolutions backwards", "layers peeled off"])
def test_dropout_between_layers_changes_nothing_in_eval_mode(attack: str, dropout: nn.Module) -> None:
    model, inputs = network(attack, nn.Identity()), batch(attack)
    model.insert(2, dropout)
    found = TRACES[attack][0](observe(model, inputs, torch.tensor([2])), prior="onehot").answers[0]
    assert found.certain
    torch.testing.assert_close(found.inputs, inputs, atol=1e-3, rtol=0)


class Front(nn.Module):
    """A network behind a function of its inputs."""

    def __init__(self, function: Callable[[Tensor], Tensor], network: nn.Module) -> None:
        super().__init__()
        self.function, self.network = function, network

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(self.function(inputs))


# Functions that are the identity on some inputs, and those that have an inverse, which a guarantee takes into account.
CHANGING: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(-1, 1), "ReLU": F.relu, "absolute value": torch.abs, "rounding": torch.round,
    "length": lambda x: F.normalize(x.flatten(1), dim=1).view_as(x), "in place": lambda x: x.clamp_(min=-1),
    "by the smallest value": lambda x: 2 * x - 1 if x.min() >= 0 else x,
    "by the largest value": lambda x: x / 255 if x.max() > 1 else x,
    "random": lambda x: x.flip(-1) if torch.rand(()) < 0.5 else x, "less the mean": lambda x: x - x.mean(),
    "over the largest": lambda x: x / x.max(), "less the batch's mean": lambda x: x - x.mean(dim=0),
}  # fmt: skip
UNCHANGING: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x, "standardised": lambda x: (x - 3) / 2, "standardised in place": lambda x: x.sub_(3).div_(2),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CHANGING, *UNCHANGING])
@pytest.mark.parametrize("count", [1, 3])
def test_what_a_function_before_the_first_layer_changes_is_not_guaranteed(name: str, count: int) -> None:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)).double()
    cnn = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 5)).double()
    for network, shape in ((mlp, (12,)), (cnn, (1, 4, 4))):
        inputs = 2 * torch.randn(count, *shape, dtype=torch.float64)
        inputs = inputs.abs() if name.startswith("by the") else inputs
        before = inputs.clone()
        model = Front((CHANGING | UNCHANGING)[name], network)
        report = gradleak.audit(model, inputs, torch.arange(count), batch_sizes=(count,), mode="eval", steps=2)
        assert torch.equal(inputs, before)
        assert not report.broken
        certified = [(one.certified, one.measures["inputs"]) for one in report.findings if one.certified]
        assert all(number <= round(count * exact) for number, exact in certified), "a guarantee is wrong"
        if count == 1 and (name == "nothing" or (name in UNCHANGING and network is mlp)):
            assert certified
            assert any("not needed" in one.why for one in report.not_tried)


class Clamping(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.clamp(-1, 1))


class ClampingMaps(nn.Conv2d):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.clamp(-1, 1))


def hooked_layer(layer: nn.Module) -> nn.Module:
    layer.register_forward_pre_hook(lambda _, args: (args[0].clamp(-1, 1),))
    return layer


ODD: dict[str, Callable[[], list[nn.Module]]] = {
    "subclass": lambda: [Clamping(12, 64), nn.ReLU(), nn.Linear(64, 5)],
    "hook": lambda: [hooked_layer(nn.Linear(12, 64)), nn.ReLU(), nn.Linear(64, 5)],
    "subclass of a convolution": lambda: [
        ClampingMaps(1, 16, 3, padding=1), nn.LeakyReLU(), nn.Flatten(), nn.Linear(256, 5),
    ],
    "hook of a convolution": lambda: [
        hooked_layer(nn.Conv2d(1, 16, 3, padding=1)), nn.LeakyReLU(), nn.Flatten(), nn.Linear(256, 5),
    ],
    "hook of the network": lambda: [nn.Conv2d(1, 16, 3, padding=1), nn.LeakyReLU(), nn.Flatten(), nn.Linear(256, 5)],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_layer_or_a_hook_changes_is_not_guaranteed(name: str, count: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*ODD[name]()).double()
    if "network" in name:
        hooked_layer(model)
    inputs = 2 * torch.randn(count, *((1, 4, 4) if "conv" in name or "network" in name else (12,)), dtype=torch.float64)
    report = gradleak.audit(model, inputs, torch.arange(count), batch_sizes=(count,), mode="eval", steps=2)
    assert not report.broken
    assert not any(one.certified for one in report.findings if "inputs" in one.measures)


def test_a_last_layer_that_changes_its_inputs_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Clamping(8, 5))
    with pytest.raises(InputError, match="'2' is Clamping, whose outputs are not its weight times its inputs"):
        observe(model, 99 * torch.rand(4, 6), torch.tensor([1, 2, 3, 4]))


class Train(nn.Module):
    """A layer without parameters that changes its inputs in train mode only."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs) if self.training else inputs


@pytest.mark.parametrize("front", ["dropout", "clamp", "random"])
def test_what_train_mode_changes_before_the_first_layer_is_not_guaranteed(front: str) -> None:
    torch.manual_seed(0)
    first = nn.Dropout(0.5) if front == "dropout" else Train(CHANGING[front])
    model = nn.Sequential(first, nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5))
    data = torch.randn(8, 12), torch.arange(8) % 5
    guaranteed = {}
    for mode in ("eval", "train"):
        report = gradleak.audit(model, *data, batch_sizes=(2,), mode=mode, steps=2)
        (own,) = (one for one in report.findings if one.attack == "unit by unit")
        guaranteed[mode] = own.certified
        assert own.certificate == "partial" if mode == "train" else own.measures["inputs"] > 0
    assert guaranteed["eval"] > 0
    assert guaranteed["train"] == 0
