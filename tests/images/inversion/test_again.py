"""An inversion is exact only where its answer has the gradient that was seen; clients change gradients and weights."""

from __future__ import annotations

import pytest
import torch

from gradleak.hunting import BROKEN, FAMILIES
from gradleak.images import trace_fully_connected
from tests.images.inversion.test_fully_connected import error, network, sent


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_the_papers_recursion_is_not_exact_where_it_forgets_the_slope(activation: str) -> None:
    for seed in range(12):
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
    clipped = BROKEN["clipped by tensor"].sent(lambda _: leak, leak.model, torch.Generator().manual_seed(0))
    assert trace_fully_connected(leak).status == "exact"
    assert trace_fully_connected(clipped).status != "exact"
