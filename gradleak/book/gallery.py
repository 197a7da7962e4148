"""Make the gallery: a card for each page, with a small picture of its best figure."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from gradleak import studies
from gradleak.book import reports
from gradleak.runs import code, records, runner
from gradleak.runs.records import Record
from gradleak.studies import Study

# The width of a picture (pixels), and the number of its colours: all pictures together are to weigh less than 2.5 MB.
WIDTH, COLOURS = 480, 96
# A figure is drawn this many times larger and then reduced, which keeps thin lines and small images legible.
FINER = 2
GRID = "::::{grid} 1 2 3 3\n:gutter: 3\n:class-container: gradleak-gallery\n"


def text(
    ordered: list[Study], papers: list[str], fresh: Mapping[str, Record], folder: Path, jobs: int | None = None
) -> str:
    """Draw the pictures that are new or changed, and return the grids of cards, one for each paper.

    Args:
        ordered: The studies in the order of the table of contents.
        papers: The papers in this order.
        fresh: The record of each page's run, which stands in where nothing is recorded.
        folder: The folder of the pictures.
        jobs: The number of pictures that are drawn at once.
    """
    shown = {study.name: records.recorded(study.name) or fresh[study.name] for study in ordered}
    put_pictures(ordered, shown, folder, jobs)
    parts = []
    for paper in papers:
        own = [study for study in ordered if study.paper == paper]
        cards = [_card(study, shown[study.name], folder / f"{study.name}.png") for study in own]
        if cards:
            parts.append("\n".join([f"## {reports.chapter(paper)}\n", GRID, *cards, "::::"]))
    return "\n\n".join(parts) + "\n"


def put_pictures(ordered: list[Study], shown: Mapping[str, Record], folder: Path, jobs: int | None = None) -> None:
    """Draw the pictures of pages whose code or record has changed, and remove those of pages that are gone.

    Args:
        ordered: The studies.
        shown: The record that each page's picture shows.
        folder: The folder of the pictures; the file NAME.key there holds a hash of all that NAME.png depends on.
        jobs: The number of pictures that are drawn at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {study.name for study in ordered}
    for file in folder.iterdir():
        if file.stem not in names:
            file.unlink()
    keys = {study.name: _key(study, shown[study.name]) for study in ordered}
    changed = [name for name in keys if not _is(folder / f"{name}.key", keys[name])]
    for name, drawn in zip(changed, pictures([(name, shown[name]) for name in changed], jobs), strict=True):
        file = folder / f"{name}.png"
        if drawn:
            file.write_bytes(drawn)
        else:
            file.unlink(missing_ok=True)
        (folder / f"{name}.key").write_text(keys[name])


def _key(study: Study, record: Record) -> str:
    return hashlib.sha256(f"{code.of_page(study)} {record.digest()}".encode()).hexdigest()


def _is(file: Path, content: str) -> bool:
    return file.is_file() and file.read_text() == content


def pictures(pages: list[tuple[str, Record]], jobs: int | None = None) -> Iterator[bytes | None]:
    """Yield the small picture of each page, drawn in several processes if there are several pages."""
    jobs = runner.processes(jobs, len(pages), "cpu") if pages else 1
    if jobs == 1:
        yield from (picture(*page) for page in pages)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(picture, *zip(*pages, strict=True))


def picture(name: str, record: Record) -> bytes | None:
    """Return the small picture of a page's best figure, or None if the page has no figure."""
    draw = best(studies.load(name), record)
    return small(draw(record)) if draw else None


def best(study: Study, record: Record) -> Callable[[Record], Figure] | None:
    """Return the function that draws the figure of a page's headline; None if the page has no headline."""
    headline = getattr(study.module, "headline", None)
    return headline(record).figure if headline else None


def small(figure: Figure) -> bytes:
    """Return a figure as a small PNG with few colours, and close it."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=FINER * WIDTH / figure.get_figwidth())
    plt.close(figure)
    full = Image.open(stream).convert("RGB")
    reduced = full.resize((WIDTH, round(full.height * WIDTH / full.width)), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    reduced.quantize(COLOURS).save(stream, format="png", optimize=True)
    return stream.getvalue()


def _card(study: Study, record: Record, file: Path) -> str:
    lines = [f":::{{grid-item-card}} {study.title}"]
    if file.is_file():
        says = study.module.headline(record).sentence
        lines += [f":img-top: generated/{file.parent.name}/{file.name}", f":img-alt: {says}"]
    lines += [f":link: executed/{study.paper}/{study.name}", ":link-type: doc", "", f"{study.paper}, {study.place}"]
    return "\n".join([*lines, ":::"])
