"""Rows are compared whole."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradleak import studies
from gradleak.runs import records
from gradleak.show import provenance
from tests.checkout import PARTS, Toy
from tests.gpu.rows import different, drops_its_device, parts


@pytest.mark.parametrize(
    ("found", "expected", "rounded", "count"),
    [
        ([{"a": 1.0, "b": "x"}], [{"a": 1.0, "b": "x"}], False, 0),
        ([{"a": math.nan}], [{"a": math.nan}], False, 0),
        ([{"a": 1.0 + 1e-15}], [{"a": 1.0}], False, 1),
        ([{"a": 1.0 + 1e-15}], [{"a": 1.0}], True, 0),
        ([{"a": 1.001}], [{"a": 1.0}], True, 1),
        ([{"a": 1}], [{"a": 2}], True, 1),
        ([{"a": "unique"}], [{"a": "failed"}], True, 1),
        ([{"a": True}], [{"a": 1}], False, 1),
        ([{"a": 1.0}], [{"b": 1.0}], False, 1),
        ([{"a": 1.0}], [{"a": 1.0}, {"a": 1.0}], False, 1),
    ],
)
def test_differences(found: Any, expected: Any, rounded: bool, count: int) -> None:
    assert len(different(found, expected, rounded=rounded)) == count


def test_pages_that_are_left_out_say_why_they_stay_on_the_cpu() -> None:
    left_out = {name for name in studies.names() if drops_its_device(name)}
    assert {name for name, _ in parts()} == set(studies.names()) - left_out
    for name in left_out:
        record = records.recorded(name)
        assert record is not None
        described = provenance.table(record).frame.set_index("").loc["stays on the CPU", "recorded"]
        assert described.startswith("all experiments (") or described.count("experiments ") > 1


@pytest.mark.parametrize(
    ("stays", "expected"),
    [
        ("", [("toy", "a"), ("toy", "b")]),
        ("class A(Draws):", [("toy", "b")]),
        ("class Draws(Experiment):", []),
    ],
)
def test_experiments_that_stay_on_the_cpu_are_left_out(
    checkout: Toy, stays: str, expected: list[tuple[str, str]]
) -> None:
    reason = '\n    stays_on_cpu: ClassVar[str] = "it is small"\n'
    checkout.rewrite(*PARTS, ("smallest=1", "smallest=2"), *([(stays, stays + reason)] if stays else []))
    assert parts() == expected
    assert drops_its_device("toy") is (expected == [])
