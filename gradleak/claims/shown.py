"""Judged claims as a reader sees them: the papers' tables cell by cell, lists, and the scoreboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradleak.claims.judging import Line
from gradleak.claims.model import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gradleak.book.tables import Table

# Every verdict's colour: in words, and as it is drawn.
COLOURS = {
    "better": ("dark green", "#1d5c33"),
    "reproduced": ("green", "#4b9560"),
    "not reproduced": ("red", "#c8553d"),
    "trend only": ("yellow", "#e0a458"),
    "not run": ("grey", "#b9bec4"),
}
# A remark on so many rows or more is said without naming them.
FEW = 3
UNEXPLAINED = "not explained yet"


@dataclass(frozen=True)
class Tables:
    """Several tables, shown one below the other."""

    tables: tuple[Table, ...]

    def _repr_markdown_(self) -> str:
        return "\n\n".join(table._repr_markdown_() for table in self.tables)

    def _repr_html_(self) -> str:
        return "\n".join(table._repr_html_() for table in self.tables)

    def __repr__(self) -> str:
        return "\n\n".join(repr(table) for table in self.tables)


def tables(judged: Sequence[Line], caption: str, name: str) -> Tables:
    """Return the papers' tables cell by cell, one each, and a list of all other claims."""
    titles = dict.fromkeys(line.claim.table for line in judged if line.claim.table)
    cells = [_cells([line for line in judged if line.claim.table == title], name, n) for n, title in enumerate(titles)]
    others = [line for line in judged if not line.claim.table]
    return Tables((*cells, _list(others, caption, name)) if others else tuple(cells))


def tally(judged: Iterable[Line]) -> str:
    """Return the verdicts in words, the most frequent first: "5 reproduced, 1 better"."""
    counts = Counter(line.verdict_text for line in judged)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def _cells(judged: list[Line], name: str, number: int) -> Table:
    """Return a published table with what was measured, the paper's cell behind it in brackets."""
    import pandas as pd

    from gradleak.book.tables import Table

    columns = {line.claim.column: line.claim.unit for line in judged}
    rows = dict.fromkeys((line.claim.group, line.claim.row) for line in judged)
    found = {(line.claim.group, line.claim.row, line.claim.column): line for line in judged}
    grouped = any(group for group, _ in rows)
    texts, marks, last = [], [], ""
    for group, row in rows:
        own = [found.get((group, row, column)) for column in columns]
        # A group's name stands at its first row.
        head = ([group if group != last else ""] if grouped else []) + [row]
        texts.append(head + [_cell(line) for line in own])
        marks.append([""] * len(head) + [line.deciding.verdict if line else "" for line in own])
        last = group
    heads = [f"{column}, {unit}" if unit else column for column, unit in columns.items()]
    frame = pd.DataFrame(texts, columns=([" "] if grouped else []) + [""] + heads)
    run = [line.fresh for line in judged if line.fresh.value is not None]
    kept = f" This run measures {len(run)} of them; {sum(bool(j.agrees) for j in run)} agree." if run else ""
    given = {line.deciding.verdict for line in judged}
    legend = ", ".join(f"{COLOURS[verdict][0]} {verdict}" for verdict in COLOURS if verdict in given)
    title = f"{judged[0].claim.table}: {len(judged)} claims, {tally(judged)}."
    caption = f"{title} Measured, and in brackets what the paper says; {legend}.{kept}"
    return Table(
        frame, caption, f"{name}-{number + 1}", f"{_rules(judged)}{_remarks(judged)}", kind="cells", marks=marks
    )


def _rules(judged: Iterable[Line]) -> str:
    """Return how far cells may be from the published ones, by column."""
    texts: dict[str, dict[str, None]] = {}
    for line in judged:
        if line.claim.rule.within:
            texts.setdefault(line.claim.column, {})[line.claim.rule_text] = None
    holds = "; ".join(f"{column} {', '.join(own)}" for column, own in texts.items())
    return f"Holds if {holds}. " if holds else ""


def _cell(line: Line | None) -> str:
    if line is None:
        return ""
    published = line.claim.number(line.claim.published) if line.claim.published is not None else "–"
    return f"{line.claim.number(line.deciding.value)} ({published})"


def _list(judged: list[Line], caption: str, name: str) -> Table:
    import pandas as pd

    from gradleak.book.tables import Table

    frame = pd.DataFrame(
        {
            "verdict": [line.verdict_text for line in judged],
            "place": [line.claim.place for line in judged],
            "claim": [line.claim.statement for line in judged],
            "paper": [_published(line.claim) for line in judged],
            "holds if": [line.claim.rule_text for line in judged],
            "recorded": [line.recorded.shown for line in judged],
            "this run": [line.fresh.shown for line in judged],
        }
    )
    return Table(frame, caption, name, _remarks(judged), badges="verdict", kind="claims")


def _remarks(judged: Iterable[Line]) -> str:
    """Return what is said beside claims, each remark once, with what it is said of where that is few."""
    claims = [line.claim for line in judged]
    said = dict.fromkeys(text for claim in claims for text in claim.remarks)
    return " ".join(_said_of(text, claims) + text for text in said)


