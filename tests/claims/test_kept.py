"""A rule that is looser than when its record was made is told, unless the claim says that it changed."""

from __future__ import annotations

from typing import Any

import pytest

from gradleak.claims import kept
from gradleak.claims.model import Change, Measure, Rule, Within
from tests.claims.test_judging import claim

KEPT = {"c": kept.plain(claim(needs={"count": 5, "net": ["a", "b"]}))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"rule": Rule(within=Within(absolute=0.4))}, ""),
        ({"note": "a word", "measure": Measure(where={"net": "a"}, column="value", reduce="mean", format=".9f")}, ""),
        ({"needs": {"count": 9, "net": ["a", "b"], "more": 1}}, ""),
        ({"rule": Rule(within=Within(absolute=0.6))}, "its rule was ± 0.5, now ± 0.6"),
        ({"better": "higher"}, "its rule was ± 0.5, now ± 0.5 or higher"),
        ({"published": 3.0}, "published was 2.0, now 3.0"),
        ({"needs": {"count": 4, "net": ["a", "b"]}}, "it needed count = 5, now 4"),
        ({"needs": {"count": 5, "net": ["a", "c"]}}, "it needed net"),
        ({"needs": {"count": 5}, "setting": {}, "ours": "finding"}, "now nothing"),
        ({"needs": {"count": 5}, "setting": {"network": "a"}}, ""),
        ({"needs": {}, "setting": {"count": 9, "network": "a"}}, ""),
        ({"needs": {}, "setting": {"count": 4, "network": "a"}}, "it needed count = 5, now nothing"),
        ({"needs": {"count": [1, 4], "net": ["a", "b"]}}, "it needed count = 5"),
        ({"measure": Measure(where={"net": "b"}, column="value", reduce="mean")}, "it measures something else"),
    ],
)
def test_what_is_looser_or_gone(changes: dict[str, Any], said: str) -> None:
    today = claim(**({"needs": {"count": 5, "net": ["a", "b"]}} | changes))
    told = kept.loosened([today], KEPT)
    assert len(told) == bool(said)
    assert not said or said in told[0]
    assert kept.loosened([today.model_copy(update={"changed": (Change(kind="measure", why="why"),)})], KEPT) == []
    assert kept.loosened([claim(id="other")], KEPT) == ["claim 'c' was measured and is gone"]
