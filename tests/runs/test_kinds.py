"""Each kind of column lets through what another processor may change, and catches what it may not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradleak.runs import kinds
from gradleak.runs.kinds import EXACT, kind_of, measured, rounding

nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    ("recorded", "found", "outcome"),
    [
        ("unique", "unique", "same"),
        ("unique", "ambiguous", "differs"),
        (3, 3, "same"),
        (3, 4, "differs"),
        (True, True, "same"),
        (True, False, "differs"),
        (True, 1, "differs"),
        (3, 3.0, "differs"),
        (None, None, "same"),
        (None, 0.0, "differs"),
        ([1.0], [1.0, 2.0], "differs"),
    ],
)
@pytest.mark.parametrize("kind", [EXACT, measured(), rounding()])
def test_texts_counts_and_statuses_are_compared_exactly(
    kind: kinds.Kind, recorded: Any, found: Any, outcome: str
) -> None:
    how = kinds.compared(kind, recorded, found)
    assert (how.outcome, how.kind) == (outcome, "exact")


@pytest.mark.parametrize(
    ("kind", "recorded", "found", "outcome"),
    [
        (measured(), 1.0, 1.0, "same"),
        (measured(), nan, nan, "same"),
        (measured(), inf, inf, "same"),
        (measured(), 1.0, 1.0 + 5e-5, "within"),
        (measured(), 1.0, 1.001, "differs"),
        (measured(), 1.0, -1.0, "differs"),
        (measured(), 1.0, nan, "differs"),
        (measured(), 1.0, inf, "differs"),
        (measured(), 3e-16, 4e-16, "within"),
        (measured(), 3e-16, 4e-12, "differs"),
        (measured(relative=0.01), 94.40, 94.65, "within"),
        (measured(relative=0.01), 94.40, 92.65, "differs"),
        (measured(absolute=0.5), 94.40, 94.65, "within"),
        (measured(absolute=0.5), 94.40, 95.00, "differs"),
        (rounding(), 3e-16, 0.0, "within"),
        (rounding(), 2e-7, 8e-7, "within"),
        (rounding(), 2e-7, 8e-6, "differs"),
        (rounding(), 8e-6, 2e-7, "differs"),
        (rounding(), 2e-7, 0.0, "differs"),
        (rounding(), 2e-7, -3e-7, "differs"),
        (rounding(), 1e-14, 2e-8, "differs"),
        (rounding(), 9e-5, 2e-4, "within"),
        (rounding(), 0.01, 0.02, "differs"),
        (rounding(), 0.01, 0.01 + 1e-9, "within"),
        (rounding(near=1.0), 0.1, 0.3, "within"),
        (rounding(floor=1e-6), 0.0, 9e-7, "within"),
        (rounding(decibels=True), 135.8, 134.7, "within"),
        (rounding(decibels=True), 135.8, 110.0, "differs"),
        (rounding(decibels=True), 260.0, inf, "within"),
        (rounding(decibels=True), 40.0, 39.0, "differs"),
        (rounding(decibels=True), 40.0, 40.00001, "within"),
    ],
)
def test_numbers_are_compared_by_their_kind(kind: kinds.Kind, recorded: float, found: float, outcome: str) -> None:
    assert kinds.compared(kind, recorded, found).outcome == outcome


def test_a_comparison_says_how_far_two_numbers_lie_apart() -> None:
    assert kinds.compared(measured(), 2.0, 3.0).apart == 0.5
    assert kinds.compared(rounding(), 2e-7, 8e-7).apart == pytest.approx(4)
    assert kinds.compared(rounding(), 2e-7, 8e-7).kind == "rounding"
    assert kinds.compared(rounding(), 0.1, 0.2).kind == "measured", "no rounding error is so large"


def test_counts_have_a_tolerance_only_where_the_study_states_it() -> None:
    assert kinds.compared(measured(absolute=2), 100, 101).outcome == "differs"
    assert kinds.compared(measured(absolute=2), 100, 101, declared=True).outcome == "within"
    assert kinds.compared(measured(absolute=2), 100, 103, declared=True).outcome == "differs"
    assert kinds.compared(measured(absolute=2), True, False, declared=True).outcome == "differs"


def test_the_words_of_a_name_say_its_kind_unless_the_study_does() -> None:
    for name in ("error", "mean_label_error", "residual", "slope_differs", "image-psnr", "claimed"):
        assert kind_of(name).name == "rounding", name
    assert kind_of("psnr").decibels
    for name in ("accuracy", "terrors", "loss"):
        assert kind_of(name).name == "measured", name
