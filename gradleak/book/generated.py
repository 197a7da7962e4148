"""Write the tables and pictures that the book's text includes, from the claims, the records and the runs."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from gradleak import claims, paths, studies
from gradleak.book import architecture, attacks, checked, cover, gallery, landing, performance, reports
from gradleak.book.pages import PageRun
from gradleak.claims import Line
from gradleak.runs import records, sources, standing, staying
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.tables import duration
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
    folder.mkdir(parents=True, exist_ok=True)
    fresh = {name: records.read(run.record) for name, run in runs.items()}
    judged = {study.name: claims.lines(fresh, study.name) for study in ordered}
    parts = {
        f"pages-{paper}.md": _pages([study for study in ordered if study.paper == paper], judged) for paper in papers
    }
    by_paper = {
        paper: [line for study in ordered if study.paper == paper for line in judged[study.name]] for paper in papers
    }
    parts |= {f"report-{paper}.md": reports.text(paper, lines) for paper, lines in by_paper.items()}
    parts["report-card.md"] = reports.card(by_paper)
    parts["what-leaks.md"] = landing.text(ordered)
    parts["scores.md"] = _scores([line for lines in judged.values() for line in lines])
    parts["scoreboard.md"] = _scoreboard(papers, ordered, judged)
    parts["gallery.md"] = gallery.text(ordered, papers, fresh, folder / "gallery", jobs)
    parts["status.md"] = _status(ordered, runs, fresh)
    parts["confirmations.md"] = checked.text(ordered)
    parts["on-cpu.md"] = staying.text()
    parts["attacks.md"] = attacks.text()
    parts["performance.md"] = performance.write_page(folder)
    parts["clusters.md"] = performance.write_clusters(folder)
    for name, text in parts.items():
        _put(folder / name, text.encode())
    _put_figure(folder / "scoreboard.png", claims.figure_matrix([line for lines in judged.values() for line in lines]))
    _put_figure(folder / "architecture.png", architecture.draw())
    for paper in papers:
        _put_figure(folder / f"report-{paper}.png", reports.figure(paper))
    _put_cover(folder)
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


def _put_figure(file: Path, figure: Figure) -> None:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    plt.close(figure)
    _put(file, stream.getvalue())


def _put_cover(folder: Path) -> None:
    """Draw the book's first picture again if its code or a record that it shows has changed."""
    picture, key = folder / "cover.png", folder / "cover.key"
    present = [study for study in cover.SHOWN if study in studies.names()]
    files = [file for study in present for file in records.files_of(study) if file.is_file()]
    recorded = [file.read_bytes() for file in files]
    digest = hashlib.sha256(
        b"".join([sources.of_modules("gradleak.book.cover").digest.encode(), *recorded])
    ).hexdigest()
    if not picture.is_file() or not key.is_file() or key.read_text() != digest:
        cover.make_cover(picture)
        key.write_text(digest)


def _link(study: Study, text: str) -> str:
    return f"{{doc}}`{text} <executed/{study.paper}/{study.name}>`"


def _pages(own: list[Study], judged: dict[str, list[Line]]) -> str:
    if not own:
        return "*No page of this part is written yet.*\n"
    rows = [f"| {_link(study, study.title)} | {study.place} | {claims.tally(judged[study.name])} |" for study in own]
    return "\n".join(["| page | regenerates | claims |", "| --- | --- | --- |", *rows]) + "\n"


def _scores(lines: list[Line]) -> str:
    """Return the numbers of the papers' claims and of ours by verdict, as a list for the first page."""
    of_papers, of_ours = claims.of_papers(lines), claims.of_ours(lines)
    return (
        f"- **The papers' claims, {len(of_papers)}**: {claims.in_words(of_papers) or 'none'}.\n"
        f"- **Our own, {len(of_ours)}**: {claims.in_words(of_ours) or 'none'}.\n"
    )


def _scoreboard(papers: list[str], ordered: list[Study], judged: dict[str, list[Line]]) -> str:
    """Return the scoreboard: the numbers of verdicts, the changed and the failing claims, and all claims by page."""
    lines = [line for study in ordered for line in judged[study.name]]
    parts = [
        _scores(lines),
        claims.matrix(lines)._repr_markdown_(),
        claims.own_matrix(lines)._repr_markdown_(),
        SCOREBOARD_FIGURE,
        "## What was changed",
        claims.changes_table(lines)._repr_markdown_(),
        "## What fails",
    ]
    for whose, group in (("the papers'", claims.of_papers(lines)), ("our own", claims.of_ours(lines))):
        failing = claims.failing_table(group, whose)
        parts.append(failing._repr_markdown_() if len(failing.frame) else f"*None of {whose} claims fails.*")
    for paper in papers:
        paper_studies = [study for study in ordered if study.paper == paper]
        parts += [f"## {paper}"] if paper_studies else []
        for study in paper_studies:
            tables = claims.scoreboard(study, judged[study.name])._repr_markdown_()
            head = f"::::{{dropdown}} {study.title}: {claims.tally(judged[study.name])}"
            parts.append(f"{head}\n{_link(study, 'The page')}\n\n{tables}\n::::")
    return "\n\n".join(parts) + "\n"


SCOREBOARD_FIGURE = """```{figure} generated/scoreboard.png
:name: fig-scoreboard
:alt: A bar a paper, divided by verdict

The verdicts, as shares of each paper's claims, and of ours beside them; the numbers are counts.
```"""


def _status(ordered: list[Study], runs: dict[str, PageRun], fresh: dict[str, Record]) -> str:
    lines = [
        "| page | record | made on | date | trials | their time | this run | on |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for study in ordered:
        record, provenance = records.recorded(study.name), fresh[study.name].provenance
        record_cells = _told(record) if record else ["not recorded", "–", "–", "–", "–"]
        run_cells = [
            f"{runs[study.name].seconds:.0f} s",
            f"{provenance.date}, {provenance.device}, {provenance.commit}",
        ]
        lines.append(f"| {_link(study, study.name)} | {' | '.join([*record_cells, *run_cells])} |")
        if record and (other := records.beside(record)):
            lines.append(f"| (also recorded, not shown) | {' | '.join([*_told(other), '–', '–'])} |")
    head = ":::{table} Every page: the state of its record, and when and where the page ran.\n:name: tab-status\n"
    return head + ":class: gradleak-table status\n\n" + "\n".join(lines) + "\n:::\n"


def _told(record: Record) -> list[str]:
    """Return the cells of the status page for a record: state, device, days, number of trials and their run time."""
    seconds = duration(sum(trial.seconds for trial in record.trials))
    device = record.provenance.device.partition(",")[0]
    return [_badge(standing.state(record)), device, " to ".join(records.span(record)), f"{len(record.trials)}", seconds]


def _badge(state: str) -> str:
    return f"[{state}]{{.badge .badge-{state}}}"
