"""Store the rules of claims in a record, and find rules that have become looser since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradleak.claims.judging import enough
from gradleak.claims.model import Claim, Rule
from gradleak.runs.plain import Columns


def plain(claim: Claim) -> Columns:
    """Return the fields of a claim that affect its verdict, as a record stores them."""
    rule = claim.rule.model_dump(exclude_none=True)
    return {
        "measure": claim.measure.model_dump(exclude={"format", "samples"}),
        "published": claim.published,
        "rule": {name: list(value) if isinstance(value, tuple) else value for name, value in rule.items()},
        "better": claim.better,
        "needs": claim.needs,
        "setting": claim.setting,
    }


def loosened(claims: Iterable[Claim], kept: dict[str, Any]) -> list[str]:
    """Return a line for each rule that is looser now than the stored rule and whose claim does not state `changed`."""
    current = list(claims)
    messages = []
    for name, stored in kept.items():
        # A claim that was only renamed is found by its measure.
        matches = (
            [claim for claim in current if claim.id == name]
            or [claim for claim in current if name in claim.replaces]
            or [claim for claim in current if plain(claim)["measure"] == stored["measure"]]
        )
        if not matches:
            messages.append(f"claim '{name}' was measured and is gone")
        elif not matches[0].changed and (reason := _how(matches[0], stored)):
            messages.append(
                f"claim '{matches[0].id}' is looser than when it was measured, and does not say `changed`: {reason}"
            )
    return messages


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
    for name, needed in then["needs"].items():
        # A value that was required in `needs` may now be required in `setting`.
        needs = [part[name] for part in (claim.needs, claim.setting) if isinstance(part, dict) and name in part]
        if not _settled(needed, claim) and not any(_as_much(need, needed) for need in needs):
            return f"it needed {name} = {needed}, now {claim.needs.get(name, 'nothing')}"
    return ""


def _settled(needed: Any, claim: Claim) -> bool:
    """Whether a former need consists of words, such as networks or datasets, which the claim's setting now states."""
    words = needed if isinstance(needed, list) else [needed]
    return isinstance(claim.setting, dict) and bool(claim.setting) and all(isinstance(word, str) for word in words)


def _as_much(now: Any, then: Any) -> bool:
    """Whether a need is at least as strict as another."""
    if isinstance(now, list) and not isinstance(then, int | float):
        return all(value in then if isinstance(then, list) else value == then for value in now)
    return enough(now, then)
