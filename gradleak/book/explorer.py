"""Write the explorer, what was measured in which setting: plain tables, data for the browser, and a CSV file."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields

from gradleak.metrics import SCALE
from gradleak.runs import records
from gradleak.studies import Study
from gradleak.studies.shared.outcomes import FAMILIES, KINDS, LEVELS, SHARES, Outcome, shown

# The name of the data in the browser, and the axes by which a reader chooses, in the order in which a row states them.
CONSTANT = "GRADLEAK_OUTCOMES"
CHOICES = ("leak", "attack", "network", "training", "data", "batch", "client")
NOT_RUN = "not run"


def gather(ordered: Sequence[Study]) -> list[Outcome]:
    """Return the outcomes of all recorded studies that state them."""
    found: list[Outcome] = []
    for study in ordered:
        record = records.recorded(study.name)
        if record is not None and hasattr(study.module, "outcomes"):
            found += study.module.outcomes(record)
    return found


def text(ordered: Sequence[Study], outcomes: Sequence[Outcome]) -> str:
    """Return plain tables in Markdown: behind a fold for each attack, networks by families of defences."""
    places = {study.name: f"/book/executed/{study.paper}/{study.name}" for study in ordered}
    parts = [
        f"{len(outcomes):,} outcomes of {len({one.attack for one in outcomes})} attacks, from "
        f"{len({one.page for one in outcomes})} pages. {_levels()}"
    ]
    for kind in KINDS:
        own = [one for one in outcomes if one.leak == kind]
        families = [name for name in dict.fromkeys(FAMILIES.values()) if any(one.family == name for one in own)]
        parts += [f"## {kind.capitalize()}"] if own else []
        for attack in dict.fromkeys(one.attack for one in own):
            tried = [one for one in own if one.attack == attack]
            parts.append(f"::::{{dropdown}} {attack}: {_counted(tried)}\n{_table(tried, families, places)}\n::::")
    return "\n\n".join(parts) + "\n"


def _levels() -> str:
    """Return what the words for severities mean."""
    bounds = "; ".join(
        f"*{level}* from {100 * share:g} % on, or {word} images ({decibels:g} dB)"
        for level, share, (word, decibels) in zip(LEVELS[:0:-1], SHARES[::-1], reversed(SCALE.items()), strict=True)
    )
    return (
        "The severity levels, as a share of what a guess misses, or of images ({doc}`reading` explains the "
        f"words): {bounds}; else *{LEVELS[0]}*."
    )


def _counted(outcomes: Sequence[Outcome]) -> str:
    """Return how many outcomes have each severity, the most severe first."""
    counts = {level: sum(one.severity == level for one in outcomes) for level in range(len(LEVELS))}
    return ", ".join(f"{count} {LEVELS[level]}" for level, count in reversed(counts.items()) if count)


def _table(tried: Sequence[Outcome], families: Sequence[str], places: dict[str, str]) -> str:
    """Return a table of one attack: the most that leaks in each group of settings."""
    lines = [
        f"| network | {' | '.join('no defence' if name == 'none' else name for name in families)} |",
        f"| --- | {' | '.join(['---'] * len(families))} |",
    ]
    for network, training, client in dict.fromkeys((one.network, one.training, one.client) for one in tried):
        setting = f"{network}, {training}" + (f", {client}" if client != "float32" else "")
        cells = []
        for name in families:
            group = [
                one
                for one in tried
                if (one.network, one.training, one.client, one.family) == (network, training, client, name)
            ]
            cells.append(_cell(worst(group), places) if group else f"[{NOT_RUN}]{{.not-run}}")
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return ":::{div} explorer-table\n" + "\n".join(lines) + "\n:::"


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome with the largest severity, and of those the one with the largest value."""
    return max(outcomes, key=lambda one: (one.severity, one.value))


def _cell(outcome: Outcome, places: dict[str, str]) -> str:
    """Return an outcome's value, linked to its page, with its interval, the number of cases and the batch size."""
    interval = "" if math.isnan(outcome.low) else f"{_number(outcome.low)} to {_number(outcome.high)}; "
    value = f"{{doc}}`{_number(outcome.value)}{_unit(outcome)} <{places[outcome.page]}>`"
    return f"{value} ({interval}n = {outcome.count}; B = {outcome.batch})"


def _unit(outcome: Outcome) -> str:
    return "" if math.isinf(outcome.value) else f" {outcome.unit}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "lost" if value < 0 else "exact"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def script(ordered: Sequence[Study], outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a script that assigns them to one constant, with a list of the values of each axis."""
    used = {one.page for one in outcomes}
    pages = [study for study in ordered if study.name in used]
    lists: dict[str, list[str | int]] = {axis: _values(outcomes, axis) for axis in CHOICES}
    defenses = list(dict.fromkeys(one.defense for one in outcomes))
    families = [name for name in dict.fromkeys(FAMILIES.values()) if any(one.family == name for one in outcomes)]
    details = list(dict.fromkeys(one.detail for one in outcomes))
    measures = list(dict.fromkeys((one.measure, one.unit, one.cases) for one in outcomes))
    names = [study.name for study in pages]
    indices = {axis: {value: index for index, value in enumerate(values)} for axis, values in lists.items()}
    family_of = {defense: families.index(_family(outcomes, defense)) for defense in defenses}
    rows = [
        [
            *(indices[axis][getattr(one, axis)] for axis in CHOICES),
            family_of[one.defense],
            defenses.index(one.defense),
            details.index(one.detail),
            measures.index((one.measure, one.unit, one.cases)),
            names.index(one.page),
            *(_plain(value) for value in (one.value, one.low, one.high, one.chance)),
            one.count,
            one.severity,
        ]
        for one in outcomes
    ]
    content = {
        "levels": LEVELS,
        "lists": lists | {"family": ["no defence" if name == "none" else name for name in families]},
        "defenses": [shown(defense) for defense in defenses],
        "details": details,
        "measures": measures,
        "pages": [[study.title, f"executed/{study.paper}/{study.name}.html"] for study in pages],
        "rows": rows,
    }
    return f"const {CONSTANT} = {json.dumps(content, separators=(',', ':'))}\n"


def _family(outcomes: Sequence[Outcome], defense: str) -> str:
    return next(one.family for one in outcomes if one.defense == defense)


def _values(outcomes: Sequence[Outcome], axis: str) -> list[str | int]:
    """Return the values of an axis: numbers and names in order, kinds of leak and clients in the order of the pages."""
    found = {getattr(one, axis) for one in outcomes}
    if axis == "leak":
        return [kind for kind in KINDS if kind in found]
    return sorted(found, key=lambda value: value if isinstance(value, int) else str(value).lower())


def _plain(value: float) -> float | str | None:
    """Return a number with four digits as JSON has it: NaN is null, and an infinite number is a word."""
    if math.isnan(value):
        return None
    return _number(value) if math.isinf(value) else float(f"{value:.4g}")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return all outcomes as a CSV file, with the defence in words and the severity."""
    stream = io.StringIO()
    columns = [field.name for field in fields(Outcome)]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*columns, "defense_in_words", "leaks"])
    for one in outcomes:
        values = [f"{value:.5g}" if isinstance(value, float) else value for value in asdict(one).values()]
        writer.writerow([*values, shown(one.defense), LEVELS[one.severity]])
    return stream.getvalue()
