"""A Sphinx extension that says below a page's title what it regenerates, and leads searches for that to the page.

A search for "wang2024 Table 3" or "LLG Figure 2" finds the entry of that name in the book's index, which is the page's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

# Each page's paper and the places of it that the page regenerates; the book's build writes this file.
PLACES = "book/generated/places.json"
KINDS = {
    "Table": "Table", "Tables": "Table", "Figure": "Figure", "Figures": "Figure", "Section": "Section",
    "Sections": "Section", "Appendix": "Appendix", "Appendices": "Appendix", "Theorem": "Theorem",
}  # fmt: skip
# The name of the paper's attack, which readers search for in place of the paper's key.
ATTACKS = {"wainakh2021": "LLG", "yin2021": "GradInversion", "dang2021": "RLG", "posterior2023": "posterior"}
NUMBER = r"(?:\d[\d.]*\d|\d|[A-Z](?:\.\d+)?)\b"


def places(text: str) -> Iterator[str]:
    """Yield each place of a list such as "Section 4, Tables 2 and 3, Figures 6 to 8": "Section 4", "Table 2", ….

    Args:
        text: The list of places.
    """
    if text.startswith("Beyond"):
        return
    for kind, numbers in re.findall(rf"\b({'|'.join(KINDS)}) ((?:{NUMBER}|,|and|to|–| )+)", text):
        found = re.findall(rf"{NUMBER}|to|–", numbers)
        for index, number in enumerate(found):
            if number in ("to", "–"):
                ends = found[index - 1 : index + 2 : 2]
                yield from (f"{KINDS[kind]} {between}" for between in range(int(ends[0]) + 1, int(ends[1])))
            else:
                yield f"{KINDS[kind]} {number}"


class Regenerates(SphinxTransform):
    """Add the line and the entries of the index."""

    default_priority = 700

    def apply(self, **kwargs: Any) -> None:
        """Add them to a page of a paper."""
        file = Path(self.env.srcdir) / PLACES
        known = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        title = next(iter(self.document.findall(nodes.title)), None)
        if self.env.docname not in known or title is None:
            return
        paper, text = known[self.env.docname]
        beyond = text.removeprefix("Beyond ") if text.startswith("Beyond") else ""
        words = f"Goes beyond {paper}, {beyond}" if beyond else f"Regenerates {paper}: {text}"
        words = "Goes beyond the papers" if beyond == "the papers" else words
        line = nodes.paragraph("", f"{words}.", classes=["regenerates"])
        section = title.parent
        # Without an anchor the entry and the page's own text are one result of a search.
        names = dict.fromkeys((paper, ATTACKS.get(paper, paper)))
        entries = [("single", f"{name} {place}", "", "main", None) for place in places(text) for name in names]
        section.insert(section.index(title) + 1, [addnodes.index(entries=entries), line] if entries else [line])


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the transform."""
    app.add_transform(Regenerates)
    return {"parallel_read_safe": True}
