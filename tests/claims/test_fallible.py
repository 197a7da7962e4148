"""Every rule can fail: with a value on the wrong side of it, and one that could be measured, the claim is not met."""

from __future__ import annotations

import math
from typing import Any

from gradleak import claims, studies
from gradleak.claims import Claim
from gradleak.claims.judging import judge, selected
from gradleak.runs import records
from gradleak.runs.records import Record, Trial

STEP = 1e-6
# What may be less than nothing: what one attack has over another, decibels, similarities.
SIGNED = (
    "over_guess",
    "over_llg",
    "low",
    "lower",
    "lost",
    "gain",
    "identified_gain",
    "bag_gains",
    "starts_gain",
    "psnr",
    "eight_bit",
    "image-psnr",
    "ssim",
    "least_weight",
)
SHARES = ("precision", "recall", "f1", "instances")


def bounds(claim: Claim) -> tuple[float, float]:
    """Return between which values the claim's measure always lies."""
    how, column = claim.measure.reduce, claim.measure.column
    if how in ("count", "std"):
        return 0.0, math.inf
    if column in SIGNED:
        return -math.inf, math.inf
    if how == "share" or claim.unit == "%":
        return 0.0, 100.0
    return 0.0, 1.0 if column in SHARES else math.inf


def wrong_values(claim: Claim) -> list[float]:
    """Return values just outside of what the claim accepts, that its measure can have."""
    least, most = claim.accepted()
    begin, end = bounds(claim)
    near = [least - max(STEP, STEP * abs(least)), most + max(STEP, STEP * abs(most))]
    return [value for value in near if math.isfinite(value) and begin <= value <= end]


def with_value(claim: Claim, lines: list[dict[str, Any]], record: Record, value: float) -> Record:
    """Return the record of the rows that measure a claim as it would be if the measure had come out at this value."""
    column, how, rows = claim.measure.column, claim.measure.reduce, []
    for number, line in enumerate(lines):
        changed: Any = value / len(lines) if how == "sum" else value
        if how == "share":
            exact = value / 100 * len(lines)
            changed = number < (math.floor(exact) if value < claim.accepted()[0] else math.ceil(exact))
        elif how == "std":
            changed = (number % 2) * 2 * value
        elif how == "count":
            changed = 0.0 if number < round(value) else None
        rows.append(line | {column: changed})
    trials = [Trial(inputs={}, rows=rows, seconds=0.0)]
    return Record(study=record.study, profile=record.profile, parameters=record.parameters, trials=trials)


def recorded() -> list[tuple[Claim, Record]]:
    kept = {name: records.recorded(name) for name in studies.names()}
    return [(claim, kept[claim.study]) for claim in claims.load() if kept[claim.study] is not None]


def test_every_rule_has_been_seen_to_fail() -> None:
    never = []
    for claim, record in recorded():
        if judge(claim, record).verdict == "not run":
            continue
        lines = selected(claim, record, may_lack=False)
        values = wrong_values(claim)
        # Of a trend, too, it must be possible to say that it disagrees.
        if all(judge(claim, with_value(claim, lines, record, one)).agrees for one in values):
            never.append(f"{claim.study}: {claim.id} ({claim.rule_text}{claim.unit}): no value fails it, of {values}")
    assert not never, "\n".join(never)
