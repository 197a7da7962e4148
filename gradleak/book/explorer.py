"""Write the explorer, what was measured in which setting: an overview, a table of all outcomes, and a CSV file."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from gradleak.metrics import SCALE
from gradleak.runs import records
from gradleak.show.tables import Table, badge
from gradleak.studies import Study, paper_of
from gradleak.studies.shared.outcomes import FAMILIES, KINDS, LEVELS, SHARES, Outcome, defense_in_words

NOT_RUN = "not run"


def gather(ordered: Sequence[Study]) -> list[Outcome]:
    """Return the outcomes of all recorded studies that state them."""
    found: list[Outcome] = []
    for study in ordered:
        record = records.recorded(study.name)
        if record is not None and hasattr(study.module, "outcomes"):
            found += study.module.outcomes(record)
    return found


def text(outcomes: Sequence[Outcome]) -> str:
    """Return what the words for severities mean and the overview of all outcomes, in Markdown."""
    bounds = "; ".join(
        f"*{level}* from {100 * share:g} % on, or {word} images ({decibels:g} dB)"
        for level, share, (word, decibels) in zip(LEVELS[:0:-1], SHARES[::-1], reversed(SCALE.items()), strict=True)
    )
    return (
        f"{len(outcomes):,} outcomes of {len({one.attack for one in outcomes})} attacks, from "
        f"{len({one.page for one in outcomes})} pages. The severity levels, as a share of what a guess misses, or of "
        f"images ({{doc}}`reading` explains the words): {bounds}; else *{LEVELS[0]}*.\n\n"
        f"{overview(outcomes)._repr_markdown_()}"
    )


def overview(outcomes: Sequence[Outcome]) -> Table:
    """Return the most severe outcome of each attack behind each family of defences, linked to its page."""
    families = [name for name in dict.fromkeys(FAMILIES.values()) if any(one.family == name for one in outcomes)]
    # The last outcome with a key is the most severe, and of equally severe ones that with the largest value.
    worst = {
        (one.leak, one.attack, one.family): one for one in sorted(outcomes, key=lambda one: (one.severity, one.value))
    }
    attacks = sorted(dict.fromkeys((one.leak, one.attack) for one in outcomes), key=lambda pair: KINDS.index(pair[0]))
    rows, marks, links = [], [], []
    for leak, attack in attacks:
        cells = [worst.get((leak, attack, family)) for family in families]
        rows.append([leak, attack, *(f"{_number(one.value)}{_unit(one)}" if one else NOT_RUN for one in cells)])
        marks.append(["", "", *(LEVELS[one.severity] if one else NOT_RUN for one in cells)])
        links.append(["", "", *(f"doc:executed/{paper_of(one.page)}/{one.page}" if one else "" for one in cells)])
    heads = ["no defence" if name == "none" else name for name in families]
    caption = (
        "The most severe outcome of each attack behind each family of defences, over all networks, batch sizes and "
        "clients; click a value to see its page."
    )
    frame = pd.DataFrame(rows, columns=["what leaks", "attack", *heads])
    return Table(frame, caption, "tab-explorer-overview", kind="cells", marks=marks, links=links)


def _unit(outcome: Outcome) -> str:
    return "" if math.isinf(outcome.value) else f" {outcome.unit}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "lost" if value < 0 else "exact"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def rows(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return the table of all outcomes, the most severe first; texts are HTML, and each row links to its page."""
    severe = sorted(outcomes, key=lambda one: (-one.severity, -_bound(one.low), -_bound(one.value)))
    return pd.DataFrame(map(_row, severe))


def _bound(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _row(one: Outcome) -> dict[str, str | int]:
    interval = "too few cases for an interval"
    if not math.isnan(one.low):
        interval = f"95 %: {_number(one.low)} to {_number(one.high)}"
    guessing = f"; guessing: {_number(one.chance)} %" if one.chance > 0 else ""
    defense = "no defence" if one.family == "none" else defense_in_words(one.defense)
    texts = [defense, "" if one.client == "float32" else one.client, one.detail]
    return {
        "leaks": f'<span class="{badge(LEVELS[one.severity])}">{LEVELS[one.severity]}</span>',
        "attack": html.escape(one.attack),
        "success": f"<strong>{_number(one.value)}{_unit(one)}</strong> {html.escape(one.measure)} "
        f"({interval}; n = {one.count:,} {html.escape(one.cases)}{guessing})",
        "network": html.escape(one.network),
        "training": one.training,
        "batch size": one.batch,
        "defence": html.escape("; ".join(filter(None, texts))),
        "data": html.escape(one.data),
        "measured on": f'<a href="executed/{paper_of(one.page)}/{one.page}.html">{one.page}</a>',
        # The table is filtered by what follows, and does not show it.
        "what leaks": one.leak,
        "kind of defence": "no defence" if one.family == "none" else one.family,
        "client": one.client,
    }


def table(outcomes: Sequence[Outcome]) -> str:
    """Return all outcomes as a CSV file, with the defence in words and the severity."""
    rows = [
        asdict(one) | {"defense_in_words": defense_in_words(one.defense), "leaks": LEVELS[one.severity]}
        for one in outcomes
    ]
    return pd.DataFrame(rows).to_csv(index=False, float_format="%.5g", na_rep="nan")
