"""What the papers say, as data, and the code that judges it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gradleak import studies
from gradleak.book import records
from gradleak.book.records import Record
from gradleak.book.tables import Table
from gradleak.errors import InputError, unknown

FOLDER = Path(__file__).parent
# A table of more claims than this scrolls inside itself, and its caption counts the verdicts.
MANY = 30
Verdict = Literal["reproduced", "better", "not reproduced", "trend only", "not run"]
Number = int | float


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Measure(_Strict):
    """The selection of a record's rows that measures a claim, and how they become one number.

    `where` maps a column to the value it must have, or to a list of which any; `share` is the percentage of rows in
    which the column is true; `count` counts the rows that have a value.
    """

    where: dict[str, Any] = Field(default_factory=dict)
    column: str
    reduce: Literal["mean", "median", "min", "max", "sum", "count", "std", "share", "only"]
    format: str = ".3g"


class Within(_Strict):
    """A distance from the published value."""

    absolute: Number = 0
    relative: Number = 0


class Rule(_Strict):
    """When a measured value counts as reproducing the claim: exactly one of these."""

    at_most: Number | None = None
    at_least: Number | None = None
    within: Within | None = None
    between: tuple[Number, Number] | None = None

    @model_validator(mode="after")
    def _one(self) -> Rule:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(f"a rule is exactly one of at_most, at_least, within, between; got {given or 'none'}")
        return self

    def holds(self, value: float, published: Any) -> bool:
        """Whether a value follows the rule; NaN never does."""
        if math.isnan(value):
            return False
        if self.at_most is not None:
            return value <= self.at_most
        if self.at_least is not None:
            return value >= self.at_least
        if self.between is not None:
            return self.between[0] <= value <= self.between[1]
        assert self.within is not None
        return bool(abs(value - published) <= self.within.absolute + self.within.relative * abs(published))

    def text(self) -> str:
        """The rule in a few characters."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        if self.between is not None:
            return f"{self.between[0]:g} … {self.between[1]:g}"
        assert self.within is not None
        absolute = f"± {self.within.absolute:g}" if self.within.absolute else ""
        return absolute + (f" ± {self.within.relative:.0%}" if self.within.relative else "")


class Claim(_Strict):
    """One thing a paper says, or we do, and what would show it.

    `stand_in` says what is measured instead of data that the paper profile cannot count on.
    """

    id: str
    paper: str
    place: str
    statement: str
    study: str
    measure: Measure
    published: Number | str | None = None
    unit: str = ""
    rule: Rule
    better: Literal["higher", "lower"] | None = None
    needs: dict[str, Any] = Field(default_factory=dict)
    ours: bool = False
    note: str = ""
    stand_in: str = ""

    @model_validator(mode="after")
    def _published_number(self) -> Claim:
        if (self.rule.within or self.better) and not isinstance(self.published, int | float):
            raise ValueError("'within' and 'better' compare with a published number, and there is none")
        return self

    def shown(self, value: Any) -> str:
        """A value of this claim as text, in its format and unit."""
        if value is None:
            return "–"
        text = format(value, self.measure.format) if isinstance(value, int | float) else str(value)
        # "over 98" is a number; "outperforms" has no unit.
        return f"{text} {self.unit}".strip() if text[-1:].isdigit() else text


@dataclass(frozen=True)
class Judgement:
    """What a record says about a claim: the value with its count and spread, and the verdict."""

    claim: Claim
    value: float | None
    count: int
    spread: float | None
    at_scale: bool
    agrees: bool | None
    verdict: Verdict

    @property
    def shown(self) -> str:
        """The value with its spread and count."""
        if self.value is None:
            return "–"
        if self.spread is not None:
            spread = format(self.spread, self.claim.measure.format)
            return f"{self.claim.shown(self.value)} ± {spread} (n = {self.count})"
        return f"{self.claim.shown(self.value)} (n = {self.count})"


def load(study: str | None = None) -> list[Claim]:
    """Return the claims of one study, or of all, in the order of their files."""
    wanted = studies.names() if study is None else (study,)
    return [claim for name in wanted for claim in _from_file(file_of(name), name)]


def file_of(study: str) -> Path:
    """Return the file of a study's claims."""
    return FOLDER / studies.paper_of(study) / f"{study}.yaml"


