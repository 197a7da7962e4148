"""Run the search for wrong certificates, for a time or a number of seeds, with a file to continue it later."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradleak.errors import InputError, unknown
from gradleak.hunting.broken import BROKEN
from gradleak.hunting.families import FAMILIES
from gradleak.hunting.outcomes import OUTCOMES
from gradleak.storage import parsed

# The upper limit of randomly drawn seeds.
SEEDS = 2**31 - 1


@dataclass
class Tally:
    """The outcomes of one attack under one broken assumption.

    Attributes:
        family: The attack, a key of `FAMILIES`.
        broken: The broken assumption, a key of `BROKEN`.
        outcomes: The number of answers with each outcome.
        wrong: The seed, the error and the client of each wrong answer.
    """

    family: str
    broken: str
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, float, str]] = field(default_factory=list)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the counts of another tally, as plain data."""
        self.outcomes.update(line["outcomes"])
        self.wrong += [(int(seed), float(error), str(setting)) for seed, error, setting in line["wrong"]]

    @property
    def line(self) -> dict[str, Any]:
        """The counts as plain data."""
        return {"family": self.family, "broken": self.broken, "outcomes": dict(self.outcomes), "wrong": self.wrong}


def pairs(families: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return all pairs of an attack and an assumption that can be broken for this attack."""
    for name in families:
        if name not in FAMILIES:
            raise unknown("family of attacks", name, tuple(FAMILIES))
    names = families or tuple(FAMILIES)
    return [(name, broken) for name in names for broken in BROKEN if broken not in FAMILIES[name].idle]


def block(family: str, broken: str, seed: int, seeds: int) -> Tally:
    """Run one attack with one assumption broken on `seeds` consecutive seeds, starting with `seed`."""
    tally = Tally(family, broken)
    for trial_seed in range(seed, seed + seeds):
        answers = FAMILIES[family].hunted(trial_seed, broken)
        tally.outcomes.update(answer.outcome for answer in answers)
        tally.wrong += [(trial_seed, answer.error, answer.setting) for answer in answers if answer.outcome == "wrong"]
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
    """Test every attack under every broken assumption, for a time or for a number of rounds.

    Args:
        minutes: The time; give either `minutes` or `rounds`.
        rounds: The number of rounds, with one seed in each.
        seed: The seed of the first round; random by default.
        families: The attacks, keys of `FAMILIES`; all by default.
        kept: A file to which the outcomes of each seed are appended. If the file exists, its outcomes are counted and
            the search continues with the next round.
        say: A function that receives one line for the first seed and for each wrong answer.

    Returns:
        The outcomes of each attack and assumption.
    """
    if (minutes is None) == (rounds is None):
        raise InputError("give either a number of minutes or a number of rounds")
    if (minutes is not None and not minutes > 0) or (rounds is not None and rounds < 1):
        raise InputError(f"minutes and rounds must be positive; got {minutes if rounds is None else rounds}")
    all_pairs = pairs(families)
    tallies = {pair: Tally(*pair) for pair in all_pairs}
    done = _read(kept)
    for (pair, _), line in done.items():
        if pair in tallies:
            tallies[pair].add(line)
    drawn = secrets.randbelow(SEEDS) if seed is None else seed
    first_seed = next((int(line["first"]) for line in done.values()), drawn)
    if seed is not None and first_seed != seed:
        raise InputError(f"{kept} starts with the seed {first_seed}, not with {seed}: choose another file")
    say(f"seed {first_seed}")
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for number in itertools.count() if rounds is None else range(rounds):
        for pair in all_pairs:
            if end is not None and time.monotonic() > end:
                return list(tallies.values())
            if (pair, number) in done:
                continue
            tally = block(*pair, first_seed + number, 1)
            tallies[pair].add(tally.line)
            for wrong_seed, error, setting in tally.wrong:
                say(f"wrong: {pair[0]}, {BROKEN[pair[1]].words}: off by {error:.1e} at seed {wrong_seed} ({setting})")
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                with kept.open("a", encoding="utf-8") as stream:
                    # Start a new line, since an earlier process may have been killed in the middle of one.
                    stream.write("\n" + json.dumps({"first": first_seed, "round": number} | tally.line))
    return list(tallies.values())


def _read(kept: Path | None) -> dict[tuple[tuple[str, str], int], dict[str, Any]]:
    """Return the lines of a file, by pair of an attack and an assumption and by round."""
    lines = {}
    for text in kept.read_text("utf-8").splitlines() if kept is not None and kept.exists() else ():
        # A killed process may leave an incomplete line, whose round is then repeated.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            line = parsed(text)
            lines[(line["family"], line["broken"]), int(line["round"])] = line
    return lines


def table(tallies: Iterable[Tally]) -> str:
    """Return the counts as text, with one line for each attack and assumption."""
    lines = [("attack", "broken", *OUTCOMES)]
    lines += [
        (tally.family, tally.broken, *(str(tally.outcomes[name]) for name in OUTCOMES))
        for tally in tallies
        if tally.outcomes.total()
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
