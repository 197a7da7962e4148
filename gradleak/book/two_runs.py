"""Compare two runs of a page: their parameters and machines, their claims, and the rows of trials with equal inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradleak import claims, paths, studies
from gradleak.book import rerun
from gradleak.claims import Judgement
from gradleak.errors import InputError, MissingData
from gradleak.runs import comparing, kinds, records
from gradleak.runs.kinds import Compared, Outcome
from gradleak.runs.records import Record, Trial, part_of
from gradleak.runs.trials import short, without_device
from gradleak.show import provenance
from gradleak.studies import Study
from gradleak.wording import counted

# The word that names the recorded run of the other run's page.
RECORDED = "recorded"


@dataclass(frozen=True)
class Pair:
    """A fact in which two runs differ, such as a parameter or the version of a package."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class ClaimPair:
    """A claim in two runs.

    Attributes:
        id: The id of the claim.
        claim: The claim in words.
        first: The value in the first run.
        second: The value in the second run.
        verdict_first: What the first run says of the claim.
        verdict_second: What the second run says of it.
        change: "other verdict", "judged in one run only", "value" or "none".
    """

    id: str
    claim: str
    first: str
    second: str
    verdict_first: str
    verdict_second: str
    change: str


@dataclass(frozen=True)
class Largest:
    """The largest difference of a column.

    Attributes:
        first: The value in the first run.
        second: The value in the second run.
        apart: The relative difference of measured numbers, or the ratio of two rounding errors; None for other values.
        ratio: Whether `apart` is a ratio.
        row: The number of the row in its trial.
        trial: The first inputs of the trial.
    """

    first: str
    second: str
    apart: float | None
    ratio: bool
    row: int
    trial: str

    @property
    def text(self) -> str:
        """The difference in words."""
        size = "" if self.apart is None else f"a factor of {self.apart:.3g}: " if self.ratio else f"{self.apart:.2g}: "
        return f"{size}{self.first} and {self.second} (row {self.row} of {self.trial})"


@dataclass
class Column:
    """How the values of a column agree in rows of trials with equal inputs.

    Attributes:
        part: The part of the study, "" if it has no parts.
        column: The name of the column.
        same: The number of rows with the same value.
        within: The number of rows with values that agree within the column's tolerance.
        differs: The number of rows with values that differ by more.
        largest: The largest difference.
    """

    part: str
    column: str
    same: int = 0
    within: int = 0
    differs: int = 0
    largest: Largest | None = None

    def add(self, outcome: Outcome, found: Largest | None) -> None:
        """Count a row."""
        setattr(self, outcome, getattr(self, outcome) + 1)
        if found is not None and (self.largest is None or _size(found) > _size(self.largest)):
            self.largest = found


@dataclass(frozen=True)
class Comparison:
    """Two runs of a page, compared.

    Attributes:
        study: The name of the study.
        parameters: The parameters that differ.
        provenance: The facts on machine, versions and code that differ.
        claims: Every claim in both runs.
        columns: Every column of the matched trials.
        matched: The number of trials with equal inputs, the device aside.
        only_first: The number of rows in trials that only the first run has.
        only_second: The number of rows in trials that only the second run has.
        unequal: The trials with equal inputs whose numbers of rows differ.
    """

    study: str
    parameters: list[Pair]
    provenance: list[Pair]
    claims: list[ClaimPair]
    columns: list[Column]
    matched: int
    only_first: int
    only_second: int
    unequal: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """The outcome in a few sentences."""
        changes = [pair.change for pair in self.claims]
        lines = [
            f"{counted(len(changes), 'claim')}: {changes.count('other verdict')} with another verdict, "
            f"{changes.count('judged in one run only')} judged in one run only, {changes.count('value')} with another "
            f"value only, {changes.count('none')} unchanged.",
            f"{self.matched} trials have equal inputs; rows only in the first run: {self.only_first}, only in the "
            f"second: {self.only_second}.",
        ]
        if self.matched:
            alike = sum(not column.within and not column.differs for column in self.columns)
            lines.append(f"{alike} of {len(self.columns)} columns are the same in every row of these trials.")
        else:
            names = ", ".join(pair.what for pair in self.parameters)
            lines.append(f"No rows can be compared one by one, since the inputs of all trials differ ({names}).")
        lines += [f"another number of rows: {trial}" for trial in self.unequal]
        return lines


def read_both(one: str, other: str) -> tuple[Record, Record]:
    """Return the records of two runs of a page.

    Each run is named by its record's file, by its folder, by the name of a study, whose latest run is meant, or by the
    word "recorded", which means the recorded run of the other run's page.
    """
    if one == other == RECORDED:
        raise InputError("two runs are compared: only one of them can be 'recorded'")
    if one == RECORDED:
        second = _read(other)
        return _recorded(second.study), second
    first = _read(one)
    second = _recorded(first.study) if other == RECORDED else _read(other)
    if first.study != second.study:
        raise InputError(f"runs of two pages cannot be compared: '{first.study}' and '{second.study}'")
    return first, second


def _recorded(study: str) -> Record:
    record = records.recorded(study)
    if record is None:
        raise MissingData(f"'{study}' has no recorded run")
    return record


