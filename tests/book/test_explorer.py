"""The explorer and the defences that stop attacks say what outcomes say: decided on made-up outcomes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gradleak.book import explorer
from gradleak.book.stopping import LEAST, stopped, stopping, tried
from gradleak.errors import InputError, UnknownName
from gradleak.metrics import EXACT, INDISTINGUISHABLE, RECOGNISABLE
from gradleak.show.summary import Leaks
from gradleak.studies.shared.outcomes import Measure, Outcome, average_of, collected, guessed, median_of, share_of
from tests.recorded import record_of

LOST = math.nan
PAGE = "own-page"
PLAIN = Outcome(
    leak="labels", attack="guesser", network="LeNet", training="untrained", data="digits", batch=8, defense="none",
    client="float32", detail="", measure="labels found", unit="%", value=50.0, low=40.0, high=60.0, count=100,
    cases="batches", chance=0.0, cosine=math.nan, page="noise",
)  # fmt: skip


def outcome(**changes: Any) -> Outcome:
    """Return a made-up outcome with some of its fields changed."""
    return replace(PLAIN, **changes)


MATCHER = outcome(network="AlexNet", leak="images", attack="matcher", unit="dB", measure="PSNR")
MADE_UP = [
    outcome(),
    outcome(defense="gaussian/1", value=3.0, low=1.0, high=5.0),
    replace(MATCHER, value=-math.inf, count=3, low=math.nan, high=math.nan, page="fcn-inversion"),
    replace(MATCHER, value=44.4, batch=128),
]


def test_the_table_holds_every_outcome_the_most_severe_first() -> None:
    rows = explorer.rows(MADE_UP).to_dict("records")
    assert ["little" in row["leaks"] for row in rows] == [False, False, True, True]
    (row,) = [row for row in rows if row["defence"] == "no defence" and row["network"] == "LeNet"]
    assert row["success"] == "<strong>50 %</strong> labels found (95 %: 40 to 60; n = 100 batches)"
    assert row["measured on"] == '<a href="executed/wang2024/noise.html">noise</a>'
    (lost,) = [row for row in rows if "lost" in row["success"]]
    assert lost["success"] == "<strong>lost</strong> PSNR (too few cases for an interval; n = 3 batches)"
    table = pd.read_csv(io.StringIO(explorer.table(MADE_UP)))
    assert table["value"].tolist() == [one.value for one in MADE_UP]


def test_the_tables_say_the_most_that_was_measured() -> None:
    text = explorer.text([*MADE_UP, outcome(client="16 local steps")])
    rows = [line.strip("| ").split(" | ", 1) for line in text.splitlines() if line.startswith("| ")]
    cells = {first: rest for first, rest in rows if first != "---"}
    assert list(cells) == [
        "model", "convolutional, 2 to 8 samples", "convolutional, more samples", "vision transformer",
        "defence", "none", "noise 1e-2 and more",
        "client", "float32", "16 local steps", *explorer.SOUGHT["client"],
    ]  # fmt: skip
    unmeasured = "[not measured]{.badge .badge-not-measured}"
    assert {*cells["adapters"].split(" | "), *cells["vision transformer"].split(" | ")} == {unmeasured}
    for line, parts in {
        "convolutional, 2 to 8 samples": ("50 % (40–60; 100)", "lost (3)"),
        "convolutional, more samples": (unmeasured, "44 dB"),
        "noise 1e-2 and more": ("3 % (1–5; 100)",),
    }.items():
        assert all(part in cells[line] for part in parts)


@pytest.mark.parametrize(
    ("defense", "line"),
    [
        ("none", "none"), ("gaussian/1e-08", "noise below 1e-6"), ("gaussian/0.01", "noise 1e-2 and more"),
        ("gaussian-variance/0.0001", "noise 1e-2 and more"), ("laplace/0.005", "noise 1e-4 to 1e-2"),
        ("noise-share/0.3", "noise, as a share of a tensor's root mean square"), ("clip/1", "clipping"),
        ("release/0.5/0", "clipping"), ("release/0.5/1e-4", "clipping, noise below 1e-3"),
        ("dp/10", "clipping, noise 1e-3 to 1e-1"), ("dp-sgd/1", "clipping, noise 1e-1 and more"),
        ("prune/0.5", "pruning, up to half of the entries"), ("quantize/4", "4 significant bits"),
        ("half/16", "11 significant bits"), ("sign/0", "signs only"), ("withheld/head", "layers not sent"),
    ],
)  # fmt: skip
def test_strength_is_an_axis(defense: str, line: str) -> None:
    assert explorer.strength(outcome(defense=defense))[1] == line


@pytest.mark.parametrize(
    ("severity", "value", "chance"),
    [
        (0, 9.9, 0), (1, 10.0, 0), (2, 50.0, 0), (3, 99.0, 0), (3, 100.0, 0), (0, 60.0, 60), (1, 64.0, 60),
        (3, 100.0, 60), (0, 100.0, 100), (0, 40.0, 60),
    ],
)  # fmt: skip
def test_severity_counts_what_is_beyond_guessing(severity: int, value: float, chance: float) -> None:
    assert outcome(value=value, chance=chance).severity == severity
    levels = (-math.inf, RECOGNISABLE, INDISTINGUISHABLE, EXACT, math.inf)
    assert [outcome(value=decibels, unit="dB").severity for decibels in levels] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("measure", "columns", "ends"),
    [
        (share_of("own", "", ""), [[0.5, 0.6, 0.7, 0.6]], (47.0, 60.0, 73.0)),  # Student: 0.6 ± 3.182 · 0.0816 / 2
        (share_of("own", "", ""), [[1.0] * 7 + [0.0] * 13], (18.1, 35.0, 56.7)),  # Wilson
        (share_of("own", "", ""), [[0.0] * 20], (0.0, 0.0, 16.1)),
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


def test_rows_that_agree_on_all_axes_are_one_outcome_and_unknown_axes_are_refused() -> None:
    record, measure = record_of("noise"), share_of("own", "", "batches")
    rows = pd.DataFrame({"own": [1.0, 0.0, 1.0], "size": [8, 8, 16]})
    first, second = collected(
        record, rows, "labels", measure, attack="solver, variant", network="lenet5, relu", batch=rows["size"],
        detail="more", chance=pd.Series([10.0, 20.0, 30.0]),
    )  # fmt: skip
    assert (first.batch, first.value, first.count, first.chance) == (8, 50.0, 2, 15.0)
    assert (second.batch, second.value, second.count, second.chance) == (16, 100.0, 1, 30.0)
    assert (first.attack, first.detail, first.network) == ("solver", "variant, more", "LeNet-5, relu")
    with pytest.raises(InputError, match="no axis of outcomes: size"):
        collected(record, rows, "labels", measure, size=8)
    with pytest.raises(UnknownName, match="magic"):
        collected(record, rows, "labels", measure, defense="magic/1")


def test_guessing_is_looked_up_in_the_same_setting() -> None:
    attacks = ["guess", "guess", "solver", "solver"]
    rows = pd.DataFrame({"attack": attacks, "size": [1, 8, 8, 64], "found": [10, 40, 90, 90]})
    assert guessed(rows, "found", ["size"]).tolist() == [10, 40, 40, 0]


ROW = Leaks("labels", "batches of 8", "all", "1 s", kind="labels", attack="guesser", batch=8)


def behind(defense: str, cosine: float = math.nan, value: float = 0.0, **changes: Any) -> Outcome:
    """Return the outcome of the row's attack behind a defence, which stops it unless another value is given."""
    return outcome(defense=defense, cosine=cosine, value=value, **changes)


