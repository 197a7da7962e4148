"""Show how far results depend on rounding: recorded trials that were run again on other processors and on a GPU.

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


def text() -> str:
    """Return a table of the outcomes on each machine, in Markdown."""
    import pandas as pd

    from gradleak.show.tables import Table

    content = _content(paths.results() / "rounding.json")
    if not content:
        return "*No recorded trial was run again on another machine yet.*\n"
    runs = pd.DataFrame(content["runs"]).rename(columns={"trials": "trials run again", "of": "trials recorded"})
    counted = runs.groupby("machine").sum(numeric_only=True)
    frame = pd.DataFrame(
        {
            "records": runs.groupby("machine").size(),
            "trials run again": counted["trials run again"],
            "equal": counted["same"],
            "within tolerance": counted["within"],
            "beyond tolerance": counted["differs"],
            "beyond tolerance (%)": (100 * counted["differs"] / counted["trials run again"]).map("{:.0f}".format),
        }
    )
    changed: dict[str, list[str]] = {machine: [] for machine in frame.index}
    for verdict in content["verdicts"]:
        changed[verdict["machine"]].append(f"{verdict['claim']} ({verdict['page']})")
    frame["verdicts that change"] = [", ".join(changed[machine]) or "none" for machine in frame.index]
    caption = "Recorded trials that were run again on other machines, by the outcome for their rows."
    return Table(frame.reset_index(), caption, "tab-rounding")._repr_markdown_()


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
