"""The form with which a reader chooses parameters of a page and gets the command that runs it."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any

from gradleak.runs import records, studies
from gradleak.runs.experiments import PAPER
from gradleak.runs.records import Record
from gradleak.show.tables import duration

# The form shows longer recorded lists by their length only.
MOST_VALUES = 6


@dataclass(frozen=True)
class Entry:
    """A parameter in the form: its name, the values of a quick run and at the paper's scale, and what it is."""

    name: str
    quick: Any
    paper: Any
    about: str


@dataclass(frozen=True)
class Form:
    """The form of a page.

    A run's time is estimated in proportion to the product of all sizes.

    Attributes:
        study: The page.
        entries: Its parameters.
        seconds: The time of all trials at the quick parameters on a CPU; None if no such run is at hand.
    """

    study: str
    entries: tuple[Entry, ...]
    seconds: float | None

    @property
    def html(self) -> str:
        """The form in HTML; without JavaScript it shows the command for the values that it holds."""
        sizes = {entry.name: size(entry.quick) for entry in self.entries if entry.name != "seed" and size(entry.quick)}
        facts = {"study": self.study, "seconds": self.seconds, "sizes": sizes}
        data = html.escape(json.dumps(facts))
        took = f"A run with these values took {duration(self.seconds)} on one CPU. " if self.seconds else ""
        fields = (
            f'<label><code>{entry.name}</code><input name="{entry.name}" value="{html.escape(written(entry.quick))}" '
            f'autocomplete="off" spellcheck="false"><small>{html.escape(entry.about)} '
            f"(recorded: {html.escape(_short(entry.paper))})</small></label>"
            for entry in self.entries
        )
        return (
            f'<div class="gradleak-yourself" role="form" data-facts="{data}">{"".join(fields)}'
            f'<p>{took}<span class="gradleak-estimate" aria-live="polite"></span></p>'
            f"<pre><code>gradleak run {self.study} --open</code></pre>"
            '<button type="button" hidden>Copy the command</button></div>'
        )

    def _repr_html_(self) -> str:
        return self.html

    def _repr_markdown_(self) -> str:
        return f"```{{raw}} html\n{self.html}\n```\n"

    def __repr__(self) -> str:
        lines = (f"  -p {entry.name}={written(entry.quick)}  {entry.about}" for entry in self.entries)
        return "\n".join([f"gradleak run {self.study}", *lines])


def form(record: Record) -> Form:
    """Return the form of a page.

    Args:
        record: The run of the page, whose time counts if it has the quick parameters.
    """
    study = studies.load(record.study)
    recorded = records.recorded(record.study)
    quick, paper = study.Parameters().model_dump(), study.Parameters.at(PAPER)
    used = recorded.parameters if recorded else paper
    entries = tuple(
        Entry(name, quick[name], used.get(name, paper.get(name, quick[name])), field.description or "")
        for name, field in study.Parameters.model_fields.items()
    )
    seconds = round(record.seconds, 2) if record.profile == "quick" and not record.accelerated else None
    return Form(record.study, entries, seconds)


def size(value: Any) -> float:
    """Return what a parameter contributes to the time: a count, the length of a list, or 0 for anything else."""
    if isinstance(value, list):
        return float(len(value))
    counts = isinstance(value, int) and not isinstance(value, bool)
    return float(max(value, 0)) if counts else 0.0


def _short(value: Any) -> str:
    """Return a value as it is written on the command line, or the number of a long list's values."""
    return f"{len(value)} values" if isinstance(value, list) and len(value) > MOST_VALUES else written(value)


def written(value: Any) -> str:
    """Return a value as it is written on the command line: lists with commas, groups of named values in JSON."""
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return json.dumps(value)
    if isinstance(value, list):
        return ",".join(map(written, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
