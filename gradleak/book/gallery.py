"""Make the gallery: a card for each page, with a small picture of its best figure."""

from __future__ import annotations

import hashlib
import inspect
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from gradleak.runs import records, sources
from gradleak.runs.records import Record
from gradleak.studies import Study

# The width of a picture (pixels), and the number of its colours: 46 pictures are to weigh less than 2.5 MB together.
WIDTH, COLOURS = 480, 96
# A figure is drawn this many times larger and then reduced, which keeps thin lines and small images legible.
FINER = 2


def text(ordered: list[Study], papers: list[str], fresh: Mapping[str, Record], folder: Path) -> str:
    """Draw the pictures that are new or changed, and return the grids of cards, one for each paper.

    Args:
        ordered: The studies in the order of the table of contents.
        papers: The papers in this order.
        fresh: The record of each page's run, which stands in where nothing is recorded.
        folder: The folder of the pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for paper in papers:
        own = [study for study in ordered if study.paper == paper]
        cards = [_card(study, _put_picture(study, fresh[study.name], folder)) for study in own]
        if cards:
            parts.append("\n".join([f"## {paper}\n", GRID, *cards, "::::"]))
    _remove_stale(folder, {study.name for study in ordered})
    return "\n\n".join(parts) + "\n"


GRID = "::::{grid} 1 2 3 3\n:gutter: 3\n:class-container: gradleak-gallery\n"


def _card(study: Study, picture: Path | None) -> str:
    lines = [f":::{{grid-item-card}} {study.title}"]
    if picture:
        lines += [f":img-top: generated/{picture.parent.name}/{picture.name}", f":img-alt: A figure of {study.name}"]
    lines += [f":link: executed/{study.paper}/{study.name}", ":link-type: doc", "", f"{study.paper}, {study.place}"]
    return "\n".join([*lines, ":::"])


def _put_picture(study: Study, fresh: Record, folder: Path) -> Path | None:
    """Draw a page's picture again if its code or the record that it shows has changed; return its file, if any."""
    record = records.recorded(study.name) or fresh
    code = sources.of_page(study, ("gradleak.book.gallery",)).digest
    digest = hashlib.sha256(f"{code} {record.digest()}".encode()).hexdigest()
    picture, key = folder / f"{study.name}.png", folder / f"{study.name}.key"
    if not key.is_file() or key.read_text() != digest:
        key.unlink(missing_ok=True)
        picture.unlink(missing_ok=True)
        if draw := best(study):
            picture.write_bytes(small(draw(record)))
        key.write_text(digest)
    return picture if picture.is_file() else None


def best(study: Study) -> Callable[[Record], Figure] | None:
    """Return the function that draws a page's best figure: that of its headline, or its first figure of a record."""
    if headline := getattr(study.module, "headline", None):

        def draw(record: Record) -> Figure:
            figure: Figure = headline(record).figure(record)
            return figure

        return draw
    return next((one for name, one in vars(study.module).items() if _draws(study, name, one)), None)


def _draws(study: Study, name: str, one: object) -> bool:
    """Return whether a name of a study's module is a function that draws a figure and needs only a record."""
    if not name.startswith("figure") or not inspect.isfunction(one) or one.__module__ != study.module.__name__:
        return False
    needed = [argument for argument in inspect.signature(one).parameters.values() if argument.default is argument.empty]
    return [argument.name for argument in needed] == ["record"]


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


def _remove_stale(folder: Path, kept: set[str]) -> None:
    for file in folder.iterdir():
        if file.stem not in kept:
            file.unlink()
