"""A claim that fails on its record says why."""

from __future__ import annotations

from gradleak import claims


def test_every_claim_that_fails_is_shown_with_its_reason() -> None:
    failing = [line for line in claims.lines({}) if line.failing]
    assert not [f"{line.claim.study}: {line.claim.id}" for line in failing if not line.claim.note.strip()]
