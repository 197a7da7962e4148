"""A user's model is the same after it was attacked, whatever its code does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradleak
from gradleak.calling import called, copy_of
from gradleak.images import invert_units
from gradleak.leak import observe


class Shared(nn.Module):
    """One layer under two names, and another layer whose weight is tied to it; the last pass is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.again = self.first
        self.tied = nn.Linear(12, 12, bias=False)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(12, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        self.hidden = F.relu(self.tied(F.relu(self.again(F.relu(self.first(inputs))))))
        return self.last(self.hidden)


def network() -> tuple[Shared, Tensor, Tensor]:
    torch.manual_seed(0)
    return Shared(), torch.randn(8, 12), torch.arange(8) % 5


def test_shared_and_tied_layers_get_other_values_and_keep_their_own() -> None:
    model, inputs, _ = network()
    other, _, _ = network()
    values = {name: value.detach() + 1 for name, value in model.named_parameters()}
    other.load_state_dict(values, strict=False)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(called(model, values, (inputs,)), other(inputs))
    assert all(isinstance(value, nn.Parameter) for _, value in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_an_audit_leaves_a_model_with_shared_layers_as_it_was() -> None:
    model, inputs, classes = network()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    report = gradleak.audit(model, inputs, classes, batch_sizes=(1, 2), steps=5)
    assert not report.broken
    assert not [note for note in report.notes if "frozen" in note]
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(isinstance(value, nn.Parameter) and value.requires_grad for value in after.values())
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_a_model_that_stored_a_pass_is_copied() -> None:
    model, inputs, classes = network()
    leak = observe(model, inputs[:1], classes[:1])
    assert not model.hidden.is_leaf
    copied = copy_of(model)
    assert copied.hidden.is_leaf
    assert copied.again is copied.first
    assert copied.tied.weight is copied.first.weight
    torch.testing.assert_close(copied(inputs), model(inputs))
    assert leak.gradients.keys() == dict(model.named_parameters()).keys()


class Checkpointed(nn.Sequential):
    """A network that runs its first layers again in the backward pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        first, activation, last = self
        return last(checkpoint(lambda own: activation(first(own)), inputs, use_reentrant=False))


def test_activation_checkpoints_change_nothing() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(12, 80), nn.ReLU(), nn.Linear(80, 5)
    inputs, targets = torch.randn(4, 12), torch.arange(4)
    for steps in (1, 2):
        plain, stored = (
            observe(build(*layers), inputs, targets, local_steps=steps, rate=1.0)
            for build in (nn.Sequential, Checkpointed)
        )
        torch.testing.assert_close(stored.gradients, plain.gradients)
        expected, found = (invert_units(leak) for leak in (plain, stored))
        assert found.status == expected.status
        torch.testing.assert_close(found.inputs, expected.inputs)
