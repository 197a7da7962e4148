"""Write the tables and pictures that the book's text includes, from the claims, the records and the runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from gradleak import claims, paths
from gradleak.book import constants, cover, explorer, gallery, landing, reports, scoreboard
from gradleak.book.pages import PageRun
from gradleak.runs import golden, records
from gradleak.show import figures, provenance
from gradleak.show.summary import Summary
from gradleak.show.tables import MISSING, duration
from gradleak.studies import Study

# The page whose best figure stands on the book's first page.
SENTENCES = "sentences"


def write(ordered: list[Study], papers: list[str], runs: Mapping[str, PageRun]) -> None:
    """Write all generated parts into book/generated.

    Args:
        ordered: The studies in the order of the table of contents.
        papers: The papers in this order.
        runs: The executed pages, by study.
    """
    fresh = {name: records.read(run.record) for name, run in runs.items()}
    judged = {study.name: claims.lines(fresh, study.name) for study in ordered}
    best = {name: png for name, run in runs.items() if (png := gallery.best(run.notebook))}
    lines, found = [line for own in judged.values() for line in own], summaries(ordered)
    outcomes = [outcome for summary in found.values() for outcome in summary.outcomes]
    places = {f"book/executed/{study.paper}/{study.name}": (study.paper, study.place) for study in ordered}
    texts = {
        "places.json": json.dumps(places),
        "what-leaks.md": landing.text(found),
        "explorer.md": explorer.text(outcomes),
        "outcomes.json": explorer.rows(outcomes).to_json(orient="records"),
        "static/outcomes.csv": explorer.table(outcomes),
        "scores.md": scoreboard.scores(lines),
        "verdict-bars.md": scoreboard.bars(papers, lines),
        "claims.json": scoreboard.rows(ordered, judged).to_json(orient="records"),
        "scoreboard.md": scoreboard.text(lines),
        "status.json": json.dumps([_status(study, runs[study.name]) for study in ordered]),
        "attacks.md": constants.attacks(),
        "scale.md": constants.scale(),
    }
    pictures = {f"gallery/{name}.png": gallery.small(png) for name, png in best.items()}
    pictures |= {"cover.png": _png(cover.draw())}
    pictures["sentence.png"] = best.get(SENTENCES) or _png(figures.nothing("no sentence is recorded"))
    for paper in papers:
        own = [study for study in ordered if study.paper == paper]
        about = [line for study in own for line in judged[study.name]]
        texts[f"pages-{paper}.md"] = gallery.text(own, judged, found, best)
        texts[f"report-{paper}.md"] = reports.text(paper, about)
        if report := reports.written(paper, about):
            pictures[f"report-{paper}.png"] = best[report.page]
    beside = scoreboard.files(ordered, judged)
    put(
        paths.book() / "generated",
        {name: text.encode() for name, text in texts.items()}
        | pictures
        | {f"{scoreboard.BESIDE}/{name}": content for name, content in beside.items()},
    )


def summaries(ordered: Iterable[Study]) -> dict[str, Summary]:
    """Return what the recorded pages found, in this order."""
    recorded = [(study, record) for study in ordered if (record := records.recorded(study.name))]
    return {study.name: summary for study, record in recorded if (summary := study.summary(record))}


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write these files into a folder, by their paths in it, and remove all others.

    An unchanged file keeps its modification time, so that Sphinx does not render it again.
    """
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_bytes() != content:
            file.write_bytes(content)
    for file in folder.rglob("*"):
        if file.is_file() and file.relative_to(folder).as_posix() not in files:
            file.unlink()


def _png(figure: Figure) -> bytes:
    picture = figures.png(figure)
    plt.close(figure)
    return picture


def _status(study: Study, page: PageRun) -> dict[str, str]:
    """Return the state of a page's record, how long the page ran, and the addresses of both."""
    record = records.recorded(study.name)
    return {
        "page": study.name,
        "record": golden.state(record) if record else MISSING,
        "file": "JSON" if record else MISSING,
        "date": " to ".join(record.days) if record else MISSING,
        "trials": record.size.partition(" trial")[0] if record else MISSING,
        "time of all trials": duration(record.seconds) if record else MISSING,
        "quick run": f"{page.seconds:.0f} s",
        "at": f"doc:executed/{study.paper}/{study.name}",
        "record at": f"bookfile:{provenance.address(study.name)}" if record else "",
    }
