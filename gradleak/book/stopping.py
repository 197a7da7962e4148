"""Decide from all recorded outcomes which defence stops a kind of leak, against the strongest attacker in the book."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.studies.shared.outcomes import RESCALING, Kind, Outcome

# A defence is named only if it was measured on at least this many cases.
LEAST = 10
NOTE = (
    "*Stopped by*: the mildest recorded defence that stops every attack of the book on this kind of leak, with the "
    "cosine of the angle between the sent and the true gradient, and the page that measures it. Clipping only rescales "
    "the gradient, so it is never named. An attack that was not tried may recover more."
)
RULE = (
    "There are five kinds of leak: labels, soft labels, features, images and text. A defence stops an attack where the "
    f"attack recovers, in at least {LEAST} cases, less than a tenth of what a guess misses, or images below 20 dB. "
    "This does not count if any attack on the same kind of leak succeeds, on any page, behind the same family of "
    "defences at the same strength or a greater one. The strength is measured by the cosine of the angle between the "
    "sent and the true gradient: the smaller the cosine, the stronger the defence. Clipping and noise together count "
    "as noise. A client that computes in a coarse precision counts as one that sends rounded numbers. Where a page "
    "records no cosine, only levels of the same defence are compared. Clipping alone is never named: it multiplies the "
    "whole gradient by one number, for which an attacker can solve. Of the defences that are left, the table names the "
    "one with the largest cosine, because it changes the gradient's direction least."
)


@dataclass(frozen=True)
class Stop:
    """A defence that stops a kind of leak: its family, the cosine of the sent gradient, and the page that shows it."""

    family: str
    cosine: float
    page: str


def stop(kind: Kind, outcomes: Sequence[Outcome]) -> Stop | None:
    """Return the weakest defence that stops every recorded attack on a kind of leak, or None if none does.

    Args:
        kind: The kind of leak.
        outcomes: The outcomes of all pages.
    """
    behind = [one for one in outcomes if one.leak == kind and _family(one) not in ("none", RESCALING)]
    successes = [one for one in behind if one.severity > 0]
    failures = [one for one in behind if one.severity == 0 and one.count >= LEAST and not math.isnan(one.cosine)]
    left = [
        one
        for one in failures
        if not any(_family(other) == _family(one) and _as_strong(other, one) for other in successes)
    ]
    if not left:
        return None
    weakest = max(left, key=lambda one: one.cosine)
    return Stop(weakest.family, weakest.cosine, weakest.page)


def _family(outcome: Outcome) -> str:
    """Return the family within which defences are compared; a client that rounds counts as one that sends rounded."""
    if outcome.family == "none" and not math.isnan(outcome.bits):
        return "rounding"
    # Clipping alone does not help, so clipping and noise is as strong as noise.
    return "noise" if outcome.family == "clipping and noise" else outcome.family


def _as_strong(one: Outcome, other: Outcome) -> bool:
    """Whether a defence is known to be at least as strong as another of its family."""
    if not math.isnan(one.cosine) and not math.isnan(other.cosine):
        return one.cosine <= other.cosine + 1e-9
    if not math.isnan(one.bits) and not math.isnan(other.bits):
        return one.bits <= other.bits
    (name, level), (other_name, other_level) = _level(one), _level(other)
    return name == other_name and level >= other_level


def _level(outcome: Outcome) -> tuple[str, float]:
    name, *levels = outcome.defense.split("/")
    try:
        return name, float(levels[-1]) if levels else 0.0
    except ValueError:
        return outcome.defense, 0.0  # a layer that is not sent has no level
