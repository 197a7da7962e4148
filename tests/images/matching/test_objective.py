"""What matching makes small, against a plain loop over attacks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradleak.images import Distance, Prior, total_variation
from gradleak.images.matching.objective import Objective
from gradleak.leak import observe
from tests.images.matching.attacked import plain, small

KINDS = ("l2", "cosine", "layers")


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 3),
    size=st.integers(1, 3),
    classes=st.integers(2, 5),
    bias=st.booleans(),
    norm=st.booleans(),
    kind=st.sampled_from(KINDS),
    head=st.sampled_from([0.0, 1.0, 2.0]),
    feature=st.sampled_from([0.0, 2.0]),
    variation=st.sampled_from([0.0, 0.1]),
    definition=st.sampled_from(["sum", "mean"]),
    square=st.sampled_from([0.0, 0.1]),
    joint=st.booleans(),
)
def test_objective_equals_a_plain_loop(
    seed: int,
    count: int,
    size: int,
    classes: int,
    bias: bool,
    norm: bool,
    kind: str,
    head: float,
    feature: float,
    variation: float,
    definition: str,
    square: float,
    joint: bool,
) -> None:
    model = small(seed, classes, nn.Sigmoid(), bias, norm).double()
    generator = torch.Generator().manual_seed(seed + 1)
    inputs = torch.randn(count, size, 2, 8, 8, generator=generator).double()
    labels = torch.randn(count, size, classes, generator=generator).double().softmax(dim=2)
    leaks = [observe(model, inputs[n].flip(0) + 0.3, labels[n]) for n in range(count)]
    known = torch.randn(count, size, 48, generator=generator).double() if feature else None
    distance = Distance(kind, head, feature)  # type: ignore[arg-type]
    prior = Prior(variation, definition, square)  # type: ignore[arg-type]
    objective = Objective(leaks, None if joint else labels, known, distance, prior)
    places = torch.cat([inputs.flatten(1), labels.log().flatten(1)], dim=1) if joint else inputs.flatten(1)
    # Two attacks on the last leak, one on each of the others, in another order.
    owners = torch.tensor([count - 1, *range(count)])
    losses, slopes = objective.evaluate(places[owners], owners)
    for row, owner in enumerate(owners.tolist()):
        wanted, slope = plain(
            leaks[owner], inputs[owner], labels[owner], distance, prior, None if known is None else known[owner]
        )
        torch.testing.assert_close(losses[row], wanted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(slopes[row, : slope.numel()], slope.flatten(), rtol=1e-7, atol=1e-10)


def test_total_variation_by_both_definitions() -> None:
    image = torch.tensor([[0.0, 1.0], [3.0, 5.0]]).reshape(1, 1, 1, 2, 2)
    assert float(total_variation(image)) == pytest.approx(1.5 + 3.5)
    assert float(total_variation(image, "mean")) == pytest.approx(2.5)
