"""The policy of scale on the claims of the book: a stand-in decides nothing, a published method is never better, and
what fails has a cause.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import pytest

from gradleak import claims, studies
from gradleak.claims import Line
from gradleak.claims.model import CAUSES
from gradleak.runs import records
from tests.claims.test_shown import line as line_of

# The attacks that others published, by the words for them in rows of records, and the runs of the papers' searches.
PUBLISHED = {
    "LLG", "LLG*", "LLG+", "LLG*, zeros", "LLG*, ones", "iLRG", "posterior", "DLG", "iDLG", "GT", "Ours",
    "DLG + Ours", "RLG", "RLG as coded", "minimum rule", "row sums", "GradInversion", "as coded", "swarm",
    "lbfgs, then pso", "search",
}  # fmt: skip
# What may be negative: the gain of one attack over another, decibels, similarities. And what is at most 1.
SIGNED = {
    "over_guess", "over_llg", "low", "lower", "lost", "gain", "identified_gain", "bag_gains", "starts_gain", "psnr",
    "eight_bit", "image-psnr", "ssim", "least_weight",
}  # fmt: skip
SHARES = {"precision", "recall", "f1", "instances"}
# A label's own error is that of our solver, whatever is searched with the label afterwards.
OWN = ("label_error",)


@cache
def judged() -> list[Line]:
    return claims.lines({})


def of_papers() -> list[Line]:
    return claims.of_papers(judged())


def test_a_stand_in_is_never_reproduced() -> None:
    assert not [line.claim.id for line in judged() if line.verdict == "not run"], "every claim has been run"
    assert not [line.claim.id for line in of_papers() if line.claim.stand_in and not line.recorded.differs]
    differing = [line for line in of_papers() if line.recorded.differs]
    assert len(differing) > 200
    for line in differing:
        assert line.verdict in ("stand-in: agrees", "stand-in: disagrees"), line.claim.id
        assert line.claim.stand_in, f"{line.claim.id} differs, and does not say what stands in"


def test_names_of_a_setting_exist() -> None:
    for name in studies.names():
        record = records.recorded(name)
        known = {*studies.load(name).Parameters.model_fields}.union(*(record.lines if record else ()))
        for claim in claims.load(name):
            setting = claim.setting if isinstance(claim.setting, dict) else {}
            assert {*setting} <= {*known, *claim.used}, f"{name}: {claim.id}"


def test_every_rule_can_fail() -> None:
    for claim in claims.load():
        column = claim.measure.column
        percent = claim.measure.reduce == "share" or claim.unit == "%"
        greatest = 100.0 if percent else 1.0 if column in SHARES else math.inf
        least, most = claim.accepted()
        assert least > (-math.inf if column in SIGNED else 0.0) or most < greatest, claim.id


def test_a_published_method_is_never_better() -> None:
    better = [line.claim for line in judged() if line.verdict == "better"]
    assert len(better) > 10
    assert not [claim.id for claim in better if claim.method != "own"]
    for line in of_papers():
        names = {str(line.claim.measure.where.get(key)) for key in ("attack", "run", "rule", "solver")}
        if names & PUBLISHED and line.claim.measure.column not in OWN:
            assert line.claim.method == "published", f"{line.claim.study}: {line.claim.id}"


def test_a_prediction_is_as_old_as_its_record() -> None:
    for name in studies.names():
        record = records.recorded(name)
        if rules := record.rules if record else None:
            predictions = {claim.id for claim in claims.load(name) if claim.ours == "prediction"}
            assert predictions <= rules.keys(), f"written after the run, and called predictions: {name}"


def test_changes_are_of_a_kind_and_say_when_and_why() -> None:
    changes = [(line.claim.id, change) for line in judged() for change in line.claim.changed]
    kinds = Counter(change.kind for _, change in changes)
    assert set(kinds) >= {"measure", "rule tightened", "rule made looser", "scale", "written after the run"}
    assert not [name for name, change in changes if len(change.why) <= 20 or "2026-" not in change.why]


def test_every_claim_that_fails_or_disagrees_has_a_cause_and_no_other() -> None:
    disagreeing = [line for line in judged() if line.disagrees]
    assert len(disagreeing) > 300
    assert not [line.claim.id for line in disagreeing if line.cause is None]
    assert not [line.claim.id for line in judged() if line.failing and not line.claim.note.strip()]
    assert {line.cause for line in judged()} == {None, *CAUSES}
    # A table may state the cause of all its failing cells at once; a claim outside a table states its own.
    failing = {(line.claim.study, line.claim.table or line.claim.id) for line in judged() if line.failing}
    assert {(one.claim.study, one.claim.table or one.claim.id) for one in judged() if one.claim.cause} <= failing


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"published": 9.0, "cause": "chance"}, "chance"),
        ({"published": 9.0, "needs": {"count": 99}}, "too few samples"),
        ({"published": 9.0, "setting": {"net": "z"}}, "a stand-in was measured"),
        ({"published": 9.0, "ours": "prediction"}, "our prediction was wrong"),
    ],
)
def test_a_cause_follows_from_the_verdict_or_is_stated(changes: dict[str, object], expected: str | None) -> None:
    assert line_of(**changes).cause == expected
