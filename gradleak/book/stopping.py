"""Find the mildest recorded defence that stops an attack, and what still leaks behind this defence."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from operator import attrgetter

from gradleak.show.summary import Leaks
from gradleak.studies.shared.outcomes import RESCALING, Outcome, defense_in_words

# Defences whose names in tables are too short for a reader of the first page.
WORDS = {
    "gaussian": "noise of standard deviation {:g}",
    "gaussian-variance": "noise of variance {:g}",
    "prune": "dropping the smallest {:.0%} of all entries",
    "grad-drop": "dropping the smallest {:.0%} of each tensor",
    "prune-tensors": "dropping whole tensors (compression of {:.0%})",
    "sign": "sending signs only",
    "quantize": "rounding to {:.0f} bits",
    "release": "clipping to {:.0%} of the norm, and noise of {:g} times the clipped norm",
}
# The number of defences that are named for an attack.
MOST = 2
# A defence that another page measures is named only if it was measured on at least this many cases.
LEAST = 10
NOTE = (
    "*Stopped by*: the mildest recorded defence behind which this attack recovers little or nothing (less than a tenth "
    "of what a guess misses, or images that are not recognisable), whether the attacker knows the defence or not; and "
    "the mildest of a second kind, if there is one. What a defence leaves may be of another kind, such as the class of "
    "a soft label. The mildest defence changes the gradient’s direction least; defences measured on at least "
    f"{LEAST} cases come first. In brackets: the number of cases *n*, and the batch size, network and page, where "
    "these are not the row’s. Noise is absolute, per entry, unless it is a multiple of a norm. Clipping only rescales "
    "the gradient, so it is never named. An attack that was not tried may recover more."
)
_value = attrgetter("value")


def stopped(leaks: Leaks, page: str, outcomes: Sequence[Outcome]) -> str:
    """Return the defences that stop the attack of a page's row, and what still leaks behind each, in Markdown."""
    texts = []
    for one in stopping(leaks, page, outcomes)[:MOST]:
        left = " and ".join(
            f"{_short(own.value)} {own.unit} ({own.measure}{f'; a guess: {_short(own.chance)} %' * (own.chance > 0)})"
            for own in (one, *_others(one, outcomes))
            if own.value > own.chance
        )
        setting = [
            f"n = {one.count}",
            "" if one.batch == leaks.batch else f"batches of {one.batch}" if one.batch > 1 else "single samples",
            "" if leaks.network else one.network,
            "" if one.page == page else f"{{page}}`{one.page}`",
        ]
        texts.append(words(one) + f", which leaves {left}" * bool(left) + f" ({', '.join(filter(None, setting))})")
    none = "none of those measured" if tried(leaks, page, outcomes) else "not measured"
    return "; or ".join(texts) or none


def tried(leaks: Leaks, page: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return what the attack of a row reached behind defences: on each page, for the batch size nearest to the row's.

    Other pages count only if, like the row, they attack single samples or batches. A setting in which the attack fails
    without a defence, too, says nothing about defences.
    """
    own = [
        one
        for one in outcomes
        if (one.leak, one.attack) == (leaks.kind, leaks.attack)
        and leaks.network in ("", one.network)
        and (one.page == page or (one.batch > 1) == (leaks.batch > 1))
    ]
    setting, bare = attrgetter("page", "network", "batch"), [one for one in own if _family(one) == "none"]
    fails = {setting(one) for one in bare} - {setting(one) for one in bare if one.severity > 0}
    behind = [one for one in own if _family(one) not in ("none", RESCALING) and setting(one) not in fails]
    # The last size with a page's name is the nearest.
    far_first = sorted(behind, key=lambda one: -abs(math.log(one.batch / leaks.batch)))
    near = {one.page: one.batch for one in far_first}
    return [one for one in behind if one.batch == near[one.page]]


def stopping(leaks: Leaks, page: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the mildest defence of each family that stops the attack of a row, the mildest families first.

    Args:
        leaks: The row.
        page: The row's page.
        outcomes: The outcomes of all pages.

    Returns:
        For each defence the outcome of the attack in which the most leaks behind the defence.
    """
    behind = tried(leaks, page, outcomes)
    most: dict[tuple[str, str], Outcome] = {}
    for one in sorted(behind, key=_value):
        if one.count >= LEAST or one.page == page:
            most[one.defense, one.client] = one
    found: dict[str, Outcome] = {}
    for one in sorted(most.values(), key=_mildness, reverse=True):
        if not any(other.severity > 0 and _as_strong(other, one) for other in behind):
            found.setdefault(_family(one), one)
    return list(found.values())


def words(outcome: Outcome) -> str:
    """Return what the client of an outcome does to its gradient, in words."""
    if outcome.family == "none":
        return f"computing in {outcome.client}"
    name, *levels = outcome.defense.split("/")
    return WORDS[name].format(*map(float, levels)) if name in WORDS else defense_in_words(outcome.defense)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _mildness(outcome: Outcome) -> tuple[bool, float, float, float]:
    """Return by what defences are ordered: those measured on enough cases first, then by how little they change."""
    cosine, bits = (0.0 if math.isnan(value) else value for value in (_cosine(outcome), outcome.bits))
    return outcome.count >= LEAST, cosine, bits, -_level(outcome)[1]


def _others(stopped: Outcome, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return for each other kind of leak the outcome in the same setting in which the most leaks, if anything does."""
    axes = attrgetter("page", "attack", "network", "defense", "client")
    same = [one for one in outcomes if axes(one) == axes(stopped) and one.leak != stopped.leak and one.severity > 0]
    return tuple({one.leak: one for one in sorted(same, key=_value)}.values())


def _family(outcome: Outcome) -> str:
    """Return the family within which defences are compared; a client that rounds counts as one that sends rounded."""
    if outcome.family == "none" and not math.isnan(outcome.bits):
        return "rounding"
    # Clipping alone does not help, so clipping and noise is as strong as noise.
    return "noise" if outcome.family == "clipping and noise" else outcome.family


def _cosine(outcome: Outcome) -> float:
    """Return the cosine of the sent with the true gradient; NaN if it is not recorded or belongs to a part of it."""
    return math.nan if outcome.family == "layers not sent" else outcome.cosine


def _as_strong(one: Outcome, other: Outcome) -> bool:
    """Whether a defence is the same as another, or is known to be at least as strong as this one of its family."""
    if (one.defense, one.client) == (other.defense, other.client):
        return True
    (name, level), (other_name, other_level) = _level(one), _level(other)
    measures = (
        (_cosine(one), _cosine(other) + 1e-9),
        (one.bits, other.bits),
        (-level, -other_level if name == other_name else math.nan),
    )
    known = [left <= right for left, right in measures if not math.isnan(left + right)]
    return _family(one) == _family(other) and known[:1] == [True]


def _level(outcome: Outcome) -> tuple[str, float]:
    found = re.fullmatch(r"([\w-]+)/(?:.*/)?([\d.e+-]+)", outcome.defense)
    # A layer that is not sent has no level.
    return (found[1], float(found[2])) if found else (outcome.defense, 0.0)
