"""Write the scoreboard: all claims as rows that a browser filters, the failing ones by cause, and counts by paper."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from gradleak import claims
from gradleak.claims import Line, causes, listed, rounding
from gradleak.claims.listed import Fact, Listed
from gradleak.runs import golden, records
from gradleak.runs.golden import State
from gradleak.runs.records import Record
from gradleak.show import provenance
from gradleak.studies import Study
from gradleak.wording import counted

# The folder of files that lie beside the book's pages; `_config.yml` names it.
BESIDE = "beside"
HEADS = ("verdict", "place", "claim", "published", "measured", "holds if", "page")


def text(papers: Sequence[str], ordered: Sequence[Study], judged: Mapping[str, list[Line]]) -> str:
    """Return the generated part of the scoreboard in Markdown.

    Args:
        papers: The papers in the order of the book.
        ordered: The studies in this order.
        judged: The judged claims, by study.
    """
    lines = [line for study in ordered for line in judged[study.name]]
    parts = [
        scores(lines),
        _raw(_bars(papers, lines)),
        "## All claims",
        _raw(_all_claims(papers, ordered, judged)),
        "## What fails, and why",
        *_failing(lines),
        "## Verdicts by paper",
        claims.matrix(lines)._repr_markdown_(),
        claims.own_matrix(lines)._repr_markdown_(),
        "## What was changed",
        claims.changes_table(lines)._repr_markdown_(),
        "## Downloads",
        _downloads(),
    ]
    return "\n\n".join(parts) + "\n"


def scores(lines: Sequence[Line]) -> str:
    """Return the numbers of the papers' claims and of ours by verdict, as a list."""
    of_papers, of_ours = claims.of_papers(lines), claims.of_ours(lines)
    return (
        f"- **The papers' claims, {len(of_papers)}**: {claims.in_words(of_papers) or 'none'}.\n"
        f"- **Our own, {len(of_ours)}**: {claims.in_words(of_ours) or 'none'}.\n"
    )


def _raw(markup: str) -> str:
    return f"```{{raw}} html\n{markup}\n```"


def _bars(papers: Sequence[str], lines: Sequence[Line]) -> str:
    """Return a bar for each paper's claims and one for ours on it, divided by verdict, as HTML."""
    bars = []
    for paper in papers:
        own = [line for line in lines if line.claim.paper == paper]
        for name, group in ((paper, claims.of_papers(own)), ("our claims on it", claims.of_ours(own))):
            if group:
                words = html.escape(f"{name}: {claims.in_words(group)}")
                parts = "".join(
                    f'<span class="{claims.style(verdict)}" style="flex-grow:{count}" title="{count} {verdict}">'
                    f"{count}</span>"
                    for verdict, count in claims.counted(group)
                )
                bars.append(f'<p>{name}</p><div class="bar" role="img" aria-label="{words}">{parts}</div>')
    verdicts = [verdict for verdict, _ in claims.counted(lines)]
    legend = " ".join(f'<span class="badge {claims.style(verdict)}">{verdict}</span>' for verdict in verdicts)
    return f'<div class="verdict-bars">{"".join(bars)}<p class="legend">{legend}</p></div>'


def _all_claims(papers: Sequence[str], ordered: Sequence[Study], judged: Mapping[str, list[Line]]) -> str:
    """Return a table of claims for each page, folded; scoreboard.js makes a single table of them that can be filtered.

    Each row has the anchor of its claim.
    """
    folds = []
    for paper in papers:
        own = [study for study in ordered if study.paper == paper and judged[study.name]]
        folds += [f'<p class="paper">{paper}</p>'] if own else []
        for study in own:
            head = html.escape(f"{study.title}: {claims.tally(judged[study.name])}")
            rows = "\n".join(_row(study, line) for line in judged[study.name])
            top = "".join(f"<th>{name}</th>" for name in HEADS)
            table = f'<table class="gradleak-table all-claims"><thead><tr>{top}</tr></thead><tbody>\n{rows}\n'
            folds.append(f"<details><summary>{head}</summary>{table}</tbody></table></details>")
    script = '<script src="../_static/scoreboard.js" defer></script>'
    return f'<div id="claims" data-details="../claims/">{"".join(folds)}</div>\n{script}'


