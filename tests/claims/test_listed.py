"""Claims as plain data: unique names, one flat entry each, and the rows behind a claim."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from typing import Any

import pytest

from gradleak import claims
from gradleak.claims import Line, listed
from gradleak.claims.model import Measure, Rule
from tests.claims.test_judging import ROWS, claim, record
from tests.claims.test_shown import line


def entry(one: Line) -> dict[str, Any]:
    return listed.listed(one, "current")


def test_ids_are_unique_over_all_pages_and_fit_into_an_address() -> None:
    names = Counter(one.id for one in claims.load())
    assert [name for name, number in names.items() if number > 1] == []
    # "claims/<id>.html" is the file of a claim's page, also where file names ignore case.
    assert not [name for name in names if set(name) & set(" \t\n\"'<>#%?&`/\\")]
    assert len({name.lower() for name in names}) == len(names)


def test_an_entry_says_what_was_measured_and_how() -> None:
    changes: dict[str, Any] = {
        "published": 9.0, "unit": "dB", "note": "why", "cause": "chance", "protocol": "line search",
        "needs": {"count": 1, "nets": ["a", "b"]}, "setting": {"net": ["a", "b"], "size": 8}, "used": {"size": 8},
        "immaterial": {"nets": {"value": "a", "why": "one is enough"}},
        "changed": [{"kind": "scale", "why": "w"}, {"kind": "wording", "why": "v"}],
    }  # fmt: skip
    judged = claims.judge(claim(**changes), record(ROWS).model_copy(update={"parameters": {"count": 1, "nets": "a"}}))
    found = entry(Line(judged, claims.judge(claim(**changes), None)))
    assert found | {
        "whose": "the paper's", "published": 9.0, "value": 2.0, "n": 2, "verdict": "not reproduced",
    } == found  # fmt: skip
    assert found["spread"] == pytest.approx(math.sqrt(2))
    assert found["measure"] == "the mean of value where net = a"
    assert found["setting"] == "net = a or b, size = 8"
    assert found["needs"] == "count ≥ 1, nets = a and b"
    assert found["immaterial"] == "nets = a: one is enough"
    assert (found["cause"], found["record"], found["this_run"]) == ("chance", "current", None)
    assert [change["kind"] for change in found["changed"]] == ["scale", "wording"]


def test_the_lists_can_be_read_back() -> None:
    awkward = line(statement='a "b", c', published="over 98", rule=Rule(at_least=1), note="ü\nx")
    missing = line(id="nan", measure=Measure(where={"net": "c"}, column="value", reduce="mean"))
    entries = [entry(awkward), entry(missing)]
    assert json.loads(listed.as_json(entries)) == entries
    rows = list(csv.DictReader(io.StringIO(listed.as_csv(entries))))
    assert [list(row) for row in rows] == [list(listed.ABOUT)] * 2
    assert (rows[0]["statement"], rows[0]["published"], rows[0]["note"]) == ('a "b", c', "over 98", "ü\nx")
    assert (rows[1]["value"], rows[1]["cause"], rows[0]["cause"]) == ("nan", "", "")


def test_the_rows_behind_a_claim_are_few_and_tell_themselves_apart() -> None:
    made: list[dict[str, object]] = [
        {"net": "a", "image": number, "value": number / 7, "text": "x" * 50, "good": True} for number in range(30)
    ]
    rows, total = listed.rows_behind(claim(), record(made))
    assert list(rows) == ["image", "value"], "columns that are the same in all rows, or long, are left out"
    assert (len(rows), total) == (listed.MOST_ROWS, 30)
    assert rows.to_numpy()[:2].tolist() == [["0", "0"], ["1", "0.14286"]]
    both = claim(measure=Measure(where={"net": ["a", "b"]}, column="value", reduce="mean"))
    assert list(listed.rows_behind(both, record(ROWS))[0]) == ["net", "good", "value"]
