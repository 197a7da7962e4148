"""What the records of the project say, read and judged once for all tests of a process."""

from __future__ import annotations

from functools import cache

from gradleak import claims, studies
from gradleak.claims import Line
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show.summary import Summary


def record_of(name: str) -> Record:
    """Return the record of a page."""
    record = records.recorded(name)
    assert record is not None
    return record


@cache
def summary_of(name: str) -> Summary:
    """Return the summary of a page."""
    summary = studies.load(name).summary(record_of(name))
    assert summary is not None
    return summary


@cache
def lines() -> list[Line]:
    """Return all claims of the project, judged on the records."""
    return claims.lines({})