def _from_file(path: Path, study: str) -> list[Claim]:
    if not path.is_file():
        raise InputError(f"study '{study}' has no claims: expected claims/{path.parent.name}/{path.name}")
    try:
        entries = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise InputError(f"{path.name} is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(entries, list):
        raise InputError(f"{path.name} must be a list of claims")
    claims = []
    for entry in entries:
        try:
            claims.append(Claim.model_validate(entry))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the claim"
            name = entry.get("id", "without id") if isinstance(entry, dict) else "not a mapping"
            raise InputError(f"{path.name}, claim '{name}': {place}: {first['msg']}") from error
        if claims[-1].study != study:
            raise InputError(f"{path.name}, claim '{claims[-1].id}': its study is '{claims[-1].study}', not '{study}'")
    doubled = {claim.id for claim in claims if [c.id for c in claims].count(claim.id) > 1}
    if doubled:
        raise InputError(f"{path.name}: claim '{sorted(doubled)[0]}' stands twice")
    return claims


def judge(claim: Claim, record: Record | None) -> Judgement:
    """Measure a claim on a record and say what that means."""
    if record is None:
        return Judgement(claim, None, 0, None, False, None, "not run")
    at_scale = reaches(claim, record.parameters)
    chosen = _selected(claim, record, may_lack=record.profile != "paper" and not at_scale)
    if not chosen:
        return Judgement(claim, None, 0, None, False, None, "not run")
    values = pd.Series([line[claim.measure.column] for line in chosen], dtype=float)
    # A row that sums up many samples says how many.
    count = sum(int(line.get("count") or 1) for line in chosen)
    value = _reduced(values, claim)
    spread = float(values.std()) if claim.measure.reduce == "mean" and len(values) > 1 else None
    agrees = claim.rule.holds(value, claim.published)
    if not at_scale:
        verdict: Verdict = "trend only"
    elif not agrees:
        verdict = "not reproduced"
    else:
        verdict = "better" if _beats(claim, value) else "reproduced"
    return Judgement(claim, value, count, spread, at_scale, agrees, verdict)


def reaches(claim: Claim, parameters: Mapping[str, Any]) -> bool:
    """Whether parameters are of the scale that a claim needs."""
    return all(_enough(parameters.get(name), needed) for name, needed in claim.needs.items())


def check(study: studies.Study) -> None:
    """Raise a clear error if a claim asks for what its study's paper profile does not have: it could not be judged."""
    wanted = studies.parameters(study, "paper")
    offered, trials = wanted.model_dump(), study.module.trials(wanted)
    for claim in load(study.name):
        for name, values in claim.measure.where.items():
            allowed = values if isinstance(values, list) else [values]
            if any(name in inputs for inputs in trials) and not any(_among(t.get(name), allowed) for t in trials):
                raise InputError(f"claim '{claim.id}' selects {name} = {values}, which no trial of '{study.name}' has")
        for name, needed in claim.needs.items():
            if name not in offered:
                raise InputError(f"claim '{claim.id}' needs {unknown('parameter', name, offered)}")
            if not _enough(offered[name], needed) and not claim.stand_in:
                raise InputError(
                    f"claim '{claim.id}' needs {name} = {needed}, and the paper profile of '{study.name}' has "
                    f"{offered[name]}: it could never be judged"
                )


def _selected(claim: Claim, record: Record, *, may_lack: bool) -> list[dict[str, Any]]:
    """Return the rows that measure a claim, each with its trial's inputs.

    There may be none: a smaller run that leaves the claim's network out, say, has not run the claim, and that is no
    mistake.
    """
    column, where = claim.measure.column, claim.measure.where
    lines = [trial.inputs | row for trial in record.trials for row in trial.rows]
    names = {name for line in lines for name in line}
    for name, verb in (*((name, "selects by") for name in where), (column, "measures")):
        if name not in names and not may_lack:
            known = ", ".join(sorted(names))
            raise InputError(f"claim '{claim.id}' {verb} '{name}', which its study does not report: it has {known}")
    wanted = {name: value if isinstance(value, list) else [value] for name, value in where.items()}
    chosen = [line for line in lines if all(_among(line.get(name), values) for name, values in wanted.items())]
    # A row of another part of the study has no such column; that is not a NaN that was measured.
    chosen = [line for line in chosen if line.get(column) is not None]
    if not chosen and not may_lack:
        raise InputError(
            f"claim '{claim.id}' selects no row of '{record.study}' at the {record.profile} profile: {where}"
        )
    if not all(isinstance(line[column], int | float) for line in chosen):
        raise InputError(f"claim '{claim.id}' measures '{column}', which is not a number in every row")
    return chosen


def _among(value: Any, wanted: list[Any]) -> bool:
    # True equals 1, but a claim about `bias: true` does not mean the rows with one class.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in wanted)


def _reduced(values: pd.Series[float], claim: Claim) -> float:
    how = claim.measure.reduce
    if how == "count":
        return float(len(values))
    if how == "share":
        return 100 * float(values.mean())
    if how == "only":
        if len(values) != 1:
            raise InputError(f"claim '{claim.id}' selects {len(values)} rows where it needs one")
        return float(values.iloc[0])
    # A NaN is a failed trial, and a mean that leaves it out would hide it.
    return float(getattr(values, how)(skipna=False))


def _enough(given: Any, needed: Any) -> bool:
    # A list among the parameters, of networks say, is enough if one of it is.
    if isinstance(given, list):
        return any(_enough(one, needed) for one in given)
    if isinstance(needed, list):
        return given in needed
    if isinstance(needed, int | float) and not isinstance(needed, bool):
        return isinstance(given, int | float) and given >= needed
    return bool(given == needed)


def _beats(claim: Claim, value: float) -> bool:
    if claim.better is None or not isinstance(claim.published, int | float):
        return False
    return value > claim.published if claim.better == "higher" else value < claim.published


def failing(fresh: Mapping[str, Record]) -> list[Line]:
    """Return the claims of all studies that were measured at the scale they need, and fail."""
    return [line for line in lines(fresh) if line.failing]


@dataclass(frozen=True)
class Line:
    """A claim judged on what is recorded and on this run; the verdict comes from the larger scale."""

    recorded: Judgement
    fresh: Judgement

    @property
    def claim(self) -> Claim:
        """The claim."""
        return self.fresh.claim

    @property
    def deciding(self) -> Judgement:
        """The judgement that counts: the recorded one where it was made at the claim's scale, else the best one."""
        ranked = [self.recorded, self.fresh]
        return max(ranked, key=lambda j: (j.at_scale, j.value is not None))

    @property
    def verdict_text(self) -> str:
        """The verdict, and for a trend whether it points the right way."""
        verdict = self.deciding.verdict
        if verdict != "trend only":
            return verdict
        return "trend only (agrees)" if self.deciding.agrees else "trend only (disagrees)"

    @property
    def failing(self) -> bool:
        """Whether the claim was measured at the scale it needs, here or on record, and fails."""
        return "not reproduced" in (self.recorded.verdict, self.fresh.verdict)


def lines(fresh: Mapping[str, Record], study: str | None = None) -> list[Line]:
    """Judge every claim on its recorded result and on the fresh record of its study, where there is one."""
    kept = {name: records.recorded(name) for name in (studies.names() if study is None else (study,))}
    return [Line(judge(claim, kept[claim.study]), judge(claim, fresh.get(claim.study))) for claim in load(study)]


def verdicts(record: Record) -> Table:
    """Return a study's claims beside what is recorded and what this run found."""
    return _table(
        lines({record.study: record}, record.study),
        caption="The claims on this page, and what was measured.",
        name=f"tab-{record.study}-verdicts",
    )


def scoreboard(fresh: Mapping[str, Record], study: studies.Study) -> Table:
    """Return all claims of a study, as the scoreboard of the book shows them."""
    return _table(lines(fresh, study.name), caption=f"{study.title}.", name=f"tab-scoreboard-{study.name}")


def _table(judged: list[Line], caption: str, name: str) -> Table:
    frame = pd.DataFrame(
        {
            "place": [line.claim.place for line in judged],
            "claim": [line.claim.statement for line in judged],
            "paper": [_published(line.claim) for line in judged],
            "holds if": [line.claim.rule.text() for line in judged],
            "recorded": [line.recorded.shown for line in judged],
            "this run": [line.fresh.shown for line in judged],
            "verdict": [line.verdict_text for line in judged],
        }
    )
    said = [(line.claim.place, text) for line in judged for text in (line.claim.note, line.claim.stand_in) if text]
    # What is said of many claims of one place is said once.
    notes = " ".join(f"{place}: {text}" for place, text in dict.fromkeys(said))
    if len(judged) <= MANY:
        return Table(frame, caption, name, notes, badges="verdict", kind="claims")
    counts = Counter(line.verdict_text for line in judged)
    tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return Table(frame, f"{caption} {len(judged)} claims: {tally}.", name, notes, badges="verdict", kind="claims long")


def _published(claim: Claim) -> str:
    if claim.ours:
        return "ours"
    return "in words" if claim.published is None else claim.shown(claim.published)
