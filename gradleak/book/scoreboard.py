"""Write the scoreboard's parts: rows and pages of all claims, counts by verdict, and the causes of failures."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Template

from gradleak import claims
from gradleak.book import lacking
from gradleak.claims import Line, listed, shown
from gradleak.runs import golden, records
from gradleak.show import provenance
from gradleak.studies import Study

# The folder of files that lie beside the book's pages; `_config.yml` names it.
BESIDE = "beside"


def text(lines: Sequence[Line]) -> str:
    """Return the sections that follow the table of all claims, in Markdown."""
    columns = [f"`{name}`\n: {about}" for name, about in listed.ABOUT.items()]
    return (
        f"## What fails, and why\n\n{claims.causes_table(lines)._repr_markdown_()}\n\n## What is not decided yet\n\n"
        "Some claims need a dataset or a network that is not at hand here, others time. Provide what the table names. "
        "The first command below checks the files, the others decide the claims.\n\n"
        f"{lacking.text(lines)}\n\n## Downloads\n\n"
        "All claims with their verdicts: {bookfile}`claims.csv <claims.csv>` and {bookfile}`claims.json "
        "<claims.json>`. Both have the same fields. The records are linked from each page's table of provenance and "
        "from {doc}`architecture`, and every table has a link that saves it as CSV.\n\n"
        "::::{dropdown} The columns of claims.csv and the fields of claims.json\n" + "\n\n".join(columns) + "\n::::\n"
    )


def scores(lines: Sequence[Line]) -> str:
    """Return the numbers of the papers' claims and of ours by verdict, as a list."""
    papers, ours = claims.of_papers(lines), claims.of_ours(lines)
    decided = sum(line.verdict in claims.DECIDED for line in papers)
    ended = sum(line.verdict == "reproduced" and line.claim.open_ended for line in papers)
    return (
        f"- **The papers' claims, {len(papers)}, {decided} decided**: {claims.in_words(papers) or 'none'}. The "
        f"interval of {ended} reproduced ones reaches the end of the scale, so that one of its limits cannot fail.\n"
        f"- **Our own, {len(ours)}**: {claims.in_words(ours) or 'none'}.\n"
    )


def bars(papers: Sequence[str], lines: Sequence[Line]) -> str:
    """Return a bar for each paper's claims and one for our own, divided by verdict, as raw HTML in Markdown."""
    own = {paper: [line for line in lines if line.claim.paper == paper] for paper in papers}
    drawn = (shown.bars(paper, "our own", about) for paper, about in own.items())
    return f"```{{raw}} html\n{''.join(drawn)}\n```\n"


def rows(ordered: Sequence[Study], judged: Mapping[str, list[Line]]) -> pd.DataFrame:
    """Return the table of all claims; texts are HTML, and each claim links to its page."""
    return pd.DataFrame([_row(study, line) for study in ordered for line in judged[study.name]])


def _row(study: Study, line: Line) -> dict[str, str]:
    claim = line.claim
    return {
        "verdict": f'<span class="badge {claims.style(line.verdict)}">{html.escape(line.verdict_text)}</span>',
        "paper": claim.paper,
        "place": html.escape(f"{claim.paper}, {claim.place}"),
        "claim": f'<a href="../claims/{claim.id}.html">{html.escape(claim.statement)}</a>',
        "published": html.escape("" if claim.published is None else claim.formatted(claim.published)),
        "measured": html.escape(line.deciding.with_spread),
        "holds if": html.escape(claim.rule_text),
        "page": f'<a href="executed/{study.paper}/{study.name}.html">{study.name}</a>',
        # The table is filtered by what follows, and does not show it.
        "decided": line.verdict,
        "whose": listed.whose(claim),
        "cause": line.cause or "",
        "changed": ", ".join(dict.fromkeys(change.kind for change in claim.changed)) or "nothing",
        "id": claim.id,
    }


def files(ordered: Sequence[Study], judged: Mapping[str, list[Line]]) -> dict[str, bytes]:
    """Return the files that lie beside the book: lists of all claims, a page for each claim, and all records.

    Args:
        ordered: The studies.
        judged: The judged claims, by study.
    """
    made, entries = {}, []
    page = Template(Path(__file__).with_name("claim.html").read_text("utf-8"), autoescape=True, trim_blocks=True)
    for study in ordered:
        record = records.recorded(study.name)
        state = golden.state(record) if record else None
        address = provenance.address(study.name)
        links = [("Record", f"{address.rpartition('/')[2]} ({state})", f"../{address}")] if record else []
        links.append(("Page", study.title, f"../book/executed/{study.paper}/{study.name}.html"))
        for line in judged[study.name]:
            entries.append(listed.listed(line, state))
            rows, total = listed.rows_behind(line.claim, record) if record else (None, 0)
            text = page.render(claim=line.claim, facts=listed.facts(line), links=links, rows=rows, total=total)
            made[f"claims/{line.claim.id}.html"] = text.encode()
        if record:
            made[address] = records.file_of(study.name).read_bytes()
    made["claims.json"] = listed.as_json(entries).encode()
    made["claims.csv"] = listed.as_csv(entries).encode()
    return made