SEEMS = behind("gaussian/1", 0.5)
FEW = {"count": LEAST - 1}


@pytest.mark.parametrize(
    ("outcomes", "names"),
    [
        # The mildest defence of each family, and the mildest family first.
        (
            [
                *(behind("gaussian/1", 0.4), behind("gaussian/0.5", 0.6)),
                *(behind("prune/0.9", 0.8), behind("prune/0.95", 0.7)),
            ],
            ["prune/0.9", "gaussian/0.5"],
        ),
        ([behind(f"gaussian/{level}") for level in ("1", "1e-06", "0.1")], ["gaussian/1e-06"]),  # without cosines
        ([behind(name, 1.0) for name in ("clip/1", "clip-share/0.5", "dp-sgd/0", "release/0.5/0")], []),  # rescaling
        ([SEEMS, outcome(value=0.0)], []),  # the attack fails without a defence
        ([replace(SEEMS, **FEW)], []),
        ([replace(SEEMS, **FEW, page=PAGE), behind("prune/0.9", 0.1, count=LEAST)], ["prune/0.9", "gaussian/1"]),
        # Layers that are not sent are not compared by the cosine of the rest.
        (
            [behind("withheld/recurrent", 1.0), behind("withheld/head", 1.0, 100.0), SEEMS],
            ["gaussian/1", "withheld/recurrent"],
        ),
        # Ten bits are fewer than float16 keeps, and more than bfloat16 keeps.
        *(
            ([behind("quantize/10", 0.999), outcome(client=client, value=100.0)], names)
            for client, names in (("bfloat16", []), ("float16", ["quantize/10"]), ("float64", ["quantize/10"]))
        ),
    ],
)  # fmt: skip
def test_the_mildest_defences_that_stop_the_attack_are_named(outcomes: Sequence[Outcome], names: list[str]) -> None:
    assert [one.defense for one in stopping(ROW, PAGE, outcomes)] == names


