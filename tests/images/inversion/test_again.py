"""An inversion is exact only where its answer has the gradient that was seen; clients change gradients and weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak import augment, observe
from gradleak.hunting import BROKEN, FAMILIES
from gradleak.images import trace_convolutional, trace_fully_connected
from gradleak.images.inversion.again import observed_again
from gradleak.leak import Leak
from tests.images.inversion.test_fully_connected import error, network, sent

SEEDS = range(12)


# What a client may do to its gradient in secret.
CHANGES = ("signs", "signs of lower layers", "clipped by tensor", "lower layers clipped")


def changed(leak: Leak, name: str, seed: int) -> Leak:
    """Return a leak whose gradient was changed before it was sent."""
    return BROKEN[name].sent(lambda _: leak, leak.model, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_a_single_sample_is_not_exact_where_its_gradient_was_changed(activation: str, change: str) -> None:
    for seed in SEEDS:
        leak, inputs, _ = sent(network([48, 60, 10], activation, True, seed, torch.float32), 1, 48, 10, seed)
        clean = trace_fully_connected(leak)
        assert clean.status == "exact"
        assert error(clean.inputs, inputs) < 1e-2
        assert clean.residual < 1e-3
        found = trace_fully_connected(changed(leak, change, seed))
        assert found.status != "exact"
        assert found.reason


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_the_papers_recursion_is_not_exact_where_it_forgets_the_slope(activation: str) -> None:
    for seed in SEEDS:
        leak, inputs, _ = sent(network([48, 60, 10], activation, False, seed, torch.float64), 1, 48, 10, seed)
        found = trace_fully_connected(leak, rule="mean")
        assert error(found.inputs, inputs) > 0.01
        assert found.status == "partial"
        assert "has another gradient" in found.reason
        assert trace_fully_connected(leak).status == "exact"


def test_the_papers_recursion_needs_a_label_that_is_certain() -> None:
    for seed in range(60):
        leak, inputs, _ = sent(network([12, 20, 3], "relu", False, seed, torch.float64), 1, 12, 3, seed)
        found = trace_fully_connected(leak, rule="mean")
        assert found.status != "exact" or error(found.inputs, inputs) < 0.01


def test_a_batch_is_not_exact_where_the_clients_weights_are_others() -> None:
    """A small residual hides a mixture of two samples whose δ are nearly dependent (seed 231)."""
    for seed in (0, 1, 231):
        (answer,) = FAMILIES["connected"].hunted(seed, "weights a small step ahead")
        assert answer.outcome != "wrong"


def test_a_network_of_one_layer_has_no_other_that_confirms_its_input() -> None:
    """The only layer's bias gives an input whatever was done to it; a label must stand behind it."""
    leak, _, _ = sent(network([48, 10], "relu", True, 0, torch.float32), 1, 48, 10)
    assert trace_fully_connected(leak).status == "exact"
    assert trace_fully_connected(changed(leak, "clipped by tensor", 0)).status != "exact"


@pytest.mark.parametrize("change", CHANGES)
def test_convolutions_are_not_exact_where_their_gradient_was_changed(change: str) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(1, 6, 3, 1, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(6 * 36, 10)).double()
        image = torch.rand(1, 1, 6, 6, dtype=torch.float64)
        leak = observe(model, image, augment.smooth(torch.tensor([3]), 10, torch.tensor([0.2])).double())
        assert trace_convolutional(leak).status == "exact"
        assert trace_convolutional(changed(leak, change, seed)).status != "exact"


# ----------------------------------------------------------------------------------------------------- the check alone
def clean(seed: int = 0, count: int = 2) -> tuple[Leak, Tensor, Tensor]:
    return sent(network([12, 20, 8], "elu", True, seed, torch.float64), count, 12, 8, seed)


@pytest.mark.parametrize("known", [True, False])
def test_every_parameter_is_looked_at(known: bool) -> None:
    leak, inputs, labels = clean()
    for name, value in leak.gradients.items():
        longer = replace(leak, gradients={**leak.gradients, name: 1.01 * value})
        assert observed_again(longer, inputs, labels if known else None).worst > 1e-3
