"""List judged claims as plain data: one flat entry for each claim, and the facts that its page states."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from gradleak.claims import rounding
from gradleak.claims.judging import Line, selected
from gradleak.claims.model import Claim
from gradleak.runs.golden import State
from gradleak.runs.plain import worded
from gradleak.runs.records import Record

# The most rows and columns that the details of a claim show.
MOST_ROWS = 12
MOST_COLUMNS = 6
# Texts of rows that are longer than this are not shown.
LONG = 40
REDUCED = {
    "mean": "the mean of {}", "median": "the median of {}", "min": "the least {}", "max": "the largest {}",
    "sum": "the sum of {}", "share": "the percentage of rows in which {} is true", "only": "{}",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A field of the lists of claims: a column of `claims.csv`, and a name in each entry of `claims.json`.

    Attributes:
        about: What the field holds.
        value: Returns the field of a judged claim.
        head: The head of the field on the page of a claim; "" for a field that the page does not show as it is.
    """

    about: str
    value: Callable[[Line], Any]
    head: str = ""


FIELDS = {
    "id": Field("name of the claim; claims/<name>.html is its page", lambda line: line.claim.id),
    "paper": Field("citation key of the paper", lambda line: line.claim.paper),
    "place": Field("part of the paper that states the claim", lambda line: line.claim.place),
    "statement": Field("the claim in words", lambda line: line.claim.statement),
    "page": Field("page that measures the claim; its record has the same name", lambda line: line.claim.study),
    "whose": Field("whether the claim is the paper's, or our prediction or finding", lambda line: whose(line.claim)),
    "table": Field(
        "title of the paper's table of which the claim is a cell; else empty", lambda line: line.claim.table, "Table"
    ),
    "published": Field("published number or words; empty if the claim has none", lambda line: line.claim.published),
    "unit": Field("unit of the published and the measured value", lambda line: line.claim.unit),
    "rule": Field("condition under which the claim holds", lambda line: line.claim.rule_text, "Holds if"),
    "measure": Field("what is measured, by the columns of the record", lambda line: _measure(line.claim), "Measured"),
    "setting": Field(
        "network, data and steps of the paper that the measurement must have",
        lambda line: _equations(line.claim.setting),
        "Paper's setting",
    ),
    "needs": Field(
        "numbers of samples and starts that the measurement must have",
        lambda line: _equations(line.claim.needs, at_least=True),
        "Needs",
    ),
    "value": Field("measured value; percentages are numbers from 0 to 100", lambda line: line.deciding.value),
    "spread": Field("standard deviation of the rows, if the value is their mean", lambda line: line.deciding.spread),
    "n": Field("number of samples behind the value", lambda line: line.deciding.count),
    "verdict": Field("verdict on the claim", lambda line: line.verdict),
    "this_run": Field("value of the short run with which the book was built", lambda line: line.fresh.value),
    "differs": Field(
        "parts of the setting in which the measurement differs from the paper",
        lambda line: ", ".join(line.deciding.differs),
        "Differs in",
    ),
    "stand_in": Field("what is measured instead of the paper's setting", lambda line: line.claim.stand_in, "Stand-in"),
    "protocol": Field(
        "what was changed about the published method", lambda line: line.claim.protocol, "Changed method"
    ),
    "trivial": Field(
        "attacker who uses nothing of what was sent and meets the rule as well; else empty",
        lambda line: line.deciding.trivial,
        "Also met by",
    ),
    "cause": Field("cause for which the claim fails or disagrees", lambda line: line.cause, "Cause"),
    "note": Field("remark, such as the reason why the claim fails", lambda line: line.claim.note, "Remark"),
    "immaterial": Field(
        "differences from the paper that do not matter, with reasons",
        lambda line: "; ".join(f"{name} = {one.value}: {one.why}" for name, one in line.claim.immaterial.items()),
        "Does not matter",
    ),
    "changed": Field(
        "changes of the claim after a measurement: kind, date and reason",
        lambda line: [change.model_dump() for change in line.claim.changed],
    ),
}
ABOUT = {name: field.about for name, field in FIELDS.items()} | {"record": "state of the record"}


