"""Every claim that fails or disagrees has a cause, and only such claims have one."""

from __future__ import annotations

from functools import cache

import pytest

from gradleak import claims
from gradleak.claims import Line
from gradleak.claims.model import CAUSES
from tests.claims.test_shown import line


@cache
def judged() -> list[Line]:
    return claims.lines({})


def test_every_claim_that_fails_or_disagrees_has_a_cause() -> None:
    failing = [one for one in judged() if one.disagrees]
    assert len(failing) > 300
    assert not [f"{one.claim.study}: {one.claim.id}" for one in failing if one.cause is None]
    assert not [one.claim.id for one in failing if one.failing and not one.claim.note.strip()], "a failure is explained"
    assert {one.cause for one in judged()} == {None, *CAUSES}


def test_a_cause_is_stated_only_where_something_fails() -> None:
    # A table may state the cause of all its failing cells at once; a claim outside a table states its own.
    failing = {(one.claim.study, one.claim.table or one.claim.id) for one in judged() if one.failing}
    stated = {(one.claim.study, one.claim.table or one.claim.id) for one in judged() if one.claim.cause}
    assert stated <= failing


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
    assert line(**changes).cause == expected
