"""Say for which cause a claim fails or disagrees, and count the failing claims by cause."""

from __future__ import annotations

from collections.abc import Iterable

from gradleak.claims.judging import Line, Verdict
from gradleak.claims.model import Cause

# What each cause means, in the order in which the scoreboard lists them.
MEANINGS: dict[Cause, str] = {
    "the paper contradicts itself": "Its text, its numbers and its code do not agree with each other.",
    "the statement does not hold": "It was measured in the paper's setting, and the reason why it is false is known.",
    "details are not published": "The number depends on something that neither the paper nor its code states.",
    "another method": "The measured method is not the one that the number was published for.",
    "chance": "The paper's number comes from a single draw, and other draws lie as far away.",
    "our prediction was wrong": "A prediction of ours, or a limit that we chose ourselves, was not met.",
    "a stand-in was measured": "Another network, dataset or length of the search stands in for the paper's.",
    "too few samples": "The paper's setting was measured with fewer samples or starts than the paper had.",
    "not explained yet": "We do not know the cause.",
}
# The causes that follow from the verdict. They need not be stated with the claim.
DERIVED: dict[Verdict, Cause] = {
    "stand-in: disagrees": "a stand-in was measured",
    "trend: disagrees": "too few samples",
    "fails": "our prediction was wrong",
}
# The verdicts that need a cause.
DISAGREES: frozenset[Verdict] = frozenset({"not reproduced", *DERIVED})


def disagrees(line: Line) -> bool:
    """Whether a claim fails or disagrees, so that it needs a cause."""
    return line.failing or line.verdict in DISAGREES


def cause(line: Line) -> Cause | None:
    """Return the cause for which a claim fails or disagrees; None for other claims, and where no cause is stated."""
    return (line.claim.cause or DERIVED.get(line.verdict)) if disagrees(line) else None


def by_cause(judged: Iterable[Line]) -> dict[Cause, list[Line]]:
    """Group the claims that fail or disagree by their cause, in the order of `MEANINGS`."""
    groups: dict[Cause, list[Line]] = {name: [] for name in MEANINGS}
    for line in judged:
        if disagrees(line):
            groups[cause(line) or "not explained yet"].append(line)
    return {name: lines for name, lines in groups.items() if lines}
