"""The form with which a reader chooses parameters of a page and gets the command that runs it."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any

from gradleak.runs import records, studies
from gradleak.runs.experiments import PAPER
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.runs.studies import Study
from gradleak.show.tables import duration

# The form shows longer recorded lists by their length only.
MOST_VALUES = 6


@dataclass(frozen=True)
class Form:
    """The form of a page.

    A run's time is estimated in proportion to the product of all sizes.

    Attributes:
        study: The page.
        recorded: The values of the recorded run, or else those of a run at the paper's scale.
        seconds: The time of all trials at the quick parameters on a CPU; None if no such run is at hand.
    """

    study: Study
    recorded: Columns
    seconds: float | None

    def _repr_html_(self) -> str:
        # Without JavaScript the form shows the command for the values that it holds.
        quick = self.study.Parameters().model_dump()
        sizes = {name: size(value) for name, value in quick.items() if name != "seed" and size(value)}
        data = html.escape(json.dumps({"study": self.study.name, "seconds": self.seconds, "sizes": sizes}))
        took = f"A run with these values took {duration(self.seconds)} on one CPU. " if self.seconds else ""
        fields = (
            f'<label><code>{name}</code><input name="{name}" value="{html.escape(written(quick[name]))}" '
            f'autocomplete="off" spellcheck="false"><small>{html.escape(field.description or "")} '
            f"(recorded: {html.escape(_short(self.recorded[name]))})</small></label>"
            for name, field in self.study.Parameters.model_fields.items()
        )
        return (
            f'<div class="gradleak-yourself" role="form" data-facts="{data}">{"".join(fields)}'
            f'<p>{took}<span class="gradleak-estimate" aria-live="polite"></span></p>'
            f"<pre><code>gradleak run {self.study.name} --open</code></pre>"
            '<button type="button" hidden>Copy the command</button></div>'
        )

    def _repr_markdown_(self) -> str:
        return f"```{{raw}} html\n{self._repr_html_()}\n```\n"

    def __repr__(self) -> str:
        fields, quick = self.study.Parameters.model_fields.items(), self.study.Parameters().model_dump()
        lines = (f"  -p {name}={written(quick[name])}  {field.description or ''}" for name, field in fields)
        return "\n".join([f"gradleak run {self.study.name}", *lines])


def form(record: Record) -> Form:
    """Return the form of a page.

    Args:
        record: The run of the page, whose time counts if it has the quick parameters.
    """
    study, recorded = studies.load(record.study), records.recorded(record.study)
    values = study.Parameters().model_dump() | study.Parameters.at(PAPER) | (recorded.parameters if recorded else {})
    seconds = round(record.seconds, 2) if record.profile == "quick" and not record.accelerated else None
    return Form(study, values, seconds)


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