def listed(line: Line, state: State | None) -> dict[str, Any]:
    """Return the entry of a judged claim, by `FIELDS`; `state` is the state of its page's record."""
    return {name: worded(field.value(line)) for name, field in FIELDS.items()} | {"record": state or "not recorded"}


def whose(claim: Claim) -> str:
    """Return whose a claim is, in words."""
    return "the paper's" if not claim.ours else "our prediction" if claim.ours == "prediction" else "our finding"


def _measure(claim: Claim) -> str:
    measure = claim.measure
    where = f" where {_equations(measure.where)}" if measure.where else ""
    return REDUCED[measure.reduce].format(measure.column) + where


def _equations(values: Mapping[str, Any] | Literal["any"], *, at_least: bool = False) -> str:
    """Return conditions as a text: "network = lenet, size = 8 or 32"; with `at_least`, numbers are lower bounds."""
    texts = []
    if values == "any":
        return values
    for name, value in values.items():
        number = at_least and isinstance(value, int | float) and not isinstance(value, bool)
        between = " and " if at_least else " or "
        text = between.join(map(_text, value)) if isinstance(value, list) else _text(value)
        texts.append(f"{name} {'≥' if number else '='} {text}")
    return ", ".join(texts)


def _text(value: Any) -> str:
    """Return a value as text; a group of named values is written in brackets: "(network lenet, epochs 10)"."""
    if isinstance(value, dict):
        return f"({', '.join(f'{name} {own}' for name, own in value.items())})"
    return str(value)


def as_json(entries: Iterable[dict[str, Any]]) -> str:
    """Return entries as a JSON array, with one entry on each line."""
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]\n"


def as_csv(entries: Iterable[dict[str, Any]]) -> str:
    """Return entries as CSV, with the fields as columns; several changes are separated by " | "."""
    frame = pd.DataFrame(entries, columns=list(ABOUT), dtype=object)
    changes = frame["changed"].map(lambda all: " | ".join(f"{one['kind']}: {one['why']}" for one in all))
    return frame.assign(changed=changes).to_csv(index=False)


def rows_behind(claim: Claim, record: Record) -> tuple[pd.DataFrame, int]:
    """Return the first rows of a record that measure a claim, as texts, and the number of all these rows.

    The columns are those that tell the rows apart and, at the end, the measured one.
    """
    chosen = selected(claim, record)
    measured = claim.measure.column
    inputs = dict.fromkeys(name for trial in record.trials[:1] for name in trial.inputs)
    # First the columns by which the claim selects, then the experiments' inputs, then all others.
    names = dict.fromkeys([*claim.measure.where, *inputs, *(name for row in chosen[:1] for name in row)])
    compared = [*chosen[:MOST_ROWS], *chosen[MOST_ROWS:][-1:]]
    telling = [name for name in names if name != measured and _tells(name, compared)][: MOST_COLUMNS - 1]
    columns = [*telling, measured]
    cells = [[_cell(row.get(name)) for name in columns] for row in chosen[:MOST_ROWS]]
    return pd.DataFrame(cells, columns=columns), len(chosen)


def _tells(name: str, rows: list[dict[str, Any]]) -> bool:
    """Whether a column holds short texts or whole numbers that differ between the rows, or counts the samples."""
    values = [row.get(name) for row in rows]
    short = all(isinstance(value, int) or (isinstance(value, str) and len(value) <= LONG) for value in values)
    return short and (len(set(values)) > 1 or (name == "count" and values != [1] * len(values)))


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "–" if value is None else str(value)


def facts(line: Line) -> list[tuple[str, str]]:
    """Return the facts that the page of a claim states about the claim, each with its head."""
    claim = line.claim
    stated = [
        ("Paper", f"{claim.paper}, {claim.place}" + (f" ({whose(claim)})" if claim.ours else "")),
        ("Published", "" if claim.published is None else claim.formatted(claim.published)),
        ("Recorded", line.recorded.with_spread),
        ("Run of the book", line.fresh.with_spread if line.fresh.value is not None else ""),
        ("Verdict", line.verdict_text),
        *((field.head, field.value(line) or "") for field in FIELDS.values() if field.head),
        *((f"Changed ({change.kind})", change.why) for change in claim.changed),
        *(("Run again", text) for text in rounding.verdicts(claim.id)),
    ]
    return [(head, text) for head, text in stated if text]
