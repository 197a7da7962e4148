"""The policy of scale on the claims of the book: a stand-in decides nothing, and a published method is never better."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from gradleak import claims, studies
from gradleak.claims import Claim, Judgement
from gradleak.claims.judging import among, enough
from gradleak.runs import records

# The attacks that others published, by the words for them in rows of records, and the runs of the papers' searches.
PUBLISHED = {
    "LLG", "LLG*", "LLG+", "LLG*, zeros", "LLG*, ones", "iLRG", "posterior", "DLG", "iDLG", "GT", "Ours",
    "DLG + Ours", "RLG", "RLG as coded", "minimum rule", "row sums", "GradInversion", "as coded", "swarm",
    "lbfgs, then pso", "search",
}  # fmt: skip
# A label's own error is that of our solver, whatever is searched with the label afterwards.
OWN = ("label_error",)


@cache
def judged() -> list[tuple[Claim, Judgement]]:
    kept = {name: records.recorded(name) for name in studies.names()}
    return [(claim, claims.judge(claim, kept[claim.study])) for claim in claims.load()]


def of_papers() -> list[tuple[Claim, Judgement]]:
    return [(claim, found) for claim, found in judged() if not claim.ours]


def test_a_stand_in_is_never_reproduced() -> None:
    assert not [claim.id for claim, found in judged() if found.verdict == "not run"], "every claim has been run"
    assert not [claim.id for claim, found in of_papers() if claim.stand_in and not found.differs]
    differing = [(claim, found) for claim, found in of_papers() if found.differs]
    assert len(differing) > 200
    for claim, found in differing:
        assert found.verdict in ("stand-in: agrees", "stand-in: disagrees"), claim.id
        assert claim.stand_in, f"{claim.study}: {claim.id} differs in {found.differs} and does not say what stands in"


def test_names_of_a_setting_exist() -> None:
    lost = []
    for name in studies.names():
        record = records.recorded(name)
        known = {*studies.load(name).Parameters.model_fields, *(record.columns if record else ())}
        for claim in claims.load(name):
            setting = claim.setting if isinstance(claim.setting, dict) else {}
            lost += [
                f"{name}: {claim.id}: {one}" for one in {*setting, *claim.used} if one not in {*known, *claim.used}
            ]
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize("study", studies.names())
def test_every_claim_could_be_judged(study: str) -> None:
    """What a claim needs are valid parameters of its study, and some trial at the paper's scale has what it selects."""
    loaded, parameters = studies.load(study), studies.parameters(study, "paper")
    trials, offered = loaded.trials(parameters), parameters.model_dump()
    for claim in claims.load(study):
        for name, value in claim.measure.where.items():
            stated = [inputs[name] for inputs in trials if name in inputs]
            values = value if isinstance(value, list) else [value]
            assert not stated or any(among(one, values) for one in stated), f"{claim.id} selects {name} = {value}"
        assert claim.needs.keys() <= offered.keys(), claim.id
        loaded.Parameters(**offered | {name: raised(offered[name], need) for name, need in claim.needs.items()})


def raised(offered: Any, needed: Any) -> Any:
    """Return a value of a parameter that meets what a claim needs, starting from the value `offered`."""
    if isinstance(offered, list):
        return offered + [one for one in (needed if isinstance(needed, list) else [needed]) if one not in offered]
    return offered if enough(offered, needed) else needed[0] if isinstance(needed, list) else needed


def test_a_published_method_is_never_better() -> None:
    better = [claim for claim, found in judged() if found.verdict == "better"]
    assert len(better) > 10
    for claim in better:
        assert claim.method == "own", claim.id
    for claim, _ in of_papers():
        names = {str(claim.measure.where.get(key)) for key in ("attack", "run", "rule", "solver")}
        if names & PUBLISHED and claim.measure.column not in OWN:
            assert claim.method == "published", f"{claim.study}: {claim.id}"


def test_a_prediction_stood_when_its_record_was_made() -> None:
    late = []
    for name in studies.names():
        record = records.recorded(name)
        stood = (record.rules if record else None) or {}
        late += [
            f"{name}: {claim.id}"
            for claim in claims.load(name)
            if claim.ours == "prediction" and stood and claim.id not in stood
        ]
    assert not late, "written after the run, and called predictions:\n" + "\n".join(late)


def test_changes_are_of_a_kind_and_say_why() -> None:
    kinds = Counter(change.kind for claim, _ in judged() for change in claim.changed)
    assert set(kinds) >= {"measure", "rule tightened", "rule corrected", "scale", "written after the run"}
    for claim, _ in judged():
        for change in claim.changed:
            assert len(change.why) > 20, claim.id
            assert "2026-" in change.why, f"{claim.study}: {claim.id} does not say when"


def test_a_constant_fails_the_rule_of_draws() -> None:
    central = [claim for claim, _ in judged() if claim.rule.central]
    assert len(central) == 4
    for claim in central:
        assert isinstance(claim.published, int | float)
        assert not claim.holds(claim.published, [claim.published] * 100)
        assert claim.holds(claim.published, [claim.published + n - 50 for n in range(101)])
