"""Every claim that fails or disagrees has a cause, and only such claims have one."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import get_args

import pytest
from pydantic import ValidationError

from gradleak import claims
from gradleak.claims import Line, causes
from gradleak.claims.model import Cause
from tests.claims.test_shown import line


@cache
def judged() -> list[Line]:
    return claims.lines({})


def test_every_claim_that_fails_or_disagrees_has_a_cause() -> None:
    failing = [one for one in judged() if one.verdict in causes.DISAGREES]
    assert len(failing) > 300
    assert not [f"{one.claim.study}: {one.claim.id}" for one in failing if causes.cause(one) is None]


def test_a_cause_is_stated_only_where_something_fails() -> None:
    # A table may state the cause of all its failing cells at once; a claim outside a table states its own.
    failing = {(one.claim.study, one.claim.table or one.claim.id) for one in judged() if one.failing}
    stated = {(one.claim.study, one.claim.table or one.claim.id) for one in judged() if one.claim.cause}
    assert stated <= failing


def test_all_causes_are_explained_and_occur() -> None:
    assert set(causes.MEANINGS) == set(get_args(Cause))
    groups = causes.by_cause(judged())
    assert set(groups) == set(causes.MEANINGS)
    disagreeing = Counter(one.verdict for one in judged() if one.verdict in causes.DISAGREES)
    assert sum(map(len, groups.values())) == disagreeing.total()
    assert len(groups["a stand-in was measured"]) == disagreeing["stand-in: disagrees"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"note": "why", "cause": "chance"}, None),
        ({"published": 9.0}, None),
        ({"published": 9.0, "note": "why", "cause": "chance"}, "chance"),
        ({"published": 9.0, "needs": {"count": 99}}, "too few samples"),
        ({"published": 9.0, "setting": {"net": "z"}}, "a stand-in was measured"),
        ({"published": 9.0, "ours": "prediction"}, "our prediction was wrong"),
        ({"published": 9.0, "ours": "finding", "note": "why", "cause": "not explained yet"}, "not explained yet"),
    ],
)
def test_a_cause_follows_from_the_verdict_or_is_stated(changes: dict[str, object], expected: str | None) -> None:
    assert causes.cause(line(**changes)) == expected


def test_a_failing_claim_without_a_cause_counts_as_not_explained() -> None:
    one = line(published=9.0)
    assert causes.by_cause([one, line()]) == {"not explained yet": [one]}


def test_a_stand_in_cannot_have_a_cause() -> None:
    with pytest.raises(ValidationError, match="cannot fail"):
        line(cause="chance", note="why", stand_in="another network", setting={"net": "z"})
