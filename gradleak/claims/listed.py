"""List judged claims as plain data: one flat entry for each claim, and the details that the scoreboard opens."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
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

    id: str = Field(description="name of the claim; its address is scoreboard.html#claim- followed by this name")
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


class Rows(BaseModel):
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


class Fact(BaseModel):
    """One fact about a claim: its head, a text, and the address to which the text leads, or ""."""

    head: str
    text: str
    link: str = ""


class Detail(BaseModel):
    """What the scoreboard shows about a claim when a reader opens it."""

    facts: list[Fact]
    rows: Rows | None


def detail(line: Line, entry: Listed, links: Iterable[Fact], rows: Rows | None) -> Detail:
    """Return the details of a claim.

    Args:
        line: The judged claim.
        entry: Its entry in the list.
        links: The facts that lead to the claim's record and page.
        rows: The rows behind the claim.
    """
    claim = line.claim
    facts = [
        Fact(head="Paper", text=f"{entry.paper}, {entry.place}" + (f" ({entry.whose})" if claim.ours else "")),
        Fact(head="Table", text=entry.table),
        Fact(head="Published", text="" if claim.published is None else claim.shown(claim.published)),
        Fact(head="Recorded", text=line.recorded.shown),
        Fact(head="Run of the book", text=line.fresh.shown if line.fresh.value is not None else ""),
        Fact(head="Verdict", text=line.verdict_text),
        Fact(head="Holds if", text=entry.rule),
        Fact(head="Measured", text=entry.measure),
        Fact(head="Needs", text=entry.needs),
        Fact(head="Paper's setting", text=entry.setting),
        Fact(head="Differs in", text=entry.differs),
        Fact(head="Stand-in", text=entry.stand_in),
        Fact(head="Changed method", text=entry.protocol),
        Fact(head="Cause", text=entry.cause or ""),
        Fact(head="Remark", text=entry.note),
        Fact(head="Does not matter", text=entry.immaterial),
        *(Fact(head=f"Changed ({change.kind})", text=change.why) for change in entry.changed),
        *links,
    ]
    return Detail(facts=[fact for fact in facts if fact.text], rows=rows)


def as_script(study: str, details: Mapping[str, Detail]) -> str:
    """Return a script that keeps the details of a page's claims by their ids.

    It is a script because a browser does not fetch JSON for a page that was opened as a file.
    """
    content = {name: one.model_dump(exclude_defaults=True) for name, one in details.items()}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"(window.gradleakClaims ??= {{}})[{json.dumps(study)}] = {text}\n"
