"""Find the mildest recorded defence that stops an attack, and what still leaks behind this defence."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gradleak.show.summary import Leaks
from gradleak.studies.shared.outcomes import RESCALING, Outcome, defense_in_words

# Defences whose names in tables are too short for a reader of the first page.
WORDS = {
    "gaussian": "noise of standard deviation {:g}",
    "gaussian-variance": "noise of variance {:g}",
    "prune": "dropping the smallest {:.0%} of all entries",
    "grad-drop": "dropping the smallest {:.0%} of each tensor",
    "prune-tensors": "dropping whole tensors (share {:.0%})",
    "sign": "sending signs only",
    "quantize": "rounding to {:.0f} bits",
    "release": "clipping to {:.0%} of the norm, and noise of {:g} of that",
}
# A defence that another page measures is named only if it was measured on at least this many cases.
LEAST = 10
NOTE = (
    "*Stopped by*: the mildest recorded defence behind which this attack recovers little or nothing (less than a tenth "
    "of what a guess misses, or images that are not recognisable), whether the attacker knows the defence or not; the "
    "mildest of two kinds of defences, if there are several. The mildest defence changes the gradient’s direction "
    f"least; defences that were measured on at least {LEAST} cases come first. In brackets: the number of "
    "cases *n*, and the batch size, network and page, where these are not the row’s. Clipping only "
    "rescales the gradient, so it is never named. An attack that was not tried may recover more."
)

# What an attack was measured on, whatever the client does to its gradient.
_setting = attrgetter("page", "leak", "attack", "network", "batch")


@dataclass(frozen=True)
class Stop:
    """A defence that stops an attack.

    Attributes:
        most: The outcome of this attack in which the most leaks behind the defence.
        networks: The networks on which the defence was measured.
        others: Outcomes of other kinds of leak, in which the same attack succeeds behind the same defence.
    """

    most: Outcome
    networks: tuple[str, ...]
    others: tuple[Outcome, ...] = ()

    @property
    def text(self) -> str:
        """The defence, and what still leaks, in words."""
        left = " and ".join(
            f"{_short(one.value)} {one.unit} ({one.measure}{f'; a guess: {_short(one.chance)} %' * (one.chance > 0)})"
            for one in (self.most, *self.others)
            if one.value > one.chance
        )
        return words(self.most) + f", which leaves {left}" * bool(left)

    def setting(self, leaks: Leaks, page: str) -> str:
        """Return the number of cases in Markdown, with what differs from the row of a page."""
        one = self.most
        parts = [
            f"n = {one.count}",
            "" if one.batch == leaks.batch else f"batches of {one.batch}" if one.batch > 1 else "single samples",
            "" if leaks.network else self.networks[0] if len(self.networks) == 1 else f"{len(self.networks)} networks",
            "" if one.page == page else f"{{page}}`{one.page}`",
        ]
        return ", ".join(filter(None, parts))


def tried(leaks: Leaks, page: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return what the attack of a row reached behind defences: on each page, for the batch size nearest to the row's.

    Other pages count only if, like the row, they attack single samples or batches. A setting in which the attack fails
    without a defence, too, says nothing about defences.
    """
    bare: dict[Any, int] = {}
    for one in outcomes:
        if _family(one) == "none":
            bare[_setting(one)] = max(one.severity, bare.get(_setting(one), 0))
    own = [
        one
        for one in outcomes
        if (one.leak, one.attack) == (leaks.kind, leaks.attack)
        and leaks.network in ("", one.network)
        and _family(one) not in ("none", RESCALING)
        and (one.page == page or (one.batch > 1) == (leaks.batch > 1))
        and bare.get(_setting(one), 1) > 0
    ]
    # The last size with a page's name is the nearest.
    far_first = sorted(own, key=lambda one: -abs(math.log(one.batch / leaks.batch)))
    near = {one.page: one.batch for one in far_first}
    return [one for one in own if one.batch == near[one.page]]


def measured(leaks: Leaks, page: str, outcomes: Sequence[Outcome]) -> tuple[list[Stop], list[Stop]]:
    """Return the defences that stop the attack of a row, and those behind which it succeeds.

    Args:
        leaks: The row.
        page: The row's page.
        outcomes: The outcomes of all pages.

    Returns:
        The mildest defence of each family that stops the attack, the mildest families first; and the
        defences behind which the attack succeeds.
    """
    behind = tried(leaks, page, outcomes)
    successes = [one for one in behind if one.severity > 0]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in behind:
        if one.count >= LEAST or one.page == page:
            groups.setdefault((one.defense, one.client), []).append(one)
    found: dict[str, Stop] = {}
    failed = []
    for sent, group in groups.items():
        most = max(group, key=lambda one: one.value)
        stop = Stop(most, tuple(dict.fromkeys(one.network for one in group)), _others(most, outcomes))
        family = _family(most)
        if any(
            (other.defense, other.client) == sent or (_family(other) == family and _as_strong(other, most))
            for other in successes
        ):
            failed.append(stop)
        elif family not in found or _mildness(most) > _mildness(found[family].most):
            found[family] = stop
    return sorted(found.values(), key=lambda stop: _mildness(stop.most), reverse=True), failed


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
    return tuple({one.leak: one for one in sorted(same, key=lambda one: one.value)}.values())


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
    """Whether a defence is known to be at least as strong as another of its family."""
    if not math.isnan(_cosine(one)) and not math.isnan(_cosine(other)):
        return one.cosine <= other.cosine + 1e-9
    if not math.isnan(one.bits) and not math.isnan(other.bits):
        return one.bits <= other.bits
    (name, level), (other_name, other_level) = _level(one), _level(other)
    return name == other_name and level >= other_level


def _level(outcome: Outcome) -> tuple[str, float]:
    found = re.fullmatch(r"([\w-]+)/(?:.*/)?([\d.e+-]+)", outcome.defense)
    # A layer that is not sent has no level.
    return (found[1], float(found[2])) if found else (outcome.defense, 0.0)
