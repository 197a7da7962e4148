"""Counts out of real numbers: the sum is kept, and the lowest are raised first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.labels.hard.rounding import raised, rounded


@settings(max_examples=60)
@given(
    levels=st.lists(st.floats(-5, 5), min_size=1, max_size=6),
    step=st.floats(0.01, 3),
    count=st.integers(0, 12),
)
def test_raising_the_lowest_again_and_again(levels: list[float], step: float, count: int) -> None:
    tensor = torch.tensor([levels], dtype=torch.float64)
    found = raised(tensor, torch.tensor([step], dtype=torch.float64), torch.tensor([count]))[0]
    assert int(found.sum()) == count
    heights = np.array(levels)
    for _ in range(count):
        heights[heights.argmin()] += step
    # Ties may be broken either way; the heights are the same then.
    assert sorted(tensor[0].numpy() + step * found.numpy()) == pytest.approx(sorted(heights), abs=1e-9)


def test_rounding_keeps_the_sum_and_stays_near() -> None:
    values = torch.tensor([[1.3, 0.3, 2.4], [-1.0, 5.2, 0.1], [0.4, 0.5, 9.0]], dtype=torch.float64)
    assert rounded(values, 4).tolist() == [[1, 0, 3], [0, 4, 0], [0, 0, 4]]
