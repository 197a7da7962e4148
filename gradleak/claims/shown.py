"""Show judged claims: as the papers' tables cell by cell, as lists, and by verdict and cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from gradleak.claims.judging import Line, Verdict
from gradleak.claims.model import CAUSES, Claim
from gradleak.show.tables import Cell, Table

# The colour of every verdict in words, the best verdict first. Verdicts that decide nothing are pale.
COLOURS: dict[Verdict, str] = {
    "better": "dark green",
    "reproduced": "green",
    "holds": "green",
    "agrees, as we read it": "light green",
    "not reproduced": "red",
    "disagrees, as we read it": "light red",
    "fails": "red",
    "no evidence": "pale brown",
    "stand-in: agrees": "pale blue",
    "stand-in: disagrees": "pale violet",
    "trend: agrees": "pale yellow",
    "trend: disagrees": "pale orange",
    "not run": "grey",
}
# The mark of a cell that was measured with a changed method.
CHANGED = "†"
# A list of claims with more rows than this is folded: the box at the top of the page has the summary. A paper's table
# is visible unless it is very long, so that a reader who looks for a published number finds it. Where a page has many
# tables of claims, those after the first rows are folded.
MOST_ROWS, MOST_TABLE_ROWS, MOST_VISIBLE_ROWS = 8, 48, 50
# A remark on this many rows or more does not list the rows.
FEW = 3


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


def tables(judged: Sequence[Line], about: str, name: str) -> Tables:
    """Return the tables of judged claims: the paper's tables, a list of the paper's other claims, then ours likewise.

    Args:
        judged: The claims with their judgements.
        about: A text in the captions that names the study or page.
        name: The start of the tables' labels.
    """
    parts: list[Table] = []
    visible = 0
    ours = "Our own claims{}: predictions written before the run, findings after trials or after it."
    for caption, label, lines in (
        ("The paper's claims{}, and what was measured.", name, of_papers(judged)),
        (ours, f"{name}-ours", of_ours(judged)),
    ):
        groups: dict[str, list[Line]] = {}
        for line in sorted(lines, key=lambda line: not line.claim.table):
            groups.setdefault(line.claim.table, []).append(line)
        for number, (title, group) in enumerate(groups.items(), 1):
            made = _cells(group, f"{label}-{number}") if title else _list(group, caption.format(about), label)
            rows = len(made.frame)
            most = MOST_TABLE_ROWS if title else MOST_ROWS
            folds = rows > most or (visible > 0 and visible + rows > MOST_VISIBLE_ROWS)
            visible += 0 if folds else rows
            head = title or caption.partition("{")[0]
            fold = f"{head}: {len(group)} claims, by verdict: {in_words(group)}" if folds else ""
            parts.append(replace(made, fold=fold))
    return Tables(tuple(parts))


def of_papers(judged: Iterable[Line]) -> list[Line]:
    """Select the papers' claims."""
    return [line for line in judged if not line.claim.ours]


def of_ours(judged: Iterable[Line]) -> list[Line]:
    """Select our own claims."""
    return [line for line in judged if line.claim.ours]


def tally(judged: Sequence[Line]) -> str:
    """Return the numbers of the papers' claims and of ours by verdict: "1 better, 5 reproduced; ours: 2 holds"."""
    parts = (("", in_words(of_papers(judged))), ("ours: ", in_words(of_ours(judged))))
    return "; ".join(head + words for head, words in parts if words)


def in_words(judged: Iterable[Line]) -> str:
    """Return the number of claims with each verdict as a text, the best verdict first: "1 better, 5 reproduced"."""
    return ", ".join(f"{count} {verdict}" for verdict, count in counted(judged))


def counted(judged: Iterable[Line]) -> list[tuple[Verdict, int]]:
    """Return the verdicts that occur, the best first, each with the number of its claims."""
    counts = Counter(line.verdict for line in judged)
    return [(verdict, counts[verdict]) for verdict in COLOURS if counts[verdict]]


def style(verdict: Verdict) -> str:
    """Return the class with which the book's style sheet colours a verdict."""
    return f"badge-{verdict.replace(':', '').replace(',', '').replace(' ', '-')}"


def bars(of_paper: str, ours: str, judged: Sequence[Line]) -> str:
    """Return a bar in HTML for the papers' claims and one for ours, with these titles, if there are any."""
    groups = ((of_paper, of_papers(judged)), (ours, of_ours(judged)))
    return "".join(_bar(title, lines) for title, lines in groups if lines)


def _bar(title: str, judged: Iterable[Line]) -> str:
    """Return a bar in HTML that shows the numbers of claims by verdict, with its legend."""
    counts = [(style(verdict), count, f"{count} {verdict}") for verdict, count in counted(judged)]
    parts = "".join(f'<span class="{name}" style="flex:{count}" title="{text}"></span>' for name, count, text in counts)
    legend = "".join(f'<li><i class="{name}"></i>{text}</li>' for name, _, text in counts)
    return (
        f'<div class="gradleak-verdicts"><span>{title}</span><div class="gradleak-bar" role="presentation">'
        f"{parts}</div><ul>{legend}</ul></div>"
    )