def _read(name: str) -> Record:
    path = Path(name).expanduser()
    if not path.exists() and name in studies.names():
        path = paths.runs() / name / f"{name}.json"
        if not path.is_file():
            raise MissingData(f"there is no run of '{name}': `gradleak run {name}` makes one")
    if path.is_dir():
        known_names = set(studies.names())
        files = [file for file in sorted(path.glob("*.json")) if file.name.partition(".")[0] in known_names]
        if len(files) != 1:
            found = ", ".join(file.name for file in files) or "none"
            raise InputError(f"the folder '{name}' must have one record of a run; it has {found}")
        path = files[0]
    if not path.is_file():
        raise MissingData(
            f"there is no run '{name}': give a record's file, a run's folder, a study's name or the word 'recorded'"
        )
    return records.read(path)


def compare(first: Record, second: Record) -> Comparison:
    """Compare two runs of a page."""
    study = studies.load(first.study)
    by_inputs = {without_device(trial.inputs): trial for trial in second.trials}
    pairs = [
        (trial, by_inputs[without_device(trial.inputs)])
        for trial in first.trials
        if without_device(trial.inputs) in by_inputs
    ]
    both = {without_device(trial.inputs) for trial, _ in pairs}
    columns: dict[tuple[str, str], Column] = {}
    unequal = []
    for one, other in pairs:
        if len(one.rows) != len(other.rows):
            unequal.append(f"{len(one.rows)} and {len(other.rows)} in {short(one.inputs)}")
        for name, outcome, found in _rows(study, one, other):
            key = part_of(one), name
            columns.setdefault(key, Column(*key)).add(outcome, found)
    return Comparison(
        study=study.name,
        parameters=_differing(first.parameters, second.parameters),
        provenance=_differing(_facts(first), _facts(second)),
        claims=[_claim(judgements) for judgements in _judged(study, first, second)],
        columns=sorted(columns.values(), key=lambda column: (-column.differs, -column.within)),
        matched=len(pairs),
        only_first=sum(len(trial.rows) for trial in first.trials if without_device(trial.inputs) not in both),
        only_second=sum(len(trial.rows) for trial in second.trials if without_device(trial.inputs) not in both),
        unequal=unequal,
    )


def _facts(record: Record) -> dict[str, Any]:
    """Return the facts on the origin of a record that a reader may want to compare."""
    facts = {
        "profile": record.profile, "machine": provenance.machines(record), "date": " to ".join(record.days),
        "commit": ", ".join(dict.fromkeys(trial.commit for trial in record.trials)), "data": "; ".join(record.data),
        "seconds of all trials": f"{record.seconds:.1f}",
    }  # fmt: skip
    versions = {name: version for machine in record.machines for name, version in machine.versions.items()}
    return facts | {f"version of {name}": version for name, version in versions.items()}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Pair]:
    missing = "–"
    return [
        Pair(name, _stated(one.get(name, missing)), _stated(other.get(name, missing)))
        for name in {**one, **other}
        if one.get(name, missing) != other.get(name, missing)
    ]


def _judged(study: Study, first: Record, second: Record) -> list[tuple[Judgement, Judgement]]:
    return [(claims.judge(claim, first), claims.judge(claim, second)) for claim in claims.load(study.name)]


def _claim(judgements: tuple[Judgement, Judgement]) -> ClaimPair:
    one, other = judgements
    verdicts = rerun.in_short(one), rerun.in_short(other)
    if one.agrees != other.agrees:
        change = "other verdict"
    elif verdicts[0] != verdicts[1]:
        change = "judged in one run only"
    else:
        change = "none" if _equal(one.value, other.value) else "value"
    return ClaimPair(one.claim.id, rerun.name_of(one.claim), one.shown, other.shown, *verdicts, change)


def _equal(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


def _rows(study: Study, one: Trial, other: Trial) -> Iterator[tuple[str, Outcome, Largest | None]]:
    """Yield the outcome of every column of every pair of rows, with the difference if the values are not the same."""
    declared = comparing.columns(study)
    for number, (before, after) in enumerate(zip(one.rows, other.rows, strict=False), 1):
        for column in {**before, **after}:
            if comparing.tells_time(study, column):
                continue
            kind = kinds.kind_of(column, declared)
            compared = [
                (kinds.compared(kind, left, right, declared=column in declared), left, right)
                for _, left, right in comparing.pairs(
                    before.get(column, comparing.NOTHING), after.get(column, comparing.NOTHING)
                )
            ]
            found = [
                (how.outcome, _difference(how, left, right, number, one)) for how, left, right in compared
                if how.outcome != "same"
            ]  # fmt: skip
            yield column, *_worst(found)


def _difference(how: Compared, left: Any, right: Any, row: int, trial: Trial) -> Largest:
    return Largest(_shown(left), _shown(right), how.apart, how.kind == "rounding", row, short(trial.inputs))


def _worst(found: Sequence[tuple[Outcome, Largest]]) -> tuple[Outcome, Largest | None]:
    """Return the worst outcome of the values in one cell, with the largest difference of that outcome."""
    if not found:
        return "same", None
    outcome: Outcome = "differs" if any(outcome == "differs" for outcome, _ in found) else "within"
    return outcome, max((one for how, one in found if how == outcome), key=_size)


def _size(difference: Largest) -> float:
    return math.inf if difference.apart is None else difference.apart


def _stated(value: Any) -> str:
    return "not kept" if value is None else rerun.brief(value)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else rerun.brief(value)
