"""Choose the run that a page's tables and figures show, and describe its provenance."""

from __future__ import annotations

import pandas as pd

from gradleak.errors import MissingData
from gradleak.runs import records, standing, staying, studies
from gradleak.runs.records import Record
from gradleak.show.tables import Table


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
        run = f"This run ({records.about(self.this)}) took {sum(trial.seconds for trial in self.this.trials):.0f} s"
        if self.recorded:
            other = records.beside(self)
            beside = f" A run recorded on {other.where} is kept as well and is not shown." if other else ""
            return (
                f"Tables and figures show the run recorded on {self.where}: {self.about}.{beside} {run}; it checks "
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


def other(shown: Shown) -> Shown:
    """Return the run beside the shown one: this page's run if the recorded run is shown, and else the recorded run."""
    chosen = shown.this if shown.recorded else records.recorded(shown.study)
    if chosen is None:
        raise MissingData(f"'{shown.study}' has no recorded run")
    return Shown.model_construct(
        **dict(chosen), recorded=not shown.recorded, this=shown.this, about=records.about(chosen)
    )


def table(record: Record) -> Table:
    """Return a table for the foot of a page, with the provenance of this run and of the recorded runs."""

    recorded = records.recorded(record.study)
    columns = {"this run": {"file": "–"} | _described(record)}
    links = ["", ""]
    beside = records.beside(recorded) if recorded else None
    for head, kept in (("recorded", recorded), ("also recorded, not shown", beside)):
        if kept:
            place = address(kept.study, accelerated=kept.accelerated)
            columns[head] = {"file": place.rpartition("/")[2]} | _described(kept)
            links.append(f"bookfile:{place}")
    frame = pd.DataFrame(columns).rename_axis("").reset_index()
    return Table(
        frame,
        caption="Provenance of this page.",
        notes="Dates and seconds are those of the trials, when each of them ran.",
        links=[links] + [[""] * len(links)] * (len(frame) - 1),
        name=f"tab-{record.study}-provenance",
        fold="Data, machine, versions, commits and digest of this run and of the recorded one",
    )


def address(study: str, *, accelerated: bool) -> str:
    """Return the address of a record's copy in the built book, from the book's root."""
    return f"records/{studies.paper_of(study)}/{records.file_of(study, accelerated=accelerated).name}"


def _described(record: Record) -> dict[str, str]:
    provenance = record.provenance
    checks = [f"{summary.machine.name}: {summary.text}" for summary in standing.confirmed_by(record)]
    return {
        "profile": record.profile,
        "data": "; ".join(dict.fromkeys(map(_at_hand, provenance.data))) or "none",
        "device": provenance.device,
        "processor": ", ".join(name for name in (provenance.processor, provenance.instructions) if name) or "not kept",
        "stays on the CPU": staying.on_page(studies.load(record.study)),
        "trials": f"{len(record.trials)}, {sum(trial.seconds for trial in record.trials):.1f} s in all",
        "date": " to ".join(records.span(record)),
        "commit": ", ".join(dict.fromkeys(trial.commit or provenance.commit for trial in record.trials)),
        "state": standing.told(record),
        "trials run again": "; ".join(checks) or "none",
        "seed": str(provenance.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
        "digest": record.digest()[:16],
        "parameters": ", ".join(f"{name} = {value}" for name, value in record.parameters.items()),
    }


def _at_hand(source: str) -> str:
    """Return the origin of data, with the notes on the dataset if it was read from a local file."""
    from gradleak.data.files import FILES

    name = source.partition(":")[0]
    notes = FILES[name].notes if name in FILES and "$GRADLEAK_DATA" in source else ""
    return f"{source} ({notes})" if notes else source