def _cells(judged: list[Line], name: str) -> Table:
    """Return a published table with the measured values, each with the paper's value in brackets."""
    by_cell = {line.claim.shown_names: line for line in judged}
    columns = {column: line.claim.unit for (_, _, column), line in by_cell.items()}
    rows = dict.fromkeys((group, row) for group, row, _ in by_cell)
    grouped = any(group for group, _ in rows)
    cells, last = list[list[str | Cell]](), ""
    for group, row in rows:
        # The name of a group is shown only in its first row.
        head = ([group if group != last else ""] if grouped else []) + [row]
        cells.append([*head, *(_cell(by_cell.get((group, row, column))) for column in columns)])
        last = group
    heads = [f"{column}, {unit}" if unit else column for column, unit in columns.items()]
    frame = pd.DataFrame(cells, columns=([" "] if grouped else []) + [""] + heads)
    verdicts = {line.verdict for line in judged}
    legend = ", ".join(f"{COLOURS[verdict]} {verdict}" for verdict in COLOURS if verdict in verdicts)
    title = f"{judged[0].claim.table}: {len(judged)} claims, {tally(judged)}."
    changed = dict.fromkeys(line.claim.protocol for line in judged if line.claim.protocol)
    protocol_text = f" {CHANGED}: with a changed method ({', '.join(changed)})." if changed else ""
    caption = f"{title} Measured, and in brackets what the paper says; {legend}.{protocol_text}"
    notes = [_rules(judged), *_remarks(judged)]
    return Table(frame, caption, name, notes, kind="cells")


def _rules(judged: Iterable[Line]) -> str:
    """Return a text with the conditions under which the cells of each column hold, the most frequent one first."""
    columns: dict[str, Counter[str]] = {}
    for line in judged:
        columns.setdefault(line.claim.shown_names[2], Counter())[_condition(line.claim)] += 1
    parts = (f"{column} {' or '.join(text for text, _ in texts.most_common())}" for column, texts in columns.items())
    return f"Holds if (a distance ± is from the paper's value; a cell leads to its own condition): {'; '.join(parts)}."


def _condition(claim: Claim) -> str:
    rule = claim.rule
    if claim.published is not None and claim.published in (rule.at_least, rule.at_most):
        return "≥ the paper's value" if rule.at_least is not None else "≤ the paper's value"
    return claim.rule_text


def _cell(line: Line | None) -> str | Cell:
    if line is None:
        return ""
    mark = CHANGED if line.claim.protocol else ""
    text = f"{line.claim.number(line.deciding.value)}{mark} ({line.claim.number(line.claim.published)})"
    return Cell(text, line.verdict, f"claim:{line.claim.id}")


def row(line: Line) -> dict[str, str]:
    """Return a judged claim as texts: its words and its rule, with the published, recorded and new values."""
    return {
        "place": line.claim.place,
        "claim": line.claim.statement,
        "paper": published(line.claim),
        "holds if": line.claim.rule_text,
        "recorded": line.recorded.with_spread,
        "this run": line.fresh.with_spread,
    }


def _list(judged: list[Line], caption: str, name: str) -> Table:
    verdicts = [Cell(line.verdict_text, line.verdict, f"claim:{line.claim.id}") for line in judged]
    frame = pd.DataFrame([{"verdict": cell} | row(line) for cell, line in zip(verdicts, judged, strict=True)])
    return Table(frame, caption, name, _remarks(judged), kind="claims")


def _remarks(judged: Iterable[Line]) -> list[str]:
    """Return all remarks on claims, each once, with the names of the rows or claims it is about if these are few."""
    claims = [line.claim for line in judged]
    remarks = dict.fromkeys(text for claim in claims for text in claim.remarks)
    return [_about(text, claims) + text for text in remarks]


def _about(text: str, claims: Sequence[Claim]) -> str:
    """Return the names of the rows or claims that a remark is about, followed by a colon; "" if it is about all claims.

    If there are too many names, return the number of claims.
    """
    own = [claim for claim in claims if text in claim.remarks]
    if len(own) == len(claims):
        return ""
    for level in (0, 1):
        names = dict.fromkeys(_names(claim)[level] for claim in own)
        exclusive = all(text in claim.remarks for claim in claims if _names(claim)[level] in names)
        if exclusive and len(names) < FEW:
            return f"{'; '.join(names)}: "
    return f"{len(own)} of these {len(claims)} claims: "


def _names(claim: Claim) -> tuple[str, str]:
    """Return the name of a claim's place or row, and its own name within its list or table."""
    if not claim.table:
        return claim.place, claim.statement
    group, row, column = claim.shown_names
    row = f"{group}, {row}" if group else row
    return row, f"{row}, {column}"


def published(claim: Claim) -> str:
    """Return the published value of a claim as text, or whether it is a prediction or a finding of ours."""
    if claim.ours:
        return claim.ours
    return "in words" if claim.published is None else claim.formatted(claim.published)


def causes_table(judged: Iterable[Line]) -> Table:
    """Return a table of the number of claims that fail or disagree, by cause."""
    disagreeing = [line for line in judged if line.disagrees]
    theirs, own = (
        Counter(line.cause or "not explained yet" for line in group)
        for group in (of_papers(disagreeing), of_ours(disagreeing))
    )
    rows = [(cause, CAUSES[cause], theirs[cause], own[cause]) for cause in CAUSES if theirs[cause] or own[cause]]
    frame = pd.DataFrame(rows, columns=["cause", "meaning", "the papers' claims", "ours"])
    caption = f"The {len(disagreeing)} claims that fail or disagree, by cause."
    notes = (
        "A stand-in or a trend decides nothing, and its cause follows from the verdict. All other causes are stated "
        "with the claims."
    )
    return Table(frame, caption, "tab-scoreboard-causes", notes, kind="causes")
