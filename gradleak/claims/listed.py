"""List judged claims as plain data: one flat entry for each claim, and the facts that its page states."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.claims.causes import cause
from gradleak.claims.judging import Line, Verdict, selected
from gradleak.claims.model import Cause, Change, Claim
from gradleak.runs.golden import State
from gradleak.runs.plain import worded
from gradleak.runs.records import Record

Whose = Literal["the paper's", "our prediction", "our finding"]
# The most rows and columns that the details of a claim show.
MOST_ROWS = 12
MOST_COLUMNS = 6
# Texts of rows that are longer than this are not shown.
LONG = 40
REDUCED = {
    "mean": "the mean of {}", "median": "the median of {}", "min": "the least {}", "max": "the largest {}",
    "sum": "the sum of {}", "count": "the number of rows with {}", "std": "the standard deviation of {}",
    "share": "the percentage of rows in which {} is true", "only": "{}",
}  # fmt: skip


class Listed(BaseModel):
    """A judged claim as a line of `claims.csv` and an entry of `claims.json`."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(description="name of the claim; claims/<name>.html is its page")
    paper: str = Field(description="citation key of the paper")
    place: str = Field(description="part of the paper that states the claim")
    statement: str = Field(description="the claim in words")
    page: str = Field(description="page that measures the claim; its record has the same name")
    whose: Whose = Field(description="whether the claim is the paper's, or our prediction or finding")
    table: str = Field(description="title of the paper's table of which the claim is a cell; else empty")
    published: float | str | None = Field(description="published number or words; empty if the claim has none")
    unit: str = Field(description="unit of the published and the measured value")
    rule: str = Field(description="condition under which the claim holds")
    measure: str = Field(description="what is measured, by the columns of the record")
    setting: str = Field(description="network, data and steps of the paper that the measurement must have")
    needs: str = Field(description="numbers of samples and starts that the measurement must have")
    value: float | str | None = Field(description="measured value; percentages are numbers from 0 to 100")
    spread: float | str | None = Field(description="standard deviation of the rows, if the value is their mean")
    n: int = Field(description="number of samples behind the value")
    verdict: Verdict = Field(description="verdict on the claim")
    this_run: float | str | None = Field(description="value of the short run with which the book was built")
    differs: str = Field(description="parts of the setting in which the measurement differs from the paper")
    stand_in: str = Field(description="what is measured instead of the paper's setting")
    protocol: str = Field(description="what was changed about the published method")
    cause: Cause | None = Field(description="cause for which the claim fails or disagrees")
    note: str = Field(description="remark, such as the reason why the claim fails")
    immaterial: str = Field(description="differences from the paper that do not matter, with reasons")
    changed: tuple[Change, ...] = Field(description="changes of the claim after a measurement: kind, date and reason")
    record: State | Literal["not recorded"] = Field(description="state of the record")


def listed(line: Line, state: State | None) -> Listed:
    """Return the entry of a judged claim; `state` is the state of its page's record."""
    claim, judged = line.claim, line.deciding
    immaterial = [f"{name} = {one.value}: {one.why}" for name, one in claim.immaterial.items()]
    return Listed(
        id=claim.id,
        paper=claim.paper,
        place=claim.place,
        statement=claim.statement,
        page=claim.study,
        whose=whose(claim),
        table=claim.table,
        published=claim.published,
        unit=claim.unit,
        rule=claim.rule_text,
        measure=_measure(claim),
        setting=claim.setting if isinstance(claim.setting, str) else _equations(claim.setting),
        needs=_equations(claim.needs, at_least=True),
        value=worded(judged.value),
        spread=worded(judged.spread),
        n=judged.count,
        verdict=line.verdict,
        this_run=worded(line.fresh.value),
        differs=", ".join(judged.differs),
        stand_in=claim.stand_in,
        protocol=claim.protocol,
        cause=cause(line),
        note=claim.note,
        immaterial="; ".join(immaterial),
        changed=claim.changed,
        record=state or "not recorded",
    )


def whose(claim: Claim) -> Whose:
    """Return whose a claim is, in words."""
    return "the paper's" if not claim.ours else "our prediction" if claim.ours == "prediction" else "our finding"


def _measure(claim: Claim) -> str:
    measure = claim.measure
    where = f" where {_equations(measure.where)}" if measure.where else ""
    return REDUCED[measure.reduce].format(measure.column) + where


