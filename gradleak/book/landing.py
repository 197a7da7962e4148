"""Write the table of everything that leaks: a row for each page with an attack, with numbers from its record."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradleak.book.stopping import NOTE, RULE, stop
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show.leaks import Leaks
from gradleak.show.tables import MISSING
from gradleak.studies import Study
from gradleak.studies.shared.outcomes import KINDS, Outcome

NOTHING = "none recorded"
EXACTNESS = (
    "*How exactly*: numbers in dB are the peak signal-to-noise ratio (PSNR) of the images; from about 40 dB on, an "
    "image can hardly be distinguished from the original. The L1 error of a label is the sum of the absolute errors "
    "of its entries."
)


def text(ordered: list[Study], outcomes: Sequence[Outcome]) -> str:
    """Return the table in Markdown, each row with a link to its page, in the order of the studies.

    Args:
        ordered: The studies.
        outcomes: The outcomes of all pages, from which the defences that stop attacks are found.
    """
    shown = [(study, records.recorded(study.name)) for study in ordered if hasattr(study.module, "leaks")]
    stops = stopped(outcomes)
    lines = [
        "| what leaks | from | how exactly | time of one attack | stopped by |",
        "| --- | --- | --- | --- | --- |",
        *(_line(study, record, stops) for study, record in shown),
    ]
    head = ":::{table} What leaks: medians and shares over the recorded runs.\n:name: tab-what-leaks\n"
    notes = f"{EXACTNESS} {NOTE} {_times([record for _, record in shown if record])}"
    fold = f':::{{dropdown}} How the column "stopped by" is decided\n{RULE}\n:::\n'
    table = f"{head}:class: gradleak-table leaks\n\n" + "\n".join(lines) + "\n:::\n"
    return f"{table}\n{{.gradleak-notes}}\n{notes}\n\n{fold}"


def stopped(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return for each kind of leak the defence that stops it, with its cosine and its page, in Markdown."""
    found = {kind: stop(kind, outcomes) for kind in KINDS}
    return {
        kind: f"{one.family} (cosine {one.cosine:.2f}, {{page}}`{one.page}`)" if one else NOTHING
        for kind, one in found.items()
    }


def _times(shown: Sequence[Record]) -> str:
    """Return a note on what the times are, and on which machines they were measured; "" if nothing is shown."""
    if not shown:
        return ""
    machines = sorted({machine.name for record in shown for machine in record.machines})
    return (
        "*Time*: the median over the cases in *how exactly*. It is the CPU time of one attack or, where marked, the "
        f"elapsed time, as recorded on: {'; '.join(machines)} ({{doc}}`status`)."
    )


def _line(study: Study, record: Record | None, stops: dict[str, str]) -> str:
    name = f"{{doc}}`{{}} <executed/{study.paper}/{study.name}>`"
    if record is None:
        return f"| {name.replace('{}', study.title)} | {' | '.join([MISSING] * 4)} |"
    leaks: Leaks = study.module.leaks(record)
    time = leaks.time + " on a GPU" * record.accelerated
    what = name.replace("{}", leaks.what)
    # No line break between a number and its exponent.
    exactness = re.sub(r"(\de)-(\d)", "\\1\N{NON-BREAKING HYPHEN}\\2", leaks.exactness)
    return f"| {what} | {leaks.source} | {exactness} | {time} | {stops[leaks.kind]} |"
