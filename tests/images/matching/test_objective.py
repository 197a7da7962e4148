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

DISTANCES = st.builds(
    Distance,
    st.sampled_from(["l2", "cosine"]),
    head=st.sampled_from([0.0, 1.0, 2.0]),
    feature=st.sampled_from([0.0, 2.0]),
)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(2, 5)),
    bias=st.booleans(),
    norm=st.booleans(),
    distance=DISTANCES,
    variation=st.sampled_from([0.0, 0.1]),
    joint=st.booleans(),
)
def test_objective_equals_a_plain_loop(
    seed: int, sizes: tuple[int, int, int], bias: bool, norm: bool, distance: Distance, variation: float, joint: bool
) -> None:
    count, size, classes = sizes
    model = small(seed, classes, nn.Sigmoid(), bias, norm).double()
    generator = torch.Generator().manual_seed(seed + 1)
    inputs = torch.randn(count, size, 2, 8, 8, generator=generator).double()
    labels = torch.randn(count, size, classes, generator=generator).double().softmax(dim=2)
    leaks = [observe(model, inputs[n].flip(0) + 0.3, labels[n]) for n in range(count)]
    known = torch.randn(count, size, 48, generator=generator).double() if distance.feature else None
    prior = Prior(variation)
    objective = Objective(leaks, None if joint else labels, known, distance, prior)
    places = torch.cat([inputs.flatten(1), labels.log().flatten(1)], dim=1) if joint else inputs.flatten(1)
    # Two attacks on the last leak, one on each of the others, in another order.
    owners = torch.tensor([count - 1, *range(count)])
    losses, slopes = objective.evaluate(places[owners], owners)
    # One attack alone takes another path.
    alone, slope_alone = objective.evaluate(places[owners[:1]], owners[:1])
    torch.testing.assert_close(alone, losses[:1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slope_alone, slopes[:1], rtol=1e-7, atol=1e-10)
    for row, owner in enumerate(owners.tolist()):
        wanted, slope = plain(
            leaks[owner], inputs[owner], labels[owner], distance, prior, None if known is None else known[owner]
        )
        torch.testing.assert_close(losses[row], wanted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(slopes[row, : slope.numel()], slope.flatten(), rtol=1e-7, atol=1e-10)


def test_total_variation() -> None:
    image = torch.tensor([[0.0, 1.0], [3.0, 5.0]]).reshape(1, 1, 1, 2, 2)
    assert float(total_variation(image)) == pytest.approx(1.5 + 3.5)


def test_an_activation_without_a_second_derivative_is_matched() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Hardsigmoid(), nn.Linear(8, 3))
    leak = observe(model, torch.rand(1, 4), torch.tensor([1]))
    objective = Objective([leak], torch.eye(3)[1].view(1, 1, 3), None, Distance("l2"), Prior())
    for attacks in (1, 2):
        losses, slopes = objective.evaluate(torch.rand(attacks, 4), torch.zeros(attacks, dtype=torch.long))
        assert losses.isfinite().all()
        assert slopes.isfinite().all()