def _said_of(text: str, claims: Sequence[Claim]) -> str:
    """Return the places or rows that a remark is said of; where others share these, the columns, cells or claims.

    Of all of them, or of many, it is said without naming them.
    """
    if all(text in claim.remarks for claim in claims):
        return ""
    levels = [list(zip(names, claims, strict=True)) for names in zip(*map(_names, claims), strict=True)]
    of = [dict.fromkeys(name for name, claim in level if text in claim.remarks) for level in levels]
    apart = (
        own
        for own, level in zip(of, levels, strict=True)
        if len(own) < FEW and all(text in claim.remarks for name, claim in level if name in own)
    )
    chosen = next(apart, of[0])
    return f"{'; '.join(chosen)}: " if len(chosen) < FEW else ""


def _names(claim: Claim) -> list[str]:
    """Return what a claim can be called beside others of its list or table, from the coarsest name to its own."""
    if not claim.table:
        return [claim.place, claim.statement]
    row = [claim.group, claim.row] if claim.group else [claim.row]
    return [row[0], ", ".join(row), claim.column, ", ".join([*row, claim.column])]


def _published(claim: Claim) -> str:
    if claim.ours:
        return "ours"
    return "in words" if claim.published is None else claim.shown(claim.published)


def _counts(judged: Iterable[Line]) -> dict[str, Counter[str]]:
    """Return how often each verdict was given, by paper, the paper with the most claims first."""
    counts: dict[str, Counter[str]] = {}
    for line in judged:
        counts.setdefault(line.claim.paper, Counter())[line.deciding.verdict] += 1
    return dict(sorted(counts.items(), key=lambda item: -item[1].total()))


def matrix(judged: Iterable[Line]) -> Table:
    """Return how many claims of each paper got which verdict."""
    import pandas as pd

    from gradleak.book.tables import Table

    counts = _counts(judged)
    rows = [(paper, own) for paper, own in counts.items()] + [("all", sum(counts.values(), Counter()))]
    frame = pd.DataFrame(
        [
            {"paper": paper} | {verdict: own[verdict] for verdict in COLOURS} | {"claims": own.total()}
            for paper, own in rows
        ]
    )
    return Table(frame, "Claims by paper and verdict.", "tab-scoreboard-matrix", kind="matrix")


def figure_matrix(judged: Iterable[Line]) -> Figure:
    """Draw the verdicts on each paper's claims as a bar of shares, with their counts."""
    import pandas as pd
    import seaborn as sns

    from gradleak.book import figures

    colours = {verdict: colour for verdict, (_, colour) in COLOURS.items()}
    counts = _counts(judged)
    frame = pd.DataFrame(
        {"paper": paper, "verdict": verdict, "share": count / own.total()}
        for paper, own in counts.items()
        for verdict, count in own.items()
    )
    figure, axes = figures.panels(1, 1, height=0.9 + 0.42 * len(counts))
    axis = axes[0, 0]
    sns.histplot(
        frame, y="paper", hue="verdict", hue_order=list(COLOURS)[::-1], weights="share", multiple="stack",
        discrete=True, shrink=0.7, palette=colours, alpha=1, legend=False, ax=axis,
    )  # fmt: skip
    for place, own in enumerate(counts.values()):
        left = 0.0
        for verdict in COLOURS:
            share = own[verdict] / own.total()
            if share > 0.03:
                dark = verdict in ("reproduced", "better", "not reproduced")
                text = str(own[verdict])
                axis.text(left + share / 2, place, text, ha="center", va="center", color="white" if dark else "#23272d")
            left += share
    for verdict in COLOURS:
        axis.barh(0, 0, color=colours[verdict], label=verdict)
    axis.set(xlim=(0, 1), xlabel="share of the paper's claims", ylabel="")
    axis.grid(visible=False)
    figures.legend_below(figure, len(COLOURS))
    return figure


def failing_table(judged: Iterable[Line]) -> Table:
    """Return the claims that fail at the scale they need, by page, each with its reason."""
    import pandas as pd

    from gradleak.book.tables import Table

    bad = sorted((line for line in judged if line.failing), key=lambda line: (line.claim.paper, line.claim.study))
    pages = [line.claim.study for line in bad]
    reasons = [line.claim.note or UNEXPLAINED for line in bad]
    # A reason is the one above only where that is another line of the same list or table of a page.
    said = [(line.claim.study, line.claim.table, reason) for line, reason in zip(bad, reasons, strict=True)]
    frame = pd.DataFrame(
        {
            "page": [page if not n or page != pages[n - 1] else "" for n, page in enumerate(pages)],
            "claim": [f"{line.claim.place}: {line.claim.statement}" for line in bad],
            "paper": [_published(line.claim) for line in bad],
            "holds if": [line.claim.rule_text for line in bad],
            "measured": [line.deciding.claim.shown(line.deciding.value) for line in bad],
            "reason": ["as above" if n and own == said[n - 1] else own[-1] for n, own in enumerate(said)],
        }
    )
    open_ones = reasons.count(UNEXPLAINED)
    told = f"; {open_ones} of them are not explained." if open_ones else ", each with its reason."
    caption = f"The {len(bad)} claims that fail at the scale they need, by page{told}"
    return Table(frame, caption, "tab-scoreboard-failing", kind="failing")
