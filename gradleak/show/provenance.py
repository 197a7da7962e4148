"""Choose the run that a page's tables and figures show, and describe its provenance."""

from __future__ import annotations

import pandas as pd

from gradleak.runs import records, studies
from gradleak.runs.records import Record
from gradleak.show.tables import Cell, Table


class Shown(Record):
    """The run that a page's tables and figures show: the recorded run, or the run of this page.

    As the output of a notebook's cell, it states in one or two sentences which run the page shows.

    Attributes:
        recorded: Whether this is the recorded run.
        this: The run of this page.
        about: The size of the shown run in a few words.
    """

    recorded: bool
    this: Record
    about: str

    def caption(self, text: str) -> str:
        """Return a caption with the run that is shown: "… Recorded: 45 images, CIFAR-10." """
        return f"{text} {'Recorded' if self.recorded else 'This run'}: {self.about}."

    @property
    def note(self) -> str:
        """Which run the page shows, and how this run differs from it, in one or two sentences."""
        run = f"This run ({records.about(self.this)}) took {self.this.seconds:.0f} s"
        if self.recorded:
            partial = f" It is not finished: {self.size} have ended." if self.waiting else ""
            return (
                f"Tables and figures show the run recorded on {self.where}: {self.about}.{partial} {run}; it checks "
                "that the code on this page works, and its values are in the column *this run* of the verdicts."
            )
        reason = "the parameters were changed" if records.recorded(self.study) else "nothing is recorded"
        return f"Tables and figures show this very run, because {reason}. {run}."

    def _repr_markdown_(self) -> str:
        return self.note


def shown(record: Record) -> Shown:
    """Return the run that a page shows: the recorded run if the page ran with its quick parameters, else this run."""
    recorded = records.recorded(record.study) if record.profile == "quick" else None
    chosen = recorded or record
    return Shown.model_construct(
        **dict(chosen), recorded=recorded is not None, this=record, about=records.about(chosen)
    )


def table(record: Record) -> Table:
    """Return a table for the foot of a page, with the provenance of this run and of the recorded run."""
    recorded = records.recorded(record.study)
    columns = {"this run": {"file": Cell("–")} | _described(record)}
    if recorded:
        file = Cell(records.file_of(record.study).name, link=f"bookfile:{address(record.study)}")
        columns["recorded"] = {"file": file} | _described(recorded)
    frame = pd.DataFrame(columns).rename_axis("").reset_index()
    return Table(
        frame,
        caption="Provenance of this page.",
        notes="Dates and seconds are those of the trials, when each of them ran.",
        name=f"tab-{record.study}-provenance",
        fold="Data, machines, versions, commits and digest of this run and of the recorded one",
    )


def address(study: str) -> str:
    """Return the address of a record's copy in the built book, from the book's root."""
    return f"records/{studies.paper_of(study)}/{records.file_of(study).name}"


def _described(record: Record) -> dict[str, str]:
    versions = {name: version for machine in record.machines for name, version in machine.versions.items()}
    return {
        "profile": record.profile,
        "data": "; ".join(dict.fromkeys(map(_at_hand, record.data))) or "none",
        "machine": "; ".join(dict.fromkeys(machine.name for machine in record.machines)),
        "trials": f"{record.size}, {record.seconds:.1f} s in all",
        "date": " to ".join(record.days),
        "commit": ", ".join(dict.fromkeys(trial.commit for trial in record.trials)),
        "seed": str(record.parameters["seed"]),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "digest": record.digest()[:16],
        "parameters": ", ".join(f"{name} = {value}" for name, value in record.parameters.items()),
    } | ({"accepted": record.accepted.why} if record.accepted else {})


def _at_hand(source: str) -> str:
    """Return the origin of data, with the notes on the dataset if it was read from a local file."""
    from gradleak.data.files import FILES

    name = source.partition(":")[0]
    notes = FILES[name].notes if name in FILES and "$GRADLEAK_DATA" in source else ""
    return f"{source} ({notes})" if notes else source
