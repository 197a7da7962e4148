"""Write the status page's part on spot checks: which trials were run again, on which machines, and what differed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from gradleak.runs import records, standing
from gradleak.runs.comparing import is_picture, worst
from gradleak.runs.confirmations import Difference, Summary, percent
from gradleak.runs.records import Record
from gradleak.show.tables import Table
from gradleak.studies import Study

# The order in which differences are listed, by their kind.
KINDS = ("exact", "measured", "rounding")


def text(ordered: Iterable[Study]) -> str:
    """Return the tables of all confirmations with today's code, and of the differences that they found, in Markdown."""
    recorded = [record for study in ordered for record in records.all_recorded(study.name)]
    summaries = [(name_of(record), summary) for record in recorded for summary in standing.confirmed_by(record)]
    if not summaries:
        return "*No recorded trial was run again with today's code yet.*\n"
    totals_text = "\n".join(f"- {line}." for line in totals(recorded))
    parts = [totals_text, _verdicts(summaries), _machines(summaries), _beyond(summaries), _within(summaries)]
    return "\n\n".join(part for part in parts if part) + "\n"


def totals(kept: Sequence[Record]) -> list[str]:
    """Return a line for each machine on how many trials of these records it has confirmed with today's code."""
    by_machine: dict[str, list[Summary]] = {}
    for record in kept:
        for summary in standing.confirmed_by(record):
            by_machine.setdefault(summary.machine.name, []).append(summary)
    trials = sum(len(record.trials) for record in kept)
    seconds = sum(trial.seconds for record in kept for trial in record.trials)
    lines = []
    for machine, checks in by_machine.items():
        ran, took = sum(len(check.trials) for check in checks), sum(check.seconds for check in checks)
        parts = f"{sum(len(check.parts) for check in checks)} of {sum(len(check.all_parts) for check in checks)} parts"
        claims = f"{sum(len(check.claims) for check in checks)} of {sum(check.all_claims for check in checks)} claims"
        share = 100 * took / seconds if seconds else 100
        differ = sum(check.differs for check in checks)
        lines.append(
            f"{machine}: {ran:,} of {trials:,} recorded trials ({percent(share)} % of the recorded time) were run "
            f"again. They belong to {len(checks)} of {len(kept)} records, cover {parts} of these records, and affect "
            f"{claims}. {differ} of these records differ"
        )
    return lines


def name_of(record: Record) -> str:
    """Return the name of a record in tables and messages: its study, with "(GPU)" if it was made on one."""
    return record.study + " (GPU)" * record.accelerated


def _machines(found: Sequence[tuple[str, Summary]]) -> str:
    rows = []
    for name, summary in found:
        outcomes = list(summary.trials.values())
        rows.append(
            {
                "record": name,
                "machine": summary.machine.name,
                "last check": summary.date[:10],
                "trials": f"{len(summary.trials)} of {summary.of}",
                "share of the time (%)": percent(summary.share),
                "parts": f"{len(summary.parts)} of {len(summary.all_parts)}",
                "claims affected": f"{len(summary.claims)} of {summary.all_claims}",
                "trials with equal rows": outcomes.count("same"),
                "trials within tolerance": outcomes.count("within"),
                "trials that differ": outcomes.count("differs"),
                "verdicts changed": ", ".join(dict.fromkeys(verdict.claim for verdict in summary.verdicts)) or "none",
            }
        )
    caption = "Recorded trials that were run again with today's code: a row for each record and machine."
    return _table(rows, caption, "tab-confirmations", fold="Each record on each machine")


def _verdicts(found: Sequence[tuple[str, Summary]]) -> str:
    """Return a table of the claims whose verdict changed on some machine, or a sentence that there is none."""
    rows = [
        {
            "record": name,
            "claim": verdict.claim,
            "recorded verdict": verdict.recorded,
            "new verdict": verdict.found,
            "machine": summary.machine.name,
        }
        for name, summary in found
        for verdict in summary.verdicts
    ]
    caption = "Claims whose verdict changes if the rows that were run again replace the recorded ones."
    return _table(rows, caption, "tab-verdicts-changed") if rows else "*No verdict changed on any machine.*"


def _beyond(found: Sequence[tuple[str, Summary]]) -> str:
    rows = [
        {
            "record": name,
            "machine": summary.machine.name,
            "kind": difference.kind,
            "column": difference.column,
            "recorded": _value(difference.recorded),
            "run again": _value(difference.found),
            "difference": _apart(difference),
            "values that differ": difference.values,
        }
        for kind in KINDS
        for name, summary in found
        for difference in worst(summary.differences)
        if (difference.outcome, difference.kind) == ("differs", kind)
    ]
    rows += [
        {"record": name, "machine": summary.machine.name, "kind": "error", "column": "–", "run again": error}
        for name, summary in found
        for error in dict.fromkeys(summary.errors.values())
    ]
    caption = (
        "Differences beyond tolerance, by kind: for each column the two values that differ most, their relative "
        "difference, and how many values differ. “nothing”: the row has no value in this column."
    )
    if not rows:
        return "*No value differs beyond the tolerance of its column.*"
    return _table(rows, caption, "tab-differences", fold=f"Differences beyond tolerance: {_counts(rows)}")


def _within(found: Sequence[tuple[str, Summary]]) -> str:
    rows = []
    for kind in KINDS:
        for name, summary in found:
            differences = [
                difference
                for difference in worst(summary.differences)
                if (difference.outcome, difference.kind) == ("within", kind)
            ]
            if differences:
                largest = max(differences, key=lambda difference: difference.apart or 0.0)
                columns = ", ".join(dict.fromkeys(difference.column.partition("[")[0] for difference in differences))
                rows.append(
                    {
                        "record": name,
                        "machine": summary.machine.name,
                        "kind": kind,
                        "columns": columns,
                        "largest difference": f"{_apart(largest)} ({largest.column})",
                    }
                )
    caption = "Differences within tolerance, by kind: the columns that differ, and the largest difference."
    fold = "Differences within tolerance"
    return _table(rows, caption, "tab-tolerated", fold=fold) if rows else ""


def _counts(rows: list[dict[str, Any]]) -> str:
    """Return how many rows are of each kind, as a text."""
    counts = Counter(str(row["kind"]) for row in rows)
    return ", ".join(f"{number} {kind}" for kind, number in counts.items())


def _table(rows: list[dict[str, Any]], caption: str, name: str, fold: str = "") -> str:
    return Table(pd.DataFrame(rows), caption=caption, name=name, fold=fold)._repr_markdown_()


def _apart(difference: Difference) -> str:
    if difference.apart is None:
        return "–"
    if difference.kind != "rounding":
        return f"{100 * difference.apart:.2g} %"
    return f"a factor of {difference.apart:.3g}" if difference.apart >= 1.005 else "less than 0.5 %"


def _value(value: Any) -> str:
    # The text of a picture's file says nothing to a reader.
    if is_picture(value):
        return "(an image)"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