@pytest.mark.parametrize(
    ("other", "refuted"),
    [
        ({"attack": "another"}, False),
        ({"leak": "images"}, False),
        ({"network": "another", "page": "another"}, True),
        ({"detail": "noise known"}, True),  # an attacker who knows the defence
        ({"cosine": 0.3}, True),  # a stronger defence, and still a success
        ({"cosine": 0.9, "defense": "gaussian/0.5"}, False),  # a weaker defence
        ({"defense": "prune/0.9"}, False),  # another family
        ({"defense": "dp/1"}, True),  # clipping and noise is noise, and clipping does not help
        ({"defense": "clip/1"}, False),
        ({"value": 9.9}, False),  # below a tenth
        ({"value": 10.0}, True),
        ({"value": 55.0, "chance": 50.0}, True),  # a tenth of what a guess misses
        ({"value": 54.0, "chance": 50.0}, False),
        ({"count": 1}, True),  # one success is enough
        ({"cosine": 0.9}, True),  # the same defence, though it changes this gradient less
        ({"batch": 4}, False),  # the nearest batch size counts
        ({"cosine": math.nan, "defense": "gaussian/2"}, True),  # by its level
        ({"cosine": math.nan, "defense": "gaussian/0.5"}, False),
        ({"cosine": math.nan, "defense": "laplace/2"}, False),  # cannot be compared
    ],
)
def test_a_success_of_the_same_attack_refutes_a_stop(other: Mapping[str, Any], refuted: bool) -> None:
    found = stopping(ROW, PAGE, [SEEMS, replace(SEEMS, **{"value": 100.0} | other)])
    assert (SEEMS.defense in {one.defense for one in found}) != refuted


def test_the_row_s_network_and_on_each_page_the_nearest_batch_size_count() -> None:
    other = {"network": "another"}
    known = [SEEMS, replace(SEEMS, value=100.0, **other), behind("prune/0.9", 0.9, **other)]
    assert stopping(replace(ROW, network="LeNet"), PAGE, known) == [SEEMS]
    sizes = {"another": (1, 2, 32), "single": (1,), PAGE: (1,)}
    known = [behind("gaussian/1", batch=batch, page=page) for page, batches in sizes.items() for batch in batches]
    for batch, expected in ((16, [("another", 32), (PAGE, 1)]), (1, [("another", 1), ("single", 1), (PAGE, 1)])):
        assert [(one.page, one.batch) for one in tried(replace(ROW, batch=batch), PAGE, known)] == expected


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([], "not measured"),
        ([behind("gaussian/1", 0.4, 100.0)], "none of those measured"),
        (
            [outcome(client=client, page=PAGE, value=0.0) for client in ("bfloat16", "float16")],
            "computing in float16 (n = 100, LeNet)",
        ),
        (
            [
                behind("prune/0.8", value=3.0, count=50, batch=4, network="another"),
                behind("prune/0.8", value=99.6, leak="features", measure="classes right", network="another", batch=4),
                behind("prune/0.8", leak="images", network="another", batch=4),
            ],
            "dropping the smallest 80% of all entries, which leaves 3 % (labels found) and 99.6 % (classes right) "
            "(n = 50, batches of 4, another, {page}`noise`)",
        ),
    ],
)
def test_a_stop_says_what_still_leaks_and_where_it_was_measured(outcomes: list[Outcome], words: str) -> None:
    assert stopped(ROW, PAGE, outcomes) == words
