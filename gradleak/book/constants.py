"""Write the book's tables of constants: all attacks, the statuses of answers, and the scale for restored images."""

from __future__ import annotations

import pandas as pd

from gradleak import catalogue, studies
from gradleak.answers import CERTAIN, MEANINGS
from gradleak.metrics import SCALE
from gradleak.show.tables import Cell, Table

# The reason of each limit of the scale. `{}` is the root-mean-square error of a pixel at the limit, of 255 levels.
REASONS = {
    "recognisable": "The error of a pixel is about {} of 255 levels. A flat image in the private image's mean colour "
    "shows nothing, and its mean PSNR is lower (page gradinversion).",
    "indistinguishable": "The error is about {} levels, which can hardly be seen.",
    "exact": "The error is about {} levels: rounded to whole levels, most pixels are those of the private image.",
}


def attacks() -> str:
    """Return the tables of all attacks, each with a link to its page, and of the statuses of answers, in Markdown."""
    pages = {name: f"doc:executed/{studies.paper_of(name)}/{name}" for name in studies.names()}
    frame = pd.DataFrame(
        [
            (Cell(one.name, link=pages.get(one.page, "")), ", ".join(one.finds), one.needs, one.remedy)
            for one in catalogue.attacks()
        ],
        columns=["attack", "looks for", "needs", "weakened or stopped by"],
    )
    caption = "Every attack that gradleak.attacks() lists and gradleak audit runs."
    statuses = pd.DataFrame(
        [(word, meaning, "yes" if word in CERTAIN else "no") for word, meaning in MEANINGS.items()],
        columns=["status", "meaning", "guaranteed"],
    )
    words = "The statuses of answers, and which of them an attack guarantees."
    tables = (Table(frame, caption, "tab-attacks"), Table(statuses, words, "tab-words-of-answers"))
    return "\n".join(table._repr_markdown_() for table in tables) + "\n"


def scale() -> str:
    """Return the table of the scale for restored images in Markdown: three words, their limits, and the reasons."""
    rows = [(word, f"{least:.0f} dB", REASONS[word].format(f"{levels(least):.2g}")) for word, least in SCALE.items()]
    frame = pd.DataFrame(rows, columns=["word", "least PSNR", "reason"])
    return Table(frame, "Words for the quality of a restored image.", "tab-scale")._repr_markdown_() + "\n"


def levels(decibels: float) -> float:
    """Return the root-mean-square error of a pixel, of 255 levels, at a PSNR of `decibels`."""
    return 255 * 10 ** (-decibels / 20)
