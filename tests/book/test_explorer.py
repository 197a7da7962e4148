"""The explorer's tables say what the outcomes say."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gradleak.book import explorer
from gradleak.errors import InputError, UnknownName
from gradleak.metrics import EXACT, INDISTINGUISHABLE, RECOGNISABLE
from gradleak.runs import records
from gradleak.studies.shared.outcomes import (
    FAMILIES,
    LEVELS,
    Measure,
    average_of,
    collected,
    defense_in_words,
    family,
    guessed,
    median_of,
    share_of,
    wilson_interval,
)
from tests.book.made_up import outcome

LOST = math.nan
MADE_UP = [
    outcome(),
    outcome(defense="gaussian/1", value=3.0, low=1.0, high=5.0),
    outcome(network="AlexNet", leak="images", attack="matcher", unit="dB", measure="PSNR", value=-math.inf, count=3,
            low=math.nan, high=math.nan, page="fcn-inversion"),
    outcome(network="AlexNet", leak="images", attack="matcher", unit="dB", measure="PSNR", value=44.4, batch=128),
]  # fmt: skip


def test_the_table_holds_every_outcome_the_most_severe_first() -> None:
    rows = explorer.rows(MADE_UP).to_dict("records")
    assert len(rows) == len(MADE_UP)
    assert ["little" in row["leaks"] for row in rows] == [False, False, True, True]
    (row,) = [row for row in rows if row["defence"] == "no defence" and row["network"] == "LeNet"]
    assert row["success"] == "<strong>50 %</strong> labels found (95 %: 40 to 60; n = 100 batches)"
    assert row["measured on"] == '<a href="executed/wang2024/noise.html">noise</a>'
    (lost,) = [row for row in rows if "lost" in row["success"]]
    assert lost["success"] == "<strong>lost</strong> PSNR (too few cases for an interval; n = 3 batches)"
    table = pd.read_csv(io.StringIO(explorer.table(MADE_UP)))
    assert table["value"].tolist() == [one.value for one in MADE_UP]
    assert table["leaks"].tolist() == [LEVELS[one.severity] for one in MADE_UP]
    assert table["defense_in_words"][1] == "noise of deviation 1"


def test_the_tables_say_the_most_that_was_measured() -> None:
    text = explorer.text([*MADE_UP, outcome(client="16 local steps")])
    rows = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")]
    cells = {first: rest for first, rest in rows if first != "---"}
    assert list(cells) == [
        "model", "convolutional, 2 to 8 samples", "convolutional, more samples", "vision transformer",
        "defence", "none", "noise 1e-2 and more",
        "client", "float32", "16 local steps", *explorer.SOUGHT["client"],
    ]  # fmt: skip
    assert {*cells["adapters"].split(" | "), *cells["vision transformer"].split(" | ")} == {
        "[not measured]{.badge .badge-not-measured}"
    }
    assert "50 % (40–60; 100)" in cells["convolutional, 2 to 8 samples"]
    assert "lost (3)" in cells["convolutional, 2 to 8 samples"], "too few cases for an interval"
    assert "[not measured]{.badge .badge-not-measured}" in cells["convolutional, more samples"]
    assert "44 dB" in cells["convolutional, more samples"]
    assert "3 % (1–5; 100)" in cells["noise 1e-2 and more"]


@pytest.mark.parametrize(
    ("defense", "line"),
    [
        ("none", "none"), ("gaussian/1e-08", "noise below 1e-6"), ("gaussian/0.01", "noise 1e-2 and more"),
        ("gaussian-variance/0.0001", "noise 1e-2 and more"), ("laplace/0.005", "noise 1e-4 to 1e-2"),
        ("noise-share/0.3", "noise, as a share of a tensor's mean size"), ("clip/1", "clipping"),
        ("release/0.5/0", "clipping"), ("release/0.5/1e-4", "clipping, noise below 1e-3"),
        ("dp/10", "clipping, noise 1e-3 to 1e-1"), ("dp-sgd/1", "clipping, noise 1e-1 and more"),
        ("prune/0.5", "pruning, up to half of the entries"), ("quantize/4", "4 significant bits"),
        ("half/16", "11 significant bits"), ("sign/0", "signs only"), ("withheld/head", "layers not sent"),
    ],
)  # fmt: skip
def test_strength_is_an_axis(defense: str, line: str) -> None:
    assert explorer.strength(outcome(defense=defense))[1] == line


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"value": 9.9}, 0), ({"value": 10.0}, 1), ({"value": 50.0}, 2), ({"value": 99.0}, 3), ({"value": 100.0}, 3),
        ({"value": 60.0, "chance": 60.0}, 0), ({"value": 64.0, "chance": 60.0}, 1),
        ({"value": 100.0, "chance": 60.0}, 3),
        ({"value": 100.0, "chance": 100.0}, 0), ({"value": 40.0, "chance": 60.0}, 0),
        ({"value": -math.inf, "unit": "dB"}, 0), ({"value": RECOGNISABLE, "unit": "dB"}, 1),
        ({"value": INDISTINGUISHABLE, "unit": "dB"}, 2), ({"value": EXACT, "unit": "dB"}, 3),
        ({"value": math.inf, "unit": "dB"}, 3),
    ],
)  # fmt: skip
def test_severity_counts_what_is_beyond_guessing(fields: dict[str, Any], severity: int) -> None:
    assert outcome(**fields).severity == severity


@pytest.mark.parametrize("values", [[True] * 20, [False] * 20, [True] * 7 + [False] * 13, [True]])
def test_a_share_of_successes_has_wilsons_interval(values: list[bool]) -> None:
    found = share_of("own", "", "").summarise(np.array(values, float))
    low, high = wilson_interval(pd.Series(values))
    assert (found.low, found.value, found.high) == pytest.approx(
        (100 * low, 100 * sum(values) / len(values), 100 * high)
    )


@pytest.mark.parametrize(
    ("measure", "columns", "ends"),
    [
        (share_of("own", "", ""), [[0.5, 0.6, 0.7, 0.6]], (47.0, 60.0, 73.0)),  # Student: 0.6 ± 3.182 · 0.0816 / 2
        (average_of("own", "", ""), [[100.0, 50.0], [30.0, 10.0]], (73.9, 87.5, 94.5)),  # weighted by cases
        (average_of("own", "", "", spread="s"), [[100.0, 50.0], [30.0, 10.0], [0.0, 0.0]], (80.6, 87.5, 94.4)),
        (median_of("own", "", ""), [[LOST, LOST, LOST, 30.0, 40.0]], (math.nan, -math.inf, math.nan)),
        (median_of("own", "", ""), [[LOST, LOST, 30.0, 40.0]], (math.nan, -math.inf, math.nan)),
        (median_of("own", "", ""), [[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]], (10.0, 35.0, 60.0)),
    ],
)
def test_a_summary_has_the_interval_of_its_kind(
    measure: Measure, columns: list[list[float]], ends: tuple[float, float, float]
) -> None:
    found = measure.summarise(*map(np.array, columns))
    assert (found.low, found.value, found.high) == pytest.approx(ends, abs=0.1, nan_ok=True)


def test_rows_that_agree_on_all_axes_are_one_outcome() -> None:
    record = records.recorded("noise")
    assert record is not None
    rows = pd.DataFrame({"own": [1.0, 0.0, 1.0], "size": [8, 8, 16]})
    found = collected(
        record, rows, "labels", share_of("own", "", "batches"), attack="solver, variant", network="lenet5, relu",
        batch=rows["size"], detail="more", chance=pd.Series([10.0, 20.0, 30.0]),
    )  # fmt: skip
    assert [(one.batch, one.value, one.count, one.chance) for one in found] == [
        (8, 50.0, 2, 15.0),
        (16, 100.0, 1, 30.0),
    ]
    assert {(one.attack, one.detail, one.network) for one in found} == {("solver", "variant, more", "LeNet-5, relu")}


def test_an_unknown_axis_or_defence_is_refused() -> None:
    record = records.recorded("noise")
    assert record is not None
    rows = pd.DataFrame({"own": [1.0]})
    with pytest.raises(InputError, match="no axis of outcomes: size"):
        collected(record, rows, "labels", share_of("own", "", ""), size=8)
    with pytest.raises(UnknownName, match="magic"):
        collected(record, rows, "labels", share_of("own", "", ""), defense="magic/1")


def test_every_family_has_words_and_pure_clipping_is_clipping() -> None:
    assert {family(f"{name}/1") for name in FAMILIES} == set(FAMILIES.values())
    assert family("dp-sgd/0") == family("release/0.5/0") == "clipping"
    assert defense_in_words("release/0.5/0.01") == "clip 0.5 of the norm, noise 0.01 of that"


def test_guessing_is_looked_up_in_the_same_setting() -> None:
    rows = pd.DataFrame(
        {"attack": ["guess", "guess", "solver", "solver"], "size": [1, 8, 8, 64], "found": [10, 40, 90, 90]}
    )
    assert guessed(rows, "found", ["size"]).tolist() == [10, 40, 40, 0]
