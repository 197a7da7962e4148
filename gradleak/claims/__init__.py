"""Claims: the statements of the papers as data, and the code that judges them on records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gradleak.claims import kept, shown
from gradleak.claims.entries import expanded
from gradleak.claims.judging import DECIDED, Judgement, Line, judge, reaches
from gradleak.claims.model import Claim
from gradleak.claims.opening import Opening
from gradleak.claims.shown import Tables, causes_table, counted, in_words, of_ours, of_papers, row, style, tally
from gradleak.errors import InputError, first_line
from gradleak.runs import records, studies
from gradleak.runs.records import Record
from gradleak.show.provenance import Shown

__all__ = [
    "DECIDED", "Claim", "Judgement", "Line", "Opening", "Tables", "causes_table", "counted", "file_of", "in_words",
    "judge", "judgements", "lines", "load", "loosened", "of_ours", "of_papers", "opening", "published", "reaches",
    "row", "rules", "style", "tally", "verdicts",
]  # fmt: skip

FOLDER = Path(__file__).parent
# The loader in C is ten times as fast as the loader in Python, but some builds of PyYAML lack it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(study: str | None = None) -> list[Claim]:
    """Return the claims of one study, or of all, in the order of their files."""
    study_names = studies.names() if study is None else (study,)
    return [claim for name in study_names for claim in _from_file(file_of(name), name)]


def file_of(study: str) -> Path:
    """Return the file of a study's claims."""
    return FOLDER / studies.paper_of(study) / f"{study}.yaml"


def _from_file(path: Path, study: str) -> list[Claim]:
    if not path.is_file():
        raise InputError(f"study '{study}' has no claims: expected claims/{path.parent.name}/{path.name}")
    claims: dict[str, Claim] = {}
    entry: dict[str, Any] = {}
    try:
        for entry in expanded(yaml.load(path.read_text("utf-8"), _Loader)):
            claim = Claim.model_validate(entry | {"paper": path.parent.name, "study": study})
            if claim.id in claims:
                raise ValueError(f"claim '{claim.id}' occurs twice")
            claims[claim.id] = claim
    except ValidationError as error:
        problem = error.errors()[0]
        location = ".".join(map(str, problem["loc"])) or "the claim"
        name = f"claim '{entry.get('id', 'without id')}'"
        raise InputError(f"{path.name}, {name}: {location}: {problem['msg']}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path.name} is not YAML: {first_line(error)}") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"{path.name}, {first_line(error)}") from error
    return list(claims.values())


def published(study: str, column: str, keys: Sequence[str]) -> dict[tuple[Any, ...], Any]:
    """Return the published values of a column.

    Args:
        study: The study.
        column: The column of the record that the claims measure.
        keys: The columns by which the claims select rows.

    Returns:
        The published values, by the tuple of the values of `keys`.
    """
    by_keys = {}
    for claim in load(study):
        where = claim.measure.where
        if claim.measure.column == column and claim.published is not None and set(keys) <= set(where):
            values = tuple(where[key] for key in keys)
            if not any(isinstance(value, list) for value in values):
                by_keys[values] = claim.published
    return by_keys


def rules(study: str) -> dict[str, Any]:
    """Return the rules of a study's claims as plain data, which a record stores."""
    return {claim.id: kept.plain(claim) for claim in load(study)}


def loosened(record: Record) -> list[str]:
    """Return a line for each rule that is looser now than when a record was made and whose claim declares no change."""
    return kept.loosened(load(record.study), record.rules or {})


def lines(fresh: Mapping[str, Record], study: str | None = None) -> list[Line]:
    """Judge every claim on the recorded run of its study and on its new run, if there is one.

    Args:
        fresh: The records of new runs, by study.
        study: Judge only the claims of this study.
    """
    recorded = {name: records.recorded(name) for name in (studies.names() if study is None else (study,))}
    return [Line(judge(claim, recorded[claim.study]), judge(claim, fresh.get(claim.study))) for claim in load(study)]


def judgements(record: Record) -> dict[str, Judgement]:
    """Judge every claim of a study on one record.

    Returns:
        The judgements, by the claims' ids.
    """
    return {claim.id: judge(claim, record) for claim in load(record.study)}


def opening(shown: Shown) -> Opening:
    """Return the box with which a page opens: its finding, its key number and a bar of its verdicts.

    The finding and the key number are those of the recorded run. Where the page shows another run, its number is added.
    """
    recorded = records.recorded(shown.study)
    summary = studies.load(shown.study).summary(recorded) if recorded else None
    return Opening(shown, lines({shown.study: shown.this}, shown.study), summary)


def verdicts(record: Record) -> Tables:
    """Return the tables of a study's claims with the recorded values and those of this run."""
    name = f"tab-{record.study}-verdicts"
    return shown.tables(lines({record.study: record}, record.study), " on this page", name)
