"""Write the explorer, what was measured in which setting: plain tables, a table of all outcomes, and a CSV file."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, fields

import pandas as pd

from gradleak.metrics import SCALE
from gradleak.runs import records
from gradleak.studies import Study
from gradleak.studies.shared.outcomes import FAMILIES, KINDS, LEVELS, SHARES, Outcome, shown

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


def rows(ordered: Sequence[Study], outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return the table of all outcomes, the most severe first; texts are HTML, and each row links to its page."""
    papers = {study.name: study.paper for study in ordered}
    severe = sorted(outcomes, key=lambda one: (-one.severity, -_bound(one.low), -_bound(one.value)))
    return pd.DataFrame([_row(one, papers[one.page]) for one in severe])


def _bound(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _row(one: Outcome, paper: str) -> dict[str, str | int]:
    interval = "too few cases for an interval"
    if not math.isnan(one.low):
        interval = f"95 %: {_number(one.low)} to {_number(one.high)}"
    guessing = f"; guessing: {_number(one.chance)} %" if one.chance > 0 else ""
    defense = "no defence" if one.family == "none" else shown(one.defense)
    texts = [defense, "" if one.client == "float32" else one.client, one.detail]
    return {
        "leaks": f'<span class="leaks leaks-{one.severity}">{LEVELS[one.severity]}</span>',
        "attack": html.escape(one.attack),
        "success": f"<strong>{_number(one.value)}{_unit(one)}</strong> {html.escape(one.measure)} "
        f"({interval}; n = {one.count:,} {html.escape(one.cases)}{guessing})",
        "network": html.escape(one.network),
        "training": one.training,
        "batch size": one.batch,
        "defence": html.escape("; ".join(filter(None, texts))),
        "data": html.escape(one.data),
        "measured on": f'<a href="executed/{paper}/{one.page}.html">{one.page}</a>',
        # The table is filtered by what follows, and does not show it.
        "what leaks": one.leak,
        "kind of defence": "no defence" if one.family == "none" else one.family,
        "client": one.client,
    }


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
