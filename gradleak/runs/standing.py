"""Find the state of a record: made with today's code, confirmed by a spot check, contradicted by one, or stale."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from gradleak.runs import confirmations, records, sources, studies
from gradleak.runs.confirmations import Summary
from gradleak.runs.records import Record, part_of

State = Literal["current", "confirmed", "differs", "stale"]


def confirmed_by(record: Record) -> list[Summary]:
    """Return a summary for each machine of what it has confirmed of a record with today's code."""
    path = confirmations_of(record)
    lines = confirmations.read(path)
    return confirmations.summaries(record, lines, _today(record)) if lines else []


def confirmations_of(record: Record) -> Path:
    """Return the file of a record's confirmations."""
    return confirmations.file_beside(records.file_of(record.study, accelerated=record.accelerated))


def _today(record: Record) -> str:
    """Return the digest of today's code of a record's trials."""
    return sources.of_trials(studies.load(record.study)).digest


def state(record: Record) -> State:
    """Return the state of a record, which is the first of these that applies.

    `differs`: on some machine, a trial that was run again with today's code gave other rows or changed a verdict.
    `current`: the record was made with today's code.
    `confirmed`: a trial of every part was run again with today's code and gave the same rows.
    `stale`: none of these.
    """
    return _state(record, confirmed_by(record))


def _state(record: Record, found: list[Summary]) -> State:
    if any(summary.differs for summary in found):
        return "differs"
    if made_today(record):
        return "current"
    parts = set(map(part_of, record.trials))
    return "confirmed" if parts <= confirmations.confirmed_parts(record, found) else "stale"


def made_today(record: Record) -> bool:
    """Whether a record's trials were computed with today's code."""
    return record.sources == _today(record)


def told(record: Record) -> str:
    """Return a record's state with its reason, in one sentence."""
    summaries = confirmed_by(record)
    present = _state(record, summaries)
    if present == "current":
        return "current: made with today's code"
    if present == "confirmed":
        trials = {digest for summary in summaries for digest in summary.trials}
        return f"confirmed: {len(trials)} of {len(record.trials)} trials, of every part, run again with the same rows"
    if present == "differs":
        names = ", ".join(dict.fromkeys(summary.machine.name for summary in summaries if summary.differs))
        return f"differs: trials run again on {names} gave other rows"
    parts = set(map(part_of, record.trials))
    missing = sorted(parts - confirmations.confirmed_parts(record, summaries))
    unchecked = "none of them" if missing == sorted(parts) else f"no trial of {', '.join(missing)}"
    return f"stale: the code of its trials has changed since, and {unchecked} was run again"


def counted(states: Iterable[State]) -> str:
    """Return the number of records in each state as a text: "3 records: 1 current, …"."""
    all_states = list(states)
    return f"{len(all_states)} records: " + ", ".join(f"{all_states.count(value)} {value}" for value in get_args(State))
