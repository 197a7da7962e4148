"""Say whether a record still shows what today's code does, by the golden rows of its page.

The file tests/golden/<page>.json holds the rows of the page's smallest run. The tests compare a fresh run with these
rows, so the file changes only if the page's results do. A trial states the digest of the file that held when it ran.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from gradleak import paths
from gradleak.runs.records import Record

State = Literal["current", "outdated"]


def file_of(study: str) -> Path:
    """Return the file of a page's golden rows."""
    return paths.root() / "tests" / "golden" / f"{study}.json"


def digest(study: str) -> str:
    """Return a short digest of a page's golden rows; "" if it has none."""
    file = file_of(study)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else ""


def outdated(record: Record) -> int:
    """Return the number of a record's trials that ran when the golden rows of its page were others."""
    present = digest(record.study)
    if record.accepted is not None and record.accepted.golden == present:
        return 0
    return sum(trial.golden != present for trial in record.trials)


def state(record: Record) -> State:
    """Return "current" if the golden rows have not changed since the record's trials ran, or if the record says why
    its rows stand; otherwise "outdated".
    """
    return "outdated" if outdated(record) else "current"
