"""Find the trials whose rows measure a claim."""

from __future__ import annotations

from collections.abc import Iterable

from gradleak.claims.judging import selected
from gradleak.claims.model import Claim
from gradleak.runs.records import Record


def trials_behind(claims: Iterable[Claim], record: Record) -> dict[str, frozenset[int]]:
    """Return the indices of the trials whose rows a claim selects, by the claim's id, for all claims that have rows."""
    # `record.lines` returns the same objects at every call, so a line can be identified by its `id`.
    owners = [index for index, trial in enumerate(record.trials) for _ in trial.rows]
    owner = {id(line): index for line, index in zip(record.lines, owners, strict=True)}
    claim_rows = {claim.id: selected(claim, record, may_lack=True) for claim in claims}
    return {name: frozenset(owner[id(line)] for line in lines) for name, lines in claim_rows.items() if lines}
