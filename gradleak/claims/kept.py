"""Store the rules of claims in a record, and find rules that have become looser since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradleak.claims.judging import enough
from gradleak.claims.model import Claim, Rule
from gradleak.runs.plain import Columns


def plain(claim: Claim) -> Columns:
    """Return the fields of a claim that affect its verdict, as a record stores them."""
    return {
        "measure": claim.measure.model_dump(exclude={"format", "samples"}),
        "published": claim.published,
        "rule": claim.rule.model_dump(mode="json", exclude_none=True),
        "better": claim.better,
        "needs": claim.needs,
        "setting": claim.setting,
    }


def loosened(claims: Iterable[Claim], kept: dict[str, Any]) -> list[str]:
    """Return a line for each rule that is looser now than the stored rule and whose claim does not state `changed`."""
    present = {claim.id: claim for claim in claims}
    looser = [
        f"claim '{name}' is looser than when it was measured, and does not say `changed`: {reason}"
        for name, claim in present.items()
        if name in kept and not claim.changed and (reason := _how(claim, kept[name]))
    ]
    return [f"claim '{name}' was measured and is gone" for name in kept if name not in present] + looser


def _how(claim: Claim, then: Any) -> str:
    """Return what is looser about a claim than in its stored rule, or "" if nothing is."""
    if plain(claim)["measure"] != then["measure"]:
        return "it measures something else"
    if claim.published != then["published"]:
        return f"published was {then['published']}, now {claim.published}"
    former = claim.model_copy(update={"rule": Rule.model_validate(then["rule"]), "better": then["better"]})
    (least, most), (least_then, most_then) = claim.accepted(), former.accepted()
    if least < least_then or most > most_then:
        return f"its rule was {former.rule_text}, now {claim.rule_text}"
    setting = claim.setting if isinstance(claim.setting, dict) else {}
    for name, needed in then["needs"].items():
        # Networks and datasets, which are words, are parts of the setting now.
        words = all(isinstance(one, str) for one in (needed if isinstance(needed, list) else [needed]))
        if not (words and setting) and not enough((claim.needs | setting).get(name), needed):
            return f"it needed {name} = {needed}, now {claim.needs.get(name, 'nothing')}"
    return ""
