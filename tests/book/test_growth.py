"""How time grows, and what more workers save."""

from __future__ import annotations

import math

import pytest

from benchmarks.growth import ALL
from gradleak.book import growth


def test_powers_are_those_of_the_largest_sizes() -> None:
    sizes = [1, 10, 100, 1000]
    assert growth.exponent(sizes, [5.0, 1e-3, 1e-1, 10.0]) == pytest.approx(2)
    assert math.isnan(growth.exponent([1], [1.0]))
    assert {(series.attack.partition(",")[0], series.grows) for series in ALL} == set(growth.DERIVED)


def test_trials_go_to_the_worker_that_is_free_first() -> None:
    assert growth.finish([3, 1, 1, 1], 2) == 3
    assert growth.finish([1, 1, 1, 3], 2) == 4, "in their order"
    assert growth.finish([1, 2, 3], 100) == 3
    assert growth.finish([1, 1], 1, each=0.5) == 3
