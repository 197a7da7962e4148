"""Write the table of everything that leaks: a row for each page with an attack, with numbers from its record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gradleak import metrics
from gradleak.book.stopping import NOTE, stopped
from gradleak.runs import records
from gradleak.show.summary import Leaks, Summary
from gradleak.show.tables import MISSING
from gradleak.studies import paper_of
from gradleak.studies.shared.outcomes import Outcome

EXACTNESS = (
    "*How exactly*: numbers in dB are the peak signal-to-noise ratio (PSNR) of the images; from about "
    f"{metrics.INDISTINGUISHABLE:.0f} dB on, an image can hardly be distinguished from the original; ± is the standard "
    "deviation. The L1 error of a label is the sum of the absolute errors of its entries."
)
TIMES = (
    "*Time*: the mean or median of the CPU time of one attack or, where marked, of the elapsed time, on the machine "
    "that the table of provenance at the foot of the page names."
)


def text(found: Mapping[str, Summary]) -> str:
    """Return the table in Markdown, each row with a link to its page; `found` has the summaries of the pages."""
    outcomes = [outcome for summary in found.values() for outcome in summary.outcomes]
    lines = ["| what leaks | from | how exactly | time of one attack | stopped by |", "| --- | --- | --- | --- | --- |"]
    lines += [_line(page, summary.leaks, outcomes) for page, summary in found.items() if summary.leaks]
    head = ":::{table} What leaks, by the recorded run of each page.\n:name: tab-what-leaks\n"
    table = f"{head}:class: gradleak-table leaks\n\n" + "\n".join(lines) + "\n:::\n"
    return f"{table}\n{{.gradleak-notes}}\n{EXACTNESS} {NOTE} {TIMES}\n"


def _line(page: str, leaks: Leaks, outcomes: Sequence[Outcome]) -> str:
    record = records.recorded(page)
    time = (leaks.time or MISSING) + " on a GPU" * (record is not None and record.accelerated)
    what = f"{{doc}}`{leaks.what} <executed/{paper_of(page)}/{page}>`"
    # No line break between a number and its exponent.
    exactness, stop = (
        re.sub(r"(\de)-(\d)", "\\1\N{NON-BREAKING HYPHEN}\\2", text)
        for text in (leaks.exactness, stopped(leaks, page, outcomes))
    )
    return f"| {what} | {leaks.source} | {exactness} | {time} | {stop} |"
