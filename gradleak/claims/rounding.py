"""State which verdicts depend on rounding: recorded trials were run again on other processors and on a GPU.

Attacks that search for thousands of steps amplify rounding errors until single images differ. The file
results/rounding.json keeps what was found when trials of all pages were run again in November 2026: for each page and
machine the numbers of trials by outcome, and the claims whose verdict changed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradleak import paths


def machines(page: str) -> set[str]:
    """Return the machines on which recorded trials of a page were run again."""
    runs = _content(paths.results() / "rounding.json").get("runs", ())
    return {run["machine"] for run in runs if run["page"] == page}


def verdicts(claim: str) -> list[str]:
    """Return a sentence for each other verdict that a claim had when its trials were run again."""
    found: dict[str, list[str]] = {}
    for verdict in _content(paths.results() / "rounding.json").get("verdicts", ()):
        if verdict["claim"] == claim:
            found.setdefault(verdict["found"], []).append(verdict["machine"])
    return [
        f"Rounding decides this verdict: it was “{verdict}” when the trials ran again on {' and on '.join(machines)}."
        for verdict, machines in found.items()
    ]


@lru_cache(maxsize=2)
def _content(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return content
