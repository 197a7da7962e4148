"""Write the table of everything that leaks: a row for each page with an attack, with numbers from its record."""

from __future__ import annotations

from gradleak.runs import records
from gradleak.show.leaks import Leaks
from gradleak.show.tables import MISSING
from gradleak.studies import Study

NOTES = (
    "*Stopped by*: of the defences recorded on the page, the one that changes the gradient's direction least (in "
    "brackets its cosine with the true one) against which every attacker tried there gets less than a tenth of the "
    "labels beyond guessing, or pictures below 20 dB. An attacker who was not tried may get more."
)


def text(ordered: list[Study]) -> str:
    """Return the table in Markdown, each row with a link to its page, in the order of the studies."""
    lines = ["| what leaks | from | how exactly | in | stopped by |", "| --- | --- | --- | --- | --- |"]
    lines += [_line(study) for study in ordered if hasattr(study.module, "leaks")]
    caption = ":::{table} What leaks: medians and shares over the recorded runs.\n:name: tab-what-leaks\n"
    return f"{caption}:class: gradleak-table leaks\n\n" + "\n".join(lines) + f"\n:::\n\n{{.gradleak-notes}}\n{NOTES}\n"


def _line(study: Study) -> str:
    record = records.recorded(study.name)
    if record is None:
        leaks, time = Leaks(study.title, MISSING, MISSING), MISSING
    else:
        leaks = study.module.leaks(record)
        time = leaks.time + " on a GPU" * record.accelerated
    name = f"{{doc}}`{leaks.what} <executed/{study.paper}/{study.name}>`"
    return f"| {name} | {leaks.source} | {leaks.exactness} | {time} | {leaks.stopped} |"