def _row(study: Study, line: Line) -> str:
    claim = line.claim
    data = {
        "whose": listed.whose(claim),
        "cause": causes.cause(line) or "",
        "changed": "|".join(dict.fromkeys(change.kind for change in claim.changed)),
    }
    attributes = "".join(f' data-{name}="{html.escape(value)}"' for name, value in data.items() if value)
    anchor = html.escape(f"claim-{claim.id}")
    cells = [
        f'<span class="badge {claims.style(line.verdict)}">{html.escape(line.verdict_text)}</span>',
        html.escape(f"{claim.paper}, {claim.place}"),
        f'<a href="#{anchor}">{html.escape(claim.statement)}</a>',
        html.escape("" if claim.published is None else claim.shown(claim.published)),
        html.escape(line.deciding.shown),
        html.escape(claim.rule_text),
        f'<a href="executed/{study.paper}/{study.name}.html">{study.name}</a>',
    ]
    return f'<tr id="{anchor}"{attributes}>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _failing(lines: Sequence[Line]) -> list[str]:
    """Return the numbers of failing claims by cause, and for each cause a folded table of those that are decided."""
    parts = [claims.causes_table(lines)._repr_markdown_()]
    for cause, group in causes.by_cause(lines).items():
        failing = [line for line in group if line.failing]
        if failing:
            table = claims.failing_table(failing, cause)._repr_markdown_()
            parts.append(f"::::{{dropdown}} {cause}: {counted(len(failing), 'claim')}\n{table}\n::::")
    return parts


def _downloads() -> str:
    """Return the links to the lists of claims, with the meaning of their columns."""
    rows = [f"`{name}`\n: {field.description}" for name, field in Listed.model_fields.items()]
    return (
        "All claims with their verdicts: {bookfile}`claims.csv <claims.csv>` and {bookfile}`claims.json "
        "<claims.json>`. Both have the same fields. The records are linked from each page's table of provenance and "
        "from {doc}`status`, and every table has a link that saves it as CSV.\n\n"
        "::::{dropdown} The columns of claims.csv and the fields of claims.json\n" + "\n\n".join(rows) + "\n::::"
    )


def files(ordered: Sequence[Study], judged: Mapping[str, list[Line]]) -> dict[str, bytes]:
    """Return the files that lie beside the book: lists of all claims, their details by page, and all records.

    Args:
        ordered: The studies in the order of the book.
        judged: The judged claims, by study.
    """
    made, entries = {}, []
    for study in ordered:
        record = records.recorded(study.name)
        state = golden.state(record) if record else None
        own = [(line, listed.listed(line, state)) for line in judged[study.name]]
        entries += [entry for _, entry in own]
        links = _links(study, record, state)
        details = {
            entry.id: listed.detail(
                line,
                entry,
                [*(Fact(head="Run again", text=text) for text in rounding.verdicts(entry.id)), *links],
                listed.rows_behind(line.claim, record) if record else None,
            )
            for line, entry in own
        }
        made[f"claims/{study.name}.js"] = listed.as_script(study.name, details).encode()
        if record:
            made[provenance.address(study.name)] = records.file_of(study.name).read_bytes()
    made["claims.json"] = listed.as_json(entries).encode()
    made["claims.csv"] = listed.as_csv(entries).encode()
    return made


def _links(study: Study, record: Record | None, state: State | None) -> list[Fact]:
    """Return the facts that lead from a claim to its page's record and to the page."""
    page = Fact(head="Page", text=study.title, link=f"executed/{study.paper}/{study.name}.html")
    if record is None:
        return [page]
    address = provenance.address(study.name)
    text = f"{address.rpartition('/')[2]} ({state})"
    return [Fact(head="Record", text=text, link=f"../{address}"), page]
