"""Decide the outcome for each target: recovered, not recovered, not attacked, or not compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradleak.auditing.findings import Finding, Grade, NotTried, Outcome, Place, State
from gradleak.cases import Attack, Subject

# Most reasons that an outcome lists; the report's `not_tried` has all.
REASONS = 4


def targets_of(subject: Subject) -> tuple[str, ...]:
    """Return the targets that a batch of this network's inputs has."""
    if subject.sequence:
        return ("words", "sentences")
    read = ("words", "sentences") if subject.kind == "tokens" else ("inputs",)
    return ("labels", "classes", "features", *read)


def outcome_of(
    target: str, place: Place, told: Sequence[tuple[Attack, Finding | NotTried | None]], samples: int
) -> Outcome:
    """Return the outcome of a target in one case.

    Args:
        target: One of TARGETS.
        place: The case.
        told: The result of every attack in this case.
        samples: The number of private samples to compare answers with, 0 if there are none.
    """
    results = [result for attack, result in told if target in attack.finds]
    # An attack may have found something else only, such as words without their order.
    answers = [one for one in results if isinstance(one, Finding) and (target in one.measures or not one.measures)]
    silent = [result for result in results if isinstance(result, NotTried)]
    about = {
        "target": target,
        **place._asdict(),
        "samples": samples,
        "why": _reasons([result for result in silent if result.applies]),
    }
    if not answers:
        about["why"] = about["why"] or _reasons(silent) or "no attack here is after them"
        return Outcome(**about, outcome="not attacked")
    if not samples:
        certain = [result for result in answers if result.certificate in ("unique", "exact") or result.certified]
        tried = [result for result in answers if result.certificate != "failed"]
        best = (certain or tried or answers)[0]
        state: State = "recovered" if certain else "not compared" if tried else "not recovered"
        return Outcome(**about, outcome=state, attack=best.attack, certified=best.certified)
    if target == "inputs":
        return _graded(about, answers, silent)
    best = max(answers, key=lambda result: result.measures.get(target, -1.0))
    share = best.measures.get(target, 0.0)
    guess = max((result.chance[target] for result in answers if target in result.chance), default=None)
    # A guess may be right by luck, so a share of 1 or a certified answer counts as recovered whatever the guess has.
    sure = share == 1 or (share > 0 and best.certificate in ("unique", "exact"))
    state = "recovered" if sure or share > (guess or 0.0) else "not recovered"
    return Outcome(**about, outcome=state, attack=best.attack, share=share, guess=guess)


def _graded(about: dict[str, Any], answers: Sequence[Finding], silent: Sequence[NotTried]) -> Outcome:
    """Return the outcome for inputs by the attack that recovered most exactly, then most recognisably.

    If nothing was recovered, state also why attacks do not apply: a small change of the network may make them apply.
    """

    def shares(result: Finding) -> tuple[float, ...]:
        # Of attacks that find the same, the one that guarantees most; then the one that comes nearest.
        exact, recognisable, db = (result.measures.get(name, 0.0) for name in ("inputs", "recognisable", "image-psnr"))
        return exact, recognisable, result.certified, db

    best = max(answers, key=shares)
    exact, recognisable, *_ = shares(best)
    grade: Grade = "exact" if exact else "recognisable" if recognisable else "not recognisable"
    state: State = "recovered" if recognisable else "not recovered"
    if not recognisable:
        about = about | {"why": _reasons(silent)}
    return Outcome(
        **about, outcome=state, attack=best.attack, share=exact or recognisable, grade=grade, certified=best.certified
    )


def _reasons(silent: Sequence[NotTried]) -> str:
    """Return why attacks have no answer: each reason once, after the attacks with this reason."""
    groups: dict[str, list[str]] = {}
    for untried in silent:
        groups.setdefault(untried.why, []).append(untried.attack)
    lines = [f"{', '.join(names)}: {why}" for why, names in groups.items()]
    tail = [f"{len(lines) - REASONS} more reasons"] if len(lines) > REASONS + 1 else []
    return "; ".join([*lines[: REASONS if tail else None], *tail])
