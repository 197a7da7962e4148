"""Each kind of column lets through what another processor may change, and catches what it may not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradleak.runs import kinds
from gradleak.runs.kinds import kind_of, measured, rounding

nan, inf = math.nan, math.inf
Pairs = list[tuple[float, float]]


def test_texts_counts_and_statuses_are_compared_exactly() -> None:
    same: list[tuple[Any, Any]] = [("unique", "unique"), (3, 3), (True, True), (None, None)]
    differs: list[tuple[Any, Any]] = [("unique", "ambiguous"), (3, 4), (True, False), (True, 1), (3, 3.0), (None, 0.0)]
    for kind in (kind_of("value"), kind_of("error")):
        for outcome, pairs in (("same", same), ("differs", differs)):
            assert {kinds.compared(kind, *pair)[0] for pair in pairs} == {outcome}


@pytest.mark.parametrize(
    ("kind", "same", "within", "differs"),
    [
        (
            measured(),
            [(1.0, 1.0), (nan, nan), (inf, inf)],
            [(1.0, 1.0 + 5e-5), (3e-16, 4e-16)],
            [(1.0, 1.001), (1.0, -1.0), (1.0, nan), (1.0, inf), (3e-16, 4e-12)],
        ),
        (measured(relative=0.01), [], [(94.40, 94.65)], [(94.40, 92.65)]),
        (measured(absolute=0.5), [], [(94.40, 94.65)], [(94.40, 95.00), (True, False)]),
        (measured(absolute=2), [], [(100, 101)], [(100, 103)]),
        (kinds.Kind(absolute=2), [], [], [(100, 101)]),
        (
            rounding(),
            [],
            [(3e-16, 0.0), (2e-7, 8e-7), (9e-5, 2e-4), (0.01, 0.01 + 1e-9)],
            [(2e-7, 8e-6), (8e-6, 2e-7), (2e-7, 0.0), (2e-7, -3e-7), (1e-14, 2e-8), (0.01, 0.02)],
        ),
        (rounding(near=1.0), [], [(0.1, 0.3)], []),
        (
            rounding(decibels=True),
            [],
            [(135.8, 134.7), (260.0, inf), (40.0, 40.00001)],
            [(135.8, 110.0), (40.0, 39.0)],
        ),
    ],
)
def test_numbers_are_compared_by_their_kind(kind: kinds.Kind, same: Pairs, within: Pairs, differs: Pairs) -> None:
    for outcome, pairs in (("same", same), ("within", within), ("differs", differs)):
        assert [kinds.compared(kind, *pair)[0] for pair in pairs] == [outcome] * len(pairs)


def test_a_comparison_says_how_far_two_numbers_lie_apart() -> None:
    assert kinds.compared(measured(), 2.0, 3.0)[1] == 0.5
    assert kinds.compared(rounding(), 2e-7, 8e-7)[1] == pytest.approx(4)
    assert kinds.compared(rounding(), 0.1, 0.2)[1] == 1, "no rounding error is so large"


def test_the_words_of_a_name_say_its_kind_unless_the_study_does() -> None:
    for name in ("error", "mean_label_error", "residual", "slope_differs", "image-psnr", "claimed"):
        assert kind_of(name).near is not None, name
    assert kind_of("psnr").decibels
    for name in ("accuracy", "terrors", "loss"):
        assert kind_of(name).near is None, name
