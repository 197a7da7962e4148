"""Decide the outcome for each target: recovered, not recovered, not attacked, or not compared."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.auditing.findings import NOT_ATTACKED, NOT_COMPARED, NOT_RECOVERED, RECOVERED, Finding, NotTried, Outcome
from gradleak.cases import Attack, Subject

# Most reasons that an outcome lists; the report's `not_tried` has all.
REASONS = 4


def targets_of(subject: Subject) -> tuple[str, ...]:
    """Return the targets that a batch of this network's inputs has."""
    if subject.sequence:
        return ("words", "sentences")
    return ("labels", "classes", "features", "words" if subject.kind == "tokens" else "inputs")


def outcome_of(target: str, told: Sequence[tuple[Attack, Finding | NotTried]], *, compared: bool) -> Outcome:
    """Return the outcome of a target in one case.

    Args:
        target: One of TARGETS.
        told: The result of every attack in this case.
        compared: Whether there is a private batch to compare answers with.
    """
    results = [result for attack, result in told if target in attack.finds]
    answers = [result for result in results if isinstance(result, Finding)]
    silent = [result for result in results if isinstance(result, NotTried)]
    place = {"target": target, **told[0][1].place._asdict()}
    why = _reasons([result for result in silent if result.applies])
    if not answers:
        why = why or _reasons(silent) or "no attack here is after them"
        return Outcome.model_validate({**place, "outcome": NOT_ATTACKED, "why": why})
    if not compared:
        certain = [result for result in answers if result.certificate in ("unique", "exact")]
        if certain:
            return Outcome.model_validate({**place, "outcome": RECOVERED, "attack": certain[0].attack, "why": why})
        tried = [result for result in answers if result.certificate != "failed"]
        state = NOT_COMPARED if tried else NOT_RECOVERED
        return Outcome.model_validate({**place, "outcome": state, "attack": (tried or answers)[0].attack, "why": why})
    best = max(answers, key=lambda result: result.measures.get(target, -1.0))
    share = best.measures.get(target, 0.0)
    guess = max((result.chance[target] for result in answers if target in result.chance), default=None)
    # A guess may be right by luck, so a share of 1 or a certified answer counts as recovered whatever the guess has.
    sure = share == 1 or (share > 0 and best.certificate in ("unique", "exact"))
    state = RECOVERED if sure or share > (guess or 0.0) else NOT_RECOVERED
    known = {"outcome": state, "attack": best.attack, "share": share, "guess": guess, "why": why}
    return Outcome.model_validate({**place, **known})


def _reasons(silent: Sequence[NotTried]) -> str:
    """Return why attacks have no answer: each reason once, after the attacks with this reason."""
    groups: dict[str, list[str]] = {}
    for untried in silent:
        groups.setdefault(untried.why, []).append(untried.attack)
    lines = [f"{', '.join(names)}: {why}" for why, names in groups.items()]
    tail = [f"{len(lines) - REASONS} more reasons"] if len(lines) > REASONS + 1 else []
    return "; ".join([*lines[: REASONS if tail else None], *tail])
