"""Make the cards of a paper's pages: the best figure of each page, small, with the page's place and verdicts."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from PIL import Image

from gradleak import claims
from gradleak.claims import Line
from gradleak.show.summary import Summary
from gradleak.storage import parsed
from gradleak.studies import Study

# The width of a picture (pixels), and the number of its colours: all pictures together are to weigh less than 2.5 MB.
WIDTH, COLOURS = 480, 96
GRID = "::::{grid} 1 2 3 3\n:gutter: 3\n:class-container: gradleak-gallery\n"
NOTHING = "*No page of this part is written yet.*\n"


def text(
    own: Sequence[Study], judged: Mapping[str, list[Line]], found: Mapping[str, Summary], pictured: Collection[str]
) -> str:
    """Return a grid with a card for each page, in Markdown.

    Args:
        own: The pages.
        judged: The judged claims, by page.
        found: The summaries of the pages, by page.
        pictured: The names of the pages that have a picture.
    """
    cards = []
    for study in own:
        finding = found[study.name].sentence if study.name in found else study.title
        picture = [f":img-top: generated/gallery/{study.name}.png", f":img-alt: {finding}"]
        link = [f":link: executed/{study.paper}/{study.name}", ":link-type: doc"]
        body = ["", study.place, "", claims.tally(judged[study.name]) or "no claims", ":::"]
        cards += [f":::{{grid-item-card}} {study.title}", *(picture if study.name in pictured else ()), *link, *body]
    return "\n".join([GRID, *cards, "::::\n"]) if cards else NOTHING


def best(notebook: Path) -> bytes | None:
    """Return the best figure of an executed page as a PNG: the first one, below its box. None if it has no figure."""
    for cell in parsed(notebook.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if png := output.get("data", {}).get("image/png"):
                return base64.b64decode(png)
    return None


def small(png: bytes) -> bytes:
    """Return a picture of the gallery's width, with few colours."""
    full = Image.open(io.BytesIO(png)).convert("RGB")
    reduced = full.resize((WIDTH, round(full.height * WIDTH / full.width)), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    reduced.quantize(COLOURS).save(stream, format="png", optimize=True)
    return stream.getvalue()
