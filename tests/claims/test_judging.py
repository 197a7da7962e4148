"""Claims are judged by their rule, at the scale they need, and nothing is glossed over."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradleak import claims
from gradleak.book import records, runner
from gradleak.book.records import Provenance, Record, Trial
from gradleak.claims import Claim, Measure, Rule, Within
from gradleak.errors import InputError
from gradleak.studies import Study

ROWS: list[dict[str, object]] = [
    {"net": "a", "value": 1.0, "good": True},
    {"net": "a", "value": 3.0, "good": False},
    {"net": "b", "value": 10.0, "good": True},
    {"net": "c", "value": math.nan, "good": True},
]


def record(rows: list[dict[str, object]]) -> Record:
    facts = Provenance(device="CPU", versions={}, commit="-", date="2026-11-21", seed=1, wall_seconds=1.0, data=[])
    trials = [Trial(inputs={"n": 1}, rows=rows, seconds=1.0)]
    return Record(study="toy", profile="quick", parameters={"count": 1}, trials=trials, provenance=facts)


def claim(**changes: Any) -> Claim:
    base: dict[str, Any] = {
        "id": "c", "paper": "p", "place": "Table 1", "statement": "s", "study": "toy", "published": 2.0,
        "measure": Measure(where={"net": "a"}, column="value", reduce="mean"),
        "rule": Rule(within=Within(absolute=0.5)), "needs": {"count": 1},
    }  # fmt: skip
    return Claim(**(base | changes))


@pytest.mark.parametrize(
    ("reduce", "where", "expected"),
    [
        ("mean", {"net": "a"}, 2.0),
        ("median", {"net": ["a", "b"]}, 3.0),
        ("min", {"net": ["a", "b"]}, 1.0),
        ("max", {"net": ["a", "b"]}, 10.0),
        ("sum", {"net": "a"}, 4.0),
        ("std", {"net": "a"}, math.sqrt(2)),
        ("only", {"net": "b"}, 10.0),
    ],
)
def test_values_are_selected_and_reduced(reduce: Any, where: dict[str, Any], expected: float) -> None:
    judged = claims.judge(claim(measure=Measure(where=where, column="value", reduce=reduce)), record(ROWS))
    assert judged.value == pytest.approx(expected)


def test_share_is_in_percent_and_counts() -> None:
    judged = claims.judge(claim(measure=Measure(column="good", reduce="share")), record(ROWS))
    assert judged.value == pytest.approx(75)
    assert judged.count == 4


@pytest.mark.parametrize(
    ("changes", "verdict", "agrees"),
    [
        ({}, "reproduced", True),
        ({"published": 9.0}, "not reproduced", False),
        ({"rule": Rule(at_least=1.0), "better": "higher", "published": 1.5}, "better", True),
        ({"rule": Rule(at_least=1.0), "better": "lower", "published": 1.5}, "reproduced", True),
        ({"better": "higher", "published": 0.5}, "better", True),
        ({"better": "lower", "published": 9.0}, "better", True),
        ({"better": "lower", "published": 0.5}, "not reproduced", False),
        ({"better": "higher", "published": 2.0}, "reproduced", True),
        ({"better": "higher", "published": 0.5, "needs": {"count": 2}}, "trend only", True),
        ({"rule": Rule(at_most=1.0)}, "not reproduced", False),
        ({"rule": Rule(between=(1.0, 2.0))}, "reproduced", True),
        ({"rule": Rule(within=Within(relative=0.5)), "published": 3.0}, "reproduced", True),
        ({"needs": {"count": 2}}, "trend only", True),
        ({"needs": {"count": 2}, "published": 9.0}, "trend only", False),
        ({"needs": {"count": [1, 5]}}, "reproduced", True),
        ({"needs": {"dataset": "cifar10"}}, "trend only", True),
    ],
)
def test_verdicts(changes: dict[str, Any], verdict: str, agrees: bool) -> None:
    judged = claims.judge(claim(**changes), record(ROWS))
    assert (judged.verdict, judged.agrees) == (verdict, agrees)


def test_no_record_is_not_run_and_nan_fails() -> None:
    assert claims.judge(claim(), None).verdict == "not run"
    everything = Measure(column="value", reduce="mean")
    assert claims.judge(claim(measure=everything, rule=Rule(at_most=1e9)), record(ROWS)).verdict == "not reproduced"
    assert claims.judge(claim(measure=everything, better="higher"), record(ROWS)).verdict == "not reproduced"


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (Measure(where={"net": "z"}, column="value", reduce="mean"), "selects no row"),
        (Measure(where={"nets": "a"}, column="value", reduce="mean"), "selects by 'nets'"),
        (Measure(column="values", reduce="mean"), "measures 'values'"),
        (Measure(column="value", reduce="only"), "selects 4 rows where it needs one"),
    ],
)
def test_a_claim_that_cannot_be_measured_is_an_error(measure: Measure, message: str) -> None:
    with pytest.raises(InputError, match=message):
        claims.judge(claim(measure=measure), record(ROWS))


def test_a_stand_in_for_nothing_is_not_run_even_at_the_papers_scale() -> None:
    whole = record(ROWS).model_copy(update={"profile": "paper"})
    absent = Measure(where={"net": "d"}, column="value", reduce="mean")
    told = {"stand_in": "Not run: it takes weeks.", "needs": {"count": 9}}
    assert claims.judge(claim(measure=absent, **told), whole).verdict == "not run"
    for changes in ({"needs": {"count": 9}}, {"stand_in": "Less."}):
        with pytest.raises(InputError, match="selects no row"):
            claims.judge(claim(measure=absent, **changes), whole)


def test_the_recorded_result_decides_where_it_has_the_scale(toy: Study) -> None:
    fresh = runner.run_study(toy, toy.Parameters(samples=2), jobs=1)
    (line,) = claims.lines({"toy": fresh}, "toy")
    assert line.verdict_text == "trend only (disagrees)"
    assert not line.failing
    records.write(runner.run_study(toy, toy.Parameters(), jobs=1), records.file_of("toy"))
    (line,) = claims.lines({"toy": fresh}, "toy")
    assert line.verdict_text == "reproduced"
    assert line.recorded.value == 6
    records.write(runner.run_study(toy, toy.Parameters(samples=5), jobs=1), records.file_of("toy"))
    (line,) = claims.lines({"toy": fresh}, "toy")
    assert line.failing


def test_spread_and_count_are_shown() -> None:
    assert claims.judge(claim(unit="dB"), record(ROWS)).shown == "2 dB ± 1.41 (n = 2)"
    assert claims.judge(claim(), None).shown == "–"
    assert claim(unit="%").shown("a word") == "a word"
    assert claim(unit="%").shown("over 98") == "over 98 %"
    texts = [Rule(at_most=1).text(), Rule(at_least=2).text(), Rule(between=(1, 2)).text()]
    assert texts == ["≤ 1", "≥ 2", "1 … 2"]
    assert Rule(within=Within(absolute=1, relative=0.1)).text() == "± 1 ± 10%"
    assert claim(better="higher").rule_text == "± 0.5 or higher"
    assert claim(better="higher", rule=Rule(at_least=1)).rule_text == "≥ 1"
