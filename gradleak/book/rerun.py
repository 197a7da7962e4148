"""Summarise a new run of a page: its changed parameters, and what it says of each claim beside the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak import claims
from gradleak.claims import Judgement, Line
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.studies import Study
from gradleak.wording import counted

# The most characters of a list or a name in a line.
LONGEST = 60


@dataclass(frozen=True)
class Changed:
    """A parameter that differs from the page's own value.

    Attributes:
        name: The name of the parameter.
        this: The value in this run.
        page: The page's own value, which is the default.
        recorded: The value in the recorded run; None without a record.
    """

    name: str
    this: Any
    page: Any
    recorded: Any

    @property
    def text(self) -> str:
        """The three values in words."""
        recorded = "" if self.recorded is None else f"; recorded with {brief(self.recorded)}"
        return f"{self.name} = {brief(self.this)} (the page's own value: {brief(self.page)}{recorded})"


@dataclass(frozen=True)
class Rerun:
    """A new run of a page beside the recorded run.

    Attributes:
        study: The study.
        record: The record of the new run.
        changed: The changed parameters.
        lines: The judged claims, the paper's before our own.
    """

    study: Study
    record: Record
    changed: tuple[Changed, ...]
    lines: tuple[Line, ...]

    @property
    def parameters(self) -> str:
        """The changed parameters in one line."""
        if not self.changed:
            return "parameters: the page's own"
        return "changed parameters: " + "; ".join(one.text for one in self.changed)

    def rows(self) -> list[dict[str, str]]:
        """Return a row for each claim, as texts by column."""
        return [_row(line) for line in self.lines]

    @property
    def reasons(self) -> list[str]:
        """Why this run does not judge some claims, for all of them together."""
        found = [lacking(line.fresh, self.record.parameters) for line in self.lines]
        needed, setting = (list(dict.fromkeys(one for pair in found for one in pair[place])) for place in (0, 1))
        sentences = [f"To be judged, claims need {'; '.join(needed)}."] if needed else []
        return sentences + ([f"The papers' setting is {'; '.join(setting)}."] if setting else [])

    @property
    def counts(self) -> list[str]:
        """The numbers of claims by what this run says of them: one sentence for the paper's claims, one for ours."""
        groups = (
            ("of the paper", claims.of_papers(self.lines)),
            ("of our own", claims.of_ours(self.lines)),
        )
        sentences = [_counted(whose, lines) for whose, lines in groups if lines]
        if self.lines and not any(line.fresh.verdict in claims.DECIDED for line in self.lines):
            hint = "" if self.record.profile == "paper" else " `--profile paper` takes the papers' sizes."
            sentences.append(f"This run judges no claim: it is too small, or its setting is not the papers'.{hint}")
        return sentences


def rerun(study: Study, record: Record) -> Rerun:
    """Return the summary of a new run.

    Args:
        study: The study.
        record: The record of the new run.
    """
    recorded = records.recorded(study.name)
    defaults = study.Parameters().model_dump()
    changed = tuple(
        Changed(name, value, defaults[name], recorded.parameters.get(name) if recorded else None)
        for name, value in record.parameters.items()
        if value != defaults[name]
    )
    judged = claims.lines({study.name: record}, study.name)
    return Rerun(study, record, changed, (*claims.of_papers(judged), *claims.of_ours(judged)))


def name_of(claim: claims.Claim) -> str:
    """Return a short name of a claim: the cell of a published table, or the place and the statement."""
    if claim.table:
        return f"{claim.table.partition(':')[0]}: {', '.join(filter(None, claim.shown_names))}"
    return f"{claim.place}: {claim.statement}"


def lacking(judgement: Judgement, parameters: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what a run lacks to judge a claim: the parameters that the claim needs, and the paper's setting."""
    if judgement.agrees is None or judgement.verdict in claims.DECIDED:
        return [], []
    claim = judgement.claim
    missing = [name for name in claim.needs if not claims.reaches(_needing(claim, name), dict(parameters))]
    setting = claim.setting if isinstance(claim.setting, dict) else {}
    needed = [f"{name} = {brief(claim.needs[name])}" for name in missing]
    return needed, [f"{name} = {brief(setting[name])}" for name in judgement.differs]


def in_short(judgement: Judgement) -> str:
    """Return in a few words what a run says of a claim."""
    if judgement.agrees is None:
        return "not measured"
    if judgement.verdict in claims.DECIDED:
        return "better" if judgement.verdict == "better" else "holds" if judgement.agrees else "fails"
    return "agrees, not judged" if judgement.agrees else "disagrees, not judged"


def brief(value: Any) -> str:
    """Return a value as a short text; lists without brackets, and long ones cut."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2].rstrip(' ,')} …"


def _needing(claim: claims.Claim, name: str) -> claims.Claim:
    """Return the claim with only one of its needs."""
    return claim.model_copy(update={"needs": {name: claim.needs[name]}})


def _row(line: Line) -> dict[str, str]:
    claim, before, now = line.claim, line.recorded, line.fresh
    published = "in words" if claim.published is None else claim.shown(claim.published)
    both = before.agrees is not None and now.agrees is not None
    return {
        "claim": name_of(claim),
        "paper": f"our {claim.ours}" if claim.ours else published,
        "holds if": claim.rule_text,
        "recorded": before.shown,
        "this run": now.shown,
        "verdict of this run": in_short(now),
        "as in the record": ("yes" if before.agrees == now.agrees else "no") if both else "–",
    }


def _counted(whose: str, lines: Sequence[Line]) -> str:
    decided = [line.fresh for line in lines if line.fresh.verdict in claims.DECIDED]
    open_ones = [line.fresh for line in lines if line.fresh.agrees is not None and line.fresh not in decided]
    missing = len(lines) - len(decided) - len(open_ones)
    holding, agreeing = (sum(bool(one.agrees) for one in group) for group in (decided, open_ones))
    parts = [f"{holding} hold, {len(decided) - holding} fail"] if decided else []
    parts += [
        f"{len(open_ones)} cannot be judged by this run ({agreeing} agree, {len(open_ones) - agreeing} disagree)"
    ] * bool(open_ones)
    parts += [f"{missing} not measured"] if missing else []
    return f"{counted(len(lines), 'claim')} {whose}: {'; '.join(parts)}."
