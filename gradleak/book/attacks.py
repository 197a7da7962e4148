"""Write the tables of all attacks and of their statuses for the book's page on the API."""

from __future__ import annotations

import pandas as pd

from gradleak import catalogue, studies
from gradleak.answers import CERTAIN, MEANINGS
from gradleak.show.tables import Table


def text() -> str:
    """Return both tables in Markdown."""
    return f"{_attacks()}\n{_words()}\n"


def _attacks() -> str:
    known = set(studies.names())
    lines = ["| attack | looks for | needs | weakened or stopped by |", "| --- | --- | --- | --- |"]
    for attack in catalogue.attacks():
        place = f"executed/{studies.paper_of(attack.page)}/{attack.page}" if attack.page in known else ""
        name = f"{{doc}}`{attack.name} <{place}>`" if place else attack.name
        lines.append(f"| {name} | {', '.join(attack.finds)} | {attack.needs} | {attack.remedy} |")
    head = ":::{table} Every attack that `gradleak.attacks()` lists and `gradleak audit` runs.\n:name: tab-attacks\n"
    return f"{head}:class: gradleak-table\n\n" + "\n".join(lines) + "\n:::\n"


def _words() -> str:
    rows = [
        {"status": word, "meaning": meaning, "guaranteed": "yes" if word in CERTAIN else "no"}
        for word, meaning in MEANINGS.items()
    ]
    caption = "The statuses of answers, and which of them an attack guarantees."
    return Table(pd.DataFrame(rows), caption=caption, name="tab-words-of-answers")._repr_markdown_()
