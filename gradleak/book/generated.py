"""Write the tables and pictures that the book's text includes, from the claims, the records and the runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from gradleak import claims, paths, studies
from gradleak.book import constants, cover, explorer, gallery, landing, reports, scoreboard
from gradleak.book.pages import PageRun
from gradleak.claims import Line
from gradleak.runs import golden, records
from gradleak.runs.records import Record
from gradleak.show import figures, provenance
from gradleak.show.tables import MISSING, duration
from gradleak.studies import Study


def write(ordered: list[Study], papers: list[str], runs: dict[str, PageRun], jobs: int | None = None) -> None:
    """Write all generated parts into book/generated.

    Args:
        ordered: The studies in the order of the table of contents.
        papers: The papers in this order.
        runs: The executed pages, by study.
        jobs: The number of the gallery's pictures that are drawn at once.
    """
    folder = paths.book() / "generated"
    (folder / "static").mkdir(parents=True, exist_ok=True)  # files that the pages link to, which Sphinx copies
    fresh = {name: records.read(run.record) for name, run in runs.items()}
    judged = {study.name: claims.lines(fresh, study.name) for study in ordered}
    parts = {
        f"pages-{paper}.md": _pages([study for study in ordered if study.paper == paper], judged) for paper in papers
    }
    by_paper = {
        paper: [line for study in ordered if study.paper == paper for line in judged[study.name]] for paper in papers
    }
    parts |= {f"report-{paper}.md": reports.text(paper, lines) for paper, lines in by_paper.items()}
    parts["places.json"] = json.dumps(
        {f"book/executed/{study.paper}/{study.name}": (study.paper, study.place) for study in ordered}
    )
    outcomes = explorer.gather(ordered)
    parts["what-leaks.md"] = landing.text(ordered, outcomes)
    parts["explorer.md"] = explorer.text(outcomes)
    parts["outcomes.json"] = explorer.rows(outcomes).to_json(orient="records")
    parts["static/outcomes.csv"] = explorer.table(outcomes)
    lines = [line for own in judged.values() for line in own]
    parts["scores.md"] = scoreboard.scores(lines)
    parts["verdict-bars.md"] = scoreboard.bars(papers, lines)
    parts["claims.json"] = scoreboard.rows(ordered, judged).to_json(orient="records")
    parts["scoreboard.md"] = scoreboard.text(lines)
    parts["gallery.md"] = gallery.text(ordered, papers, fresh, folder / "gallery", jobs)
    parts["status.json"] = json.dumps(_status(ordered, runs, fresh))
    parts["attacks.md"] = constants.attacks()
    parts["scale.md"] = constants.scale()
    for name, text in parts.items():
        _put(folder / name, text.encode())
    _put_beside(folder / scoreboard.BESIDE, scoreboard.files(ordered, judged))
    for paper in (paper for paper, lines in by_paper.items() if reports.written(paper, lines)):
        _put_figure(folder / f"report-{paper}.png", reports.figure(paper))
    _put_figure(folder / "cover.png", cover.draw())
    _put_figure(folder / "sentence.png", _sentence())


def _sentence() -> Figure:
    """Draw how a recorded sentence is recovered, word by word."""
    record = records.recorded("sentences") if "sentences" in studies.names() else None
    if record is None:
        return figures.nothing("no sentence is recorded")
    figure: Figure = studies.load("sentences").module.figure_reading(record)
    return figure


def _put(file: Path, content: bytes) -> None:
    # An unchanged file keeps its modification time, so that Sphinx does not render it again.
    if not file.is_file() or file.read_bytes() != content:
        file.write_bytes(content)


def _put_beside(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files that lie beside the book's pages, and remove those that do no more."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _put(folder / name, content)
    for file in folder.rglob("*.*"):
        if file.is_file() and file.relative_to(folder).as_posix() not in files:
            file.unlink()


def _put_figure(file: Path, figure: Figure) -> None:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    plt.close(figure)
    _put(file, stream.getvalue())


def _link(study: Study, text: str) -> str:
    return f"{{doc}}`{text} <executed/{study.paper}/{study.name}>`"


def _pages(own: list[Study], judged: dict[str, list[Line]]) -> str:
    if not own:
        return "*No page of this part is written yet.*\n"
    rows = [f"| {_link(study, study.title)} | {study.place} | {claims.tally(judged[study.name])} |" for study in own]
    return "\n".join(["| page | regenerates | claims |", "| --- | --- | --- |", *rows]) + "\n"


def _status(ordered: list[Study], runs: dict[str, PageRun], fresh: dict[str, Record]) -> list[dict[str, str]]:
    """Return the state of every record, when and where its page ran, and the addresses of both."""
    rows = []
    for study in ordered:
        record, run = records.recorded(study.name), fresh[study.name]
        rows.append(
            {
                "page": study.name,
                "record": golden.state(record) if record else MISSING,
                "file": "JSON" if record else MISSING,
                "recorded on": provenance.machines(record) if record else MISSING,
                "date": " to ".join(record.days) if record else MISSING,
                "trials": record.size.partition(" trial")[0] if record else MISSING,
                "time of all trials": duration(record.seconds) if record else MISSING,
                "quick run": f"{runs[study.name].seconds:.0f} s",
                "quick run: when and where": f"{run.days[-1]}, {run.machines[0].device}, {run.trials[0].commit}",
                "at": f"doc:executed/{study.paper}/{study.name}",
                "record at": f"bookfile:{provenance.address(study.name)}" if record else "",
            }
        )
    return rows
