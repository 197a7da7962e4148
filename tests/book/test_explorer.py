"""The explorer's tables say what the outcomes say."""

from __future__ import annotations

import io
import math
from typing import Any

import pandas as pd
import pytest

from gradleak.book import explorer
from gradleak.errors import InputError, UnknownName
from gradleak.metrics import EXACT, INDISTINGUISHABLE, RECOGNISABLE
from gradleak.runs import records
from gradleak.studies.shared.outcomes import (
    FAMILIES,
    LEVELS,
    Outcome,
    average_of,
    collected,
    defense_in_words,
    family,
    guessed,
    median_of,
    share_of,
)
from gradleak.studies.shared.proportions import wilson_interval
from tests.book.made_up import outcome

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


def lines_of(name: str, outcomes: list[Outcome]) -> dict[str, str]:
    """Return the lines of a table of the explorer, by their first cells."""
    text = explorer.text(outcomes)
    table = text[text.index(f":name: {name}\n") :].partition(":::")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    return {first: " | ".join(rest) for first, *rest in rows}


def test_the_tables_say_the_most_and_what_was_not_measured() -> None:
    models = lines_of("tab-leaks-by-model", MADE_UP)
    assert "50 % (40–60; 100)" in models["convolutional, 2 to 8 samples"]
    assert "44 dB" in models["convolutional, more samples"]
    assert "lost (3)" in models["convolutional, 2 to 8 samples"], "too few cases for an interval"
    assert set(models["vision transformer"].split(" | ")) == {"[not measured]{.badge .badge-not-measured}"}
    defences = lines_of("tab-leaks-by-defence", MADE_UP)
    assert "3 % (1–5; 100)" in defences["noise 1e-2 and more"]
    assert "50 %" in defences["none"]
    clients = lines_of("tab-leaks-by-client", [*MADE_UP, outcome(client="16 local steps")])
    assert "50 %" in clients["16 local steps"], "what is measured next appears by itself"


@pytest.mark.parametrize(
    ("defense", "line"),
    [
        ("none", "none"), ("gaussian/1e-08", "noise below 1e-6"), ("gaussian/0.01", "noise 1e-2 and more"),
        ("gaussian-variance/0.0001", "noise 1e-2 and more"), ("laplace/0.005", "noise 1e-4 to 1e-2"),
        ("noise-share/0.3", "noise, as a share of a tensor's mean size"), ("clip/1", "clipping"),
        ("release/0.5/0", "clipping"), ("release/0.5/1e-4", "clipping, noise below 1e-3"),
        ("dp/10", "clipping, noise 1e-3 to 1e-1"), ("dp-sgd/1", "clipping, noise 1e-1 and more"),
        ("prune/0.5", "pruning, up to half of the entries"), ("quantize/4", "4 significant bits"),
        ("half/16", "16-bit numbers"), ("sign/0", "signs only"), ("withheld/head", "layers not sent"),
    ],
)  # fmt: skip
def test_strength_is_an_axis(defense: str, line: str) -> None:
    assert explorer.strength(outcome(defense=defense)) == line
    assert line in explorer.STRENGTHS


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
    found = share_of("own", "", "").summarise(pd.Series(values).to_numpy(float))
    low, high = wilson_interval(pd.Series(values))
    assert (found.low, found.high) == pytest.approx((100 * low, 100 * high))
    assert found.value == pytest.approx(100 * sum(values) / len(values))


def test_a_mean_of_shares_has_students_interval() -> None:
    found = share_of("own", "", "").summarise(pd.Series([0.5, 0.6, 0.7, 0.6]).to_numpy())
    # 0.6 ± 3.182 · 0.0816 / 2
    assert (found.low, found.value, found.high) == pytest.approx((47.0, 60.0, 73.0), abs=0.1)


def test_means_of_several_rows_are_weighted_by_their_cases() -> None:
    means, counts = pd.Series([100.0, 50.0]).to_numpy(), pd.Series([30.0, 10.0]).to_numpy()
    found = average_of("mean", "", "").summarise(means, counts)
    assert (found.value, found.count) == (87.5, 40)
    spreads = pd.Series([0.0, 0.0]).to_numpy()
    assert found.high > average_of("mean", "", "", spread="s").summarise(means, counts, spreads).high


def test_a_median_counts_lost_images_and_needs_six_for_an_interval() -> None:
    lost = float("nan")
    found = median_of("psnr", "", "").summarise(pd.Series([lost, lost, lost, 30.0, 40.0]).to_numpy())
    assert found.value == -math.inf
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    found = median_of("psnr", "", "").summarise(pd.Series([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]).to_numpy())
    assert (found.low, found.value, found.high) == (10.0, 35.0, 60.0)
    found = median_of("psnr", "", "").summarise(pd.Series([lost, lost, 30.0, 40.0]).to_numpy())
    assert found.value == -math.inf


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
