"""Who only guesses, on the same batches, fails every claim that an attack does well."""

from __future__ import annotations

from gradleak.claims import Claim
from gradleak.claims.judging import judge
from tests.claims.test_fallible import recorded

GUESSES = ("guess", "guess, drawn")


def of_a_guess(claim: Claim, guess: str) -> Claim:
    """Return the claim as it would be about a guess."""
    where = claim.measure.where | {"attack": guess}
    return claim.model_copy(update={"measure": claim.measure.model_copy(update={"where": where})})


def test_a_guess_fails_what_is_said_of_attacks() -> None:
    tried, met = 0, []
    for claim, record in recorded():
        attack = claim.measure.where.get("attack")
        # A claim that an attack finds little is one about a defence, and a guess may well meet it.
        if attack is None or attack in GUESSES or claim.rule.at_least is None:
            continue
        found = {row.get("attack") for trial in record.trials for row in trial.rows}
        for guess in found.intersection(GUESSES):
            tried += 1
            if judge(of_a_guess(claim, guess), record).agrees:
                met.append(f"{claim.study}: {claim.id} is met by a {guess}")
    assert not met, "\n".join(met)
    assert tried > 30
