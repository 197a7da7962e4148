"""The hunt itself: seed after seed, family by family, for so many minutes; what was found is kept and goes on."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradleak.errors import InputError, unknown
from gradleak.hunting.broken import BROKEN
from gradleak.hunting.families import FAMILIES
from gradleak.hunting.outcomes import OUTCOMES, Answer

# Seeds are drawn below this.
SEEDS = 2**31 - 1


@dataclass
class Tally:
    """How often each outcome came of an attack with one assumption broken, and the answers that were wrong.

    `wrong`: the seed of each, the error and what the attack was run on.
    """

    family: str
    broken: str
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, float, str]] = field(default_factory=list)

    def add(self, seed: int, answers: Iterable[Answer]) -> None:
        """Count the answers of a seed."""
        for one in answers:
            self.outcomes[one.outcome] += 1
            if one.outcome == "wrong":
                self.wrong.append((seed, one.error, one.setting))

    @property
    def line(self) -> dict[str, Any]:
        """What was counted, as plain data."""
        return {"family": self.family, "broken": self.broken, "outcomes": dict(self.outcomes), "wrong": self.wrong}


def pairs(families: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return every attack with every assumption that can be broken for it."""
    for name in families:
        if name not in FAMILIES:
            raise unknown("family of attacks", name, tuple(FAMILIES))
    chosen = families or tuple(FAMILIES)
    return [(name, broken) for name in chosen for broken in BROKEN if broken not in FAMILIES[name].idle]


def block(family: str, broken: str, seed: int, seeds: int) -> Tally:
    """Hunt one attack with one assumption broken, for so many seeds from one on."""
    tally = Tally(family, broken)
    for own in range(seed, seed + seeds):
        tally.add(own, FAMILIES[family].hunted(own, broken))
    return tally


def hunt(
    *,
    minutes: float | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    families: Sequence[str] = (),
    kept: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Tally]:
    """Hunt every attack with every assumption for so many minutes, or for so many rounds of one seed each.

    `seed`: of the first round; drawn anew where not said. `kept`: a file to which each seed's outcomes are appended; a
    hunt that finds it goes on with its next round, and counts what is there.
    """
    if (minutes is None) == (rounds is None):
        raise InputError("a hunt takes a number of minutes or a number of rounds")
    if (minutes is not None and not minutes > 0) or (rounds is not None and rounds < 1):
        raise InputError(f"a hunt takes some time; got {minutes if rounds is None else rounds}")
    every = pairs(families)
    tallies = {pair: Tally(*pair) for pair in every}
    done, first = _read(kept, tallies)
    cut = kept is not None and kept.exists() and not kept.read_bytes().endswith(b"\n")
    first = first if first is not None else secrets.randbelow(SEEDS) if seed is None else seed
    if seed is not None and first != seed:
        raise InputError(f"{kept} was begun with the seed {first}, not with {seed}: give another file")
    say(f"seed {first}")
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for number in _rounds(rounds):
        for pair in every:
            if end is not None and time.monotonic() > end:
                return list(tallies.values())
            if (pair, number) in done:
                continue
            one = block(*pair, first + number, 1)
            _merge(tallies[pair], one.line)
            for own, error, setting in one.wrong:
                say(f"wrong: {pair[0]}, {BROKEN[pair[1]].words}: off by {error:.1e} at seed {own} ({setting})")
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                with kept.open("a", encoding="utf-8") as stream:
                    # A line of its own, whatever a hunt that was killed has left.
                    stream.write("\n" * cut + json.dumps({"first": first, "round": number} | one.line) + "\n")
                cut = False
    return list(tallies.values())


def _rounds(rounds: int | None) -> Iterator[int]:
    number = 0
    while rounds is None or number < rounds:
        yield number
        number += 1


def _merge(tally: Tally, line: Mapping[str, Any]) -> None:
    tally.outcomes.update(line["outcomes"])
    tally.wrong += [(int(seed), float(error), str(setting)) for seed, error, setting in line["wrong"]]


def _read(
    kept: Path | None, tallies: Mapping[tuple[str, str], Tally]
) -> tuple[set[tuple[tuple[str, str], int]], int | None]:
    """Count what a file holds of these attacks; return the pairs and rounds in it, and the seed that it began with."""
    done: set[tuple[tuple[str, str], int]] = set()
    first: int | None = None
    if kept is None or not kept.exists():
        return done, first
    for text in kept.read_text("utf-8").splitlines():
        try:
            line = json.loads(text)
            pair, number = (line["family"], line["broken"]), int(line["round"])
            first = int(line["first"])
        except (ValueError, KeyError, TypeError):
            continue  # a hunt that was killed may leave half a line: its round is hunted again
        if pair in tallies:
            _merge(tallies[pair], line)
            done.add((pair, number))
    return done, first


def table(tallies: Iterable[Tally]) -> str:
    """Return the counts as text, a line an attack and assumption."""
    lines = [("attack", "broken", *OUTCOMES)]
    lines += [
        (one.family, one.broken, *(str(one.outcomes[name]) for name in OUTCOMES))
        for one in tallies
        if one.outcomes.total()
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