def _equations(values: Mapping[str, Any], *, at_least: bool = False) -> str:
    """Return conditions as a text: "network = lenet, size = 8 or 32"; with `at_least`, numbers are lower bounds."""
    texts = []
    for name, value in values.items():
        number = at_least and isinstance(value, int | float) and not isinstance(value, bool)
        between = " and " if at_least else " or "
        text = between.join(map(str, value)) if isinstance(value, list) else str(value)
        texts.append(f"{name} {'≥' if number else '='} {text}")
    return ", ".join(texts)


def as_json(entries: Iterable[Listed]) -> str:
    """Return entries as a JSON array, with one entry on each line."""
    return "[\n" + ",\n".join(entry.model_dump_json() for entry in entries) + "\n]\n"


def as_csv(entries: Iterable[Listed]) -> str:
    """Return entries as CSV, with the fields of `Listed` as columns; several changes are separated by " | "."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(Listed.model_fields)
    for entry in entries:
        values = dict(entry) | {"changed": " | ".join(f"{change.kind}: {change.why}" for change in entry.changed)}
        writer.writerow(["" if value is None else value for value in values.values()])
    return stream.getvalue()


@dataclass(frozen=True)
class Rows:
    """The rows behind a claim.

    Attributes:
        columns: The names of the shown columns; the last one is measured.
        rows: The cells of the first rows.
        total: The number of all rows behind the claim.
    """

    columns: list[str]
    rows: list[list[str]]
    total: int


def rows_behind(claim: Claim, record: Record) -> Rows:
    """Return the rows of a record that measure a claim, with the columns that tell them apart."""
    chosen = selected(claim, record, may_lack=True)
    measured = claim.measure.column
    inputs = dict.fromkeys(name for trial in record.trials[:1] for name in trial.inputs)
    # First the columns by which the claim selects, then the experiments' inputs, then all others.
    names = dict.fromkeys([*claim.measure.where, *inputs, *(name for row in chosen[:1] for name in row)])
    compared = [*chosen[:MOST_ROWS], *chosen[MOST_ROWS:][-1:]]
    telling = [name for name in names if name != measured and _tells(name, compared)][: MOST_COLUMNS - 1]
    columns = [*telling, measured]
    cells = [[_cell(row.get(name)) for name in columns] for row in chosen[:MOST_ROWS]]
    return Rows(columns=columns, rows=cells, total=len(chosen))


def _tells(name: str, rows: list[dict[str, Any]]) -> bool:
    """Whether a column holds short texts or whole numbers that differ between the rows, or counts the samples."""
    values = [row.get(name) for row in rows]
    short = all(isinstance(value, int) or (isinstance(value, str) and len(value) <= LONG) for value in values)
    return short and (len(set(values)) > 1 or (name == "count" and values != [1] * len(values)))


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "–" if value is None else str(value)


@dataclass(frozen=True)
class Fact:
    """One fact about a claim: its head, a text, and the address to which the text leads, or ""."""

    head: str
    text: str
    link: str = ""


def facts(line: Line, entry: Listed) -> list[Fact]:
    """Return the facts that the page of a claim states about the claim.

    Args:
        line: The judged claim.
        entry: Its entry in the list.
    """
    claim = line.claim
    stated = [
        Fact("Paper", f"{entry.paper}, {entry.place}" + (f" ({entry.whose})" if claim.ours else "")),
        Fact("Table", entry.table),
        Fact("Published", "" if claim.published is None else claim.formatted(claim.published)),
        Fact("Recorded", line.recorded.with_spread),
        Fact("Run of the book", line.fresh.with_spread if line.fresh.value is not None else ""),
        Fact("Verdict", line.verdict_text),
        Fact("Holds if", entry.rule),
        Fact("Measured", entry.measure),
        Fact("Needs", entry.needs),
        Fact("Paper's setting", entry.setting),
        Fact("Differs in", entry.differs),
        Fact("Stand-in", entry.stand_in),
        Fact("Changed method", entry.protocol),
        Fact("Cause", entry.cause or ""),
        Fact("Remark", entry.note),
        Fact("Does not matter", entry.immaterial),
        *(Fact(f"Changed ({change.kind})", change.why) for change in entry.changed),
    ]
    return [fact for fact in stated if fact.text]
