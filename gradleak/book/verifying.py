"""Say how many claims hold, by paper, and what the exit code of `gradleak verify` means."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gradleak import claims
from gradleak.claims import Line
from gradleak.claims.judging import DECIDED, FAILED
from gradleak.wording import counted

OURS = "our own claims"


def by_paper(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return a row for each paper, and one for our own claims: how many of them hold, fail or are undecided."""
    groups: dict[str, list[Line]] = {}
    for line in [*claims.of_papers(lines), *claims.of_ours(lines)]:
        groups.setdefault(OURS if line.claim.ours else line.claim.paper, []).append(line)
    return [
        {
            "paper": name,
            "claims": len(own),
            "hold": sum(line.verdict in DECIDED - FAILED for line in own),
            "fail": sum(line.verdict in FAILED for line in own),
            "no evidence": sum(line.verdict == "no evidence" for line in own),
            "undecided": _undecided([line for line in own if line.deciding.undecided]),
        }
        for name, own in groups.items()
    ]


def _undecided(lines: Sequence[Line]) -> str:
    agree = sum(bool(line.deciding.agrees) for line in lines)
    return f"{len(lines)}, of which {agree} agree" if lines else "0"


def sentences(lines: Sequence[Line], fresh: Collection[str]) -> list[str]:
    """Return what the columns mean, which exit code a clean checkout gives and which this one, and where details are.

    Args:
        lines: The judged claims.
        fresh: The studies that have a run besides the record.
    """
    recorded = sum(line.recorded.verdict in FAILED for line in lines)
    new = sum(line.fresh.verdict in FAILED for line in lines)
    code = int(any(line.failing for line in lines))
    groups = {"of the papers": claims.of_papers(lines), "of our own": claims.of_ours(lines)}
    return [
        *(f"{counted(len(own), 'claim')} {whose}: {claims.in_words(own)}" for whose, own in groups.items() if own),
        "hold: reproduced, better, or agreeing as we read the paper; no evidence: a guess meets the rule as well;",
        "undecided: measured on too few samples or on a stand-in, or not run.",
        f"A clean checkout gives exit code {int(recorded > 0)}: "
        f"its records hold {counted(recorded, 'claim')} that failed at the scale needed.",
        f"This checkout gives exit code {code}: it has {counted(len(fresh), 'further run')}, with {new} failing.",
        "Details: --failing (values and rules), `gradleak verify STUDY` (every claim of a page), --json (everything).",
        "The causes of failures stand in the book, on the page of claims.",
    ]


def rows(lines: Sequence[Line], states: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a row for each claim with its values and its verdict; `states` are those of the records, by study."""
    return [
        {
            "claim": line.claim.id,
            "whose": line.claim.ours or "the paper's",
            "place": line.claim.place,
            "paper": line.claim.published,
            "rule": line.claim.rule_text,
            "recorded": line.recorded.with_spread,
            "record": states[line.claim.study],
            "fresh": line.fresh.with_spread,
            "verdict": line.verdict_text,
        }
        for line in lines
    ]


def facts(lines: Sequence[Line], states: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of all claims, with their values as numbers."""
    return [
        row
        | {"recorded_value": line.recorded.value, "fresh_value": line.fresh.value, "failing": line.failing}
        | {"differs": list(line.deciding.differs)}
        for row, line in zip(rows(lines, states), lines, strict=True)
    ]


def failures(failed: Sequence[Line]) -> list[str]:
    """Return a line for each claim that fails, with its values and its rule, and their number."""
    theirs = len(claims.of_papers(failed))
    return [
        *(
            f"{line.claim.id}: recorded {line.recorded.with_spread}, fresh {line.fresh.with_spread}; "
            f"holds if {line.claim.rule_text}"
            for line in failed
        ),
        f"{theirs} of the papers' claims and {len(failed) - theirs} of ours fail at the scale they need",
    ]
