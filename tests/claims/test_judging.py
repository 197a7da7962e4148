"""Claims are judged by their rule, at the scale they need, and nothing is glossed over."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradleak import claims
from gradleak.claims import Claim, Line
from gradleak.claims.judging import enough
from gradleak.claims.model import Central, Measure, Rule, Within
from gradleak.errors import InputError
from gradleak.runs import records, runner
from gradleak.runs.records import Record, Trial
from gradleak.studies import Study

ROWS: list[dict[str, object]] = [
    {"net": "a", "value": 1.0, "good": True},
    {"net": "a", "value": 3.0, "good": False},
    {"net": "b", "value": 10.0, "good": True},
    {"net": "c", "value": math.nan, "good": True},
]


def record(rows: list[dict[str, object]]) -> Record:
    trials = [Trial(inputs={"n": 1}, rows=rows, seconds=1.0)]
    return Record(study="toy", profile="quick", parameters={"count": 1}, trials=trials)


def claim(**changes: Any) -> Claim:
    base: dict[str, Any] = {
        "id": "c", "paper": "p", "place": "Table 1", "statement": "s", "study": "toy", "published": 2.0,
        "measure": Measure(where={"net": "a"}, column="value", reduce="mean"),
        "rule": Rule(within=Within(absolute=0.5)), "needs": {"count": 1}, "setting": "any",
    }  # fmt: skip
    own = {"method": "own"} if changes.get("better") else {}
    # Who is not a paper says nothing of the paper's setting.
    return Claim(**(base | own | ({"setting": {}} if changes.get("ours") else {}) | changes))


@pytest.mark.parametrize(
    ("reduce", "where", "expected"),
    [
        ("mean", {"net": "a"}, 2.0),
        ("median", {"net": ["a", "b"]}, 3.0),
        ("min", {"net": ["a", "b"]}, 1.0),
        ("max", {"net": ["a", "b"]}, 10.0),
        ("sum", {"net": "a"}, 4.0),
        ("only", {"net": "b"}, 10.0),
        ("sum", {"net": ["a", "b"], "good": True}, 11.0),
        ("only", {"other": 1}, 5.0),
        ("only", {"other": True}, 6.0),
        ("only", {"other": [["a", 1], 2]}, 7.0),
        ("sum", {"net": None, "other": [1.0, 3]}, 5.0),
    ],
)
def test_values_are_selected_and_reduced(reduce: Any, where: dict[str, Any], expected: float) -> None:
    others: list[dict[str, object]] = [
        {"value": value, "other": other} for value, other in ((5.0, 1), (6.0, True), (7.0, ["a", 1]))
    ]
    judged = claims.judge(claim(measure=Measure(where=where, column="value", reduce=reduce)), record(ROWS + others))
    assert judged.value == pytest.approx(expected)


def test_share_is_in_percent_and_counts() -> None:
    with pytest.raises(InputError, match="claim 'c' is no measured share"):
        _ = claims.judge(claim(), record(ROWS)).cases
    with pytest.raises(InputError, match="selects 4 rows where it needs one"):
        claims.judge(claim(measure=Measure(column="value", reduce="only")), record(ROWS))
    judged = claims.judge(claim(measure=Measure(column="good", reduce="share")), record(ROWS))
    assert judged.value == pytest.approx(75)
    assert judged.count == 4
    assert judged.cases == "3 of 4"


EVERYTHING = Measure(column="value", reduce="mean")  # one of its values is NaN
NINE: dict[str, Any] = {"published": 9.0}


@pytest.mark.parametrize(
    ("changes", "verdict", "cause"),
    [
        ({}, "reproduced", None),
        (NINE | {"cause": "chance"}, "not reproduced", "chance"),
        ({"rule": Rule(at_least=1.0), "better": "higher", "published": 1.5}, "better", None),
        ({"better": "higher", "published": 0.5}, "better", None),
        ({"better": "higher", "published": 0.5, "needs": {"count": 2}}, "trend: agrees", None),
        ({"rule": Rule(between=(1.0, 2.0))}, "reproduced", None),
        ({"rule": Rule(within=Within(relative=0.5)), "published": 3.0}, "reproduced", None),
        ({"rule": Rule(within=Within(absolute=0.5, below=0)), "published": 1.8}, "reproduced", None),
        ({"rule": Rule(within=Within(absolute=0.5, below=0)), "published": 2.2}, "not reproduced", None),
        ({"needs": {"count": 2}}, "trend: agrees", None),
        (NINE | {"needs": {"count": 2}}, "trend: disagrees", "too few samples"),
        ({"setting": {"net": "b"}}, "stand-in: agrees", None),
        (NINE | {"setting": {"net": "b"}, "needs": {"count": 2}}, "stand-in: disagrees", "a stand-in was measured"),
        ({"setting": {"net": ["b", "a"]}}, "reproduced", None),
        ({"setting": {"steps": 500}, "used": {"steps": 500}}, "reproduced", None),
        ({"setting": {"steps": 20000}, "used": {"steps": 500}}, "stand-in: agrees", None),
        ({"setting": {"net": "b"}, "immaterial": {"net": {"value": "a", "why": "it is alike"}}}, "reproduced", None),
        ({"setting": {"net": "b"}, "immaterial": {"net": {"value": "c", "why": "no"}}}, "stand-in: agrees", None),
        ({"needs": {"count": 9}, "immaterial": {"count": {"value": 1, "why": "one"}}}, "reproduced", None),
        ({"published": "over 1.5", "rule": Rule(at_least=1.5)}, "reproduced", None),
        ({"published": "much", "rule": Rule(at_least=1.5)}, "agrees, as we read it", None),
        ({"published": "much", "rule": Rule(at_least=3), "cause": "chance"}, "disagrees, as we read it", "chance"),
        ({"published": "always", "rule": Rule(at_least=1.5), "limit": "rounding"}, "reproduced", None),
        ({"published": "more", "rule": Rule(at_least=0)}, "reproduced", None),
        ({"changed": [{"kind": "rule made looser", "why": "after the run"}]}, "agrees, as we read it", None),
        ({"ours": "prediction"}, "holds", None),
        (NINE | {"ours": "prediction"}, "fails", "our prediction was wrong"),
        ({"ours": "finding", "needs": {"count": 2}}, "trend: agrees", None),
        ({"measure": EVERYTHING, "rule": Rule(at_most=1e9)}, "not reproduced", None),
        ({"measure": EVERYTHING, "better": "higher"}, "not reproduced", None),
        ({"measure": Measure(where={"net": "z"}, column="value", reduce="mean")}, "not run", None),
        ({"measure": Measure(where={"good": 1}, column="value", reduce="mean")}, "not run", None),  # true is not 1
        ({"measure": Measure(where={"nets": "a"}, column="value", reduce="mean")}, "not run", None),
        ({"measure": Measure(column="values", reduce="mean")}, "not run", None),
    ],
)
def test_verdicts_and_causes(changes: dict[str, Any], verdict: str, cause: str | None) -> None:
    judged, none = claims.judge(claim(**changes), record(ROWS)), claims.judge(claim(**changes), None)
    assert (judged.verdict, Line(judged, none).cause) == (verdict, cause)
    assert bool(judged.agrees) == (
        verdict in ("reproduced", "better", "holds") or verdict.startswith("agrees") or verdict.endswith(": agrees")
    )
    assert none.verdict == "not run"


@pytest.mark.parametrize(
    ("column", "published", "changes", "open_ended"),
    [
        ("success", 96.0, {"unit": "%"}, True),
        ("success", 90.0, {"unit": "%"}, False),
        ("success", 3.0, {"unit": "%"}, True),
        ("success", 3.0, {"unit": "points"}, False),
        ("recall", 0.999, {"rule": Rule(within=Within(absolute=0.01))}, True),
        ("label_error", 0.1, {"rule": Rule(within=Within(relative=1.0))}, True),
        ("success", 96.0, {"unit": "%", "rule": Rule(at_least=90)}, False),
    ],
)
def test_an_interval_that_reaches_the_end_of_the_scale_is_shown(
    column: str, published: float, changes: dict[str, Any], open_ended: bool
) -> None:
    measure = Measure(column=column, reduce="mean")
    made = claim(measure=measure, published=published, **({"rule": Rule(within=Within(absolute=5))} | changes))
    assert made.open_ended == open_ended == any("end of the scale" in text for text in made.remarks)


GUESSED: list[dict[str, object]] = [
    {"attack": "ours", "value": 2.0, "label_error": 1.0, "exact": False},
    {"attack": "guess", "value": 1.8, "label_error": 1.2, "exact": False},
    {"attack": "theirs", "value": 4.0, "label_error": 0.1, "exact": True},
]


@pytest.mark.parametrize(
    ("attack", "column", "changes", "trivial"),
    [
        ("ours", "value", {}, "guess"),
        ("ours", "value", {"setting": {"net": "b"}}, "guess"),  # whatever was measured
        ("theirs", "value", {"published": 4.0}, ""),
        ("theirs", "value", {"rule": Rule(at_least=1.5)}, "guess"),
        ("theirs", "value", {"rule": Rule(at_least=1.9)}, ""),
        ("ours", "value", {"rule": Rule(at_most=3)}, ""),  # a defence works
        ("guess", "value", {}, ""),  # who speaks of a guess needs no other
        ("theirs", "label_error", {"rule": Rule(at_most=0.5)}, ""),
        ("theirs", "label_error", {"rule": Rule(at_most=1.3)}, "guess"),
        ("ours", "label_error", {"rule": Rule(at_least=0.5)}, ""),
        ("ours", "exact", {"published": 1.0, "rule": Rule(within=Within(absolute=3))}, "an empty answer"),
        ("theirs", "exact", {"published": 100.0}, ""),
    ],
)
def test_what_a_guess_finds_as_well_is_no_evidence(
    attack: str, column: str, changes: dict[str, Any], trivial: str
) -> None:
    measure = Measure(where={"attack": attack}, column=column, reduce="share" if column == "exact" else "mean")
    judged = claims.judge(claim(measure=measure, **changes), record(GUESSED))
    assert judged.agrees
    assert (judged.trivial, judged.verdict == "no evidence") == (trivial, bool(trivial))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"better": "higher", "method": "published"}, "'better' is for a method of our own"),
        ({"setting": {}}, "must state its setting"),
        ({"ours": "finding", "setting": {"net": "a"}}, "a claim of ours has no setting"),
        ({"ours": "prediction", "stand_in": "Less."}, "a claim of ours has no stand_in"),
        ({"cause": "chance", "stand_in": "another network"}, "cannot fail"),
        ({"cause": "bad luck"}, "its cause is one of"),
    ],
)
def test_the_policy_of_scale_is_enforced(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        claim(**changes)


@pytest.mark.parametrize(
    ("given", "needed", "expected"),
    [
        (5, 5, True), (6, 5, True), (4, 5, False), (True, 1, False), ("a", "a", True), ("a", ["a", "b"], True),
        ("c", ["a", "b"], False), ([1, 128], 128, True), ([1, 128], 64, False), ([1, 2], [1, 2], True),
        ([1, 2, 4], [1, 2], True), ([1, 2], [1, 2, 4], False), (["mnist"], "mnist", True), (None, "a", False),
    ],
)  # fmt: skip
def test_what_is_enough(given: Any, needed: Any, expected: bool) -> None:
    assert enough(given, needed) is expected


def test_rows_in_the_papers_setting_count_alone_and_without_them_all_rows_are_a_stand_in() -> None:
    both = Measure(where={"net": ["a", "b"]}, column="value", reduce="median")
    own = claims.judge(claim(measure=both, setting={"net": "a"}), record(ROWS))
    assert (own.verdict, own.value, own.count, own.differs) == ("reproduced", 2.0, 2, ())
    other = claims.judge(claim(measure=both, setting={"net": "c"}, published=3.0), record(ROWS))
    assert (other.verdict, other.value, other.differs) == ("stand-in: agrees", 3.0, ("net",))


FORTY = [float(number) for number in range(40)]


@pytest.mark.parametrize(
    ("values", "published", "verdict"),
    [
        (FORTY, 19.0, "reproduced"),
        (FORTY, 9.6, "reproduced"),
        (FORTY, 8.0, "not reproduced"),
        (FORTY[:20], 9.0, "not reproduced"),
        ([19.0] * 40, 19.0, "not reproduced"),
        ([math.nan, *FORTY], 19.0, "not reproduced"),
    ],
)
def test_one_draw_of_the_papers_must_be_among_the_central_ones_of_ours(
    values: list[float], published: float, verdict: str
) -> None:
    rule = Rule(central=Central(near=10))
    rows: list[dict[str, object]] = [{"net": "a", "value": value} for value in values]
    assert claims.judge(claim(rule=rule, published=published), record(rows)).verdict == verdict


def test_what_was_changed_about_a_method_is_said_in_the_verdict() -> None:
    judged = claims.judge(claim(protocol="line search", published=9.0), record(ROWS))
    assert Line(judged, judged).verdict_text == "not reproduced (line search)"
    assert Line(judged, judged).verdict == "not reproduced"
    none = claims.judge(claim(protocol="line search"), None)
    assert (Line(none, none).verdict_text, none.with_spread) == ("not run", "–")


def test_the_recorded_result_decides_where_it_has_the_scale(toy: Study) -> None:
    fresh = runner.run_study(toy, toy.Parameters(samples=2), jobs=1)

    def line(samples: int) -> Line:
        if samples:
            records.write(runner.run_study(toy, toy.Parameters(samples=samples), jobs=1), records.file_of("toy"))
        (only,) = claims.lines({"toy": fresh}, "toy")
        return only

    found = {samples: line(samples) for samples in (0, 4, 5)}
    assert [one.verdict_text for one in found.values()] == ["trend: disagrees", "reproduced", "not reproduced"]
    assert [one.failing for one in found.values()] == [False, False, True]
    assert found[4].recorded.value == 6


def test_spread_and_count_are_shown() -> None:
    assert claims.judge(claim(unit="dB"), record(ROWS)).with_spread == "2 dB ± 1.41 (n = 2)"
    assert claim(unit="%").formatted("a word") == "a word"
    assert claim(unit="%").formatted("over 98") == "over 98 %"
    texts = [Rule(at_most=1).text(), Rule(at_least=2).text(), Rule(between=(1, 2)).text()]
    assert texts == ["≤ 1", "≥ 2", "1 … 2"]
    assert Rule(within=Within(absolute=1, relative=0.1)).text() == "± 1 ± 10 %"
    assert claim(better="higher").rule_text == "± 0.5 or higher"
    assert claim(better="higher", rule=Rule(at_least=1)).rule_text == "≥ 1"
