"""Slopes read wrong on the way down: found by the gradient of their channel, and set right."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from gradleak.images.peeling.network import Network, Step
from gradleak.images.peeling.sweep import Sweep
from gradleak.leak import observe

WRONG = (0, 3, 2, 1)


class Misread(Sweep):
    """A sweep that reads one unit of an activation wrong; `read`: its slopes before that."""

    def __init__(self, *given: object, at: str) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.at, self.read = at, torch.zeros(0)

    def _visit(self, step: Step) -> None:
        super()._visit(step)
        if step.name == self.at:
            self.read = self.slopes[step.name].clone()
            low, high = self.read.min(), self.read.max()
            self.slopes[step.name][WRONG] = low if self.read[WRONG] == high else high


def _network(activation: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), activation, nn.Conv2d(16, 24, 3, padding=1), copy.copy(activation),
            nn.Flatten(), nn.Linear(24 * 16, 12, bias=False),
        ).double()  # fmt: skip


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(0.05)])
def test_a_unit_read_wrong_is_set_right_at_either_slope(activation: nn.Module) -> None:
    model = _network(activation)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    leak = observe(model, inputs, torch.tensor([1, 5]))
    network = Network(model, (3, 4, 4))
    with torch.no_grad():
        features = network.values_at(["_4"], inputs)["_4"]
        errors = _errors(model(inputs), torch.tensor([1, 5]))
        sweep = Misread(network, leak, features, errors, errors.new_zeros(2), 1e-16, at="_3")
        sweep.run()
    torch.testing.assert_close(sweep.slopes["_3"], sweep.read)
    torch.testing.assert_close(sweep.values["input_1"].value, inputs, atol=1e-8, rtol=0)


def _errors(logits: Tensor, classes: Tensor) -> Tensor:
    errors = logits.softmax(dim=1)
    errors[range(len(classes)), classes] -= 1
    return errors
