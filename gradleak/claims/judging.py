"""What a record says about a claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gradleak.claims.model import Claim
from gradleak.errors import InputError
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal[
    "reproduced", "better", "not reproduced",
    "stand-in: agrees", "stand-in: disagrees", "trend: agrees", "trend: disagrees",
    "holds", "fails", "not run",
]  # fmt: skip
# The verdicts on the papers' claims, and those on ours, the best first.
OF_PAPERS: tuple[Verdict, ...] = (
    "reproduced", "better", "not reproduced",
    "stand-in: agrees", "stand-in: disagrees", "trend: agrees", "trend: disagrees", "not run",
)  # fmt: skip
OF_OURS: tuple[Verdict, ...] = ("holds", "fails", "trend: agrees", "trend: disagrees", "not run")
# Measured at the claim's scale: these verdicts alone say whether it is so.
DECIDED: frozenset[Verdict] = frozenset({"reproduced", "better", "not reproduced", "holds", "fails"})
# Measured at the claim's scale, and not what was claimed.
FAILED: frozenset[Verdict] = frozenset({"not reproduced", "fails"})


@dataclass(frozen=True)
class Judgement:
    """What a record says about a claim: the value with its count and spread, and the verdict.

    `differs` names what of the claim's setting is another one in what was measured; `at_scale` says that nothing is,
    and that there are as many samples and starts as the claim needs.
    """

    claim: Claim
    value: float | None
    count: int
    spread: float | None
    at_scale: bool
    agrees: bool | None
    verdict: Verdict
    differs: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The value with its spread and count."""
        if self.value is None:
            return "–"
        if self.spread is not None:
            spread = format(self.spread, self.claim.measure.format)
            return f"{self.claim.shown(self.value)} ± {spread} (n = {self.count})"
        return f"{self.claim.shown(self.value)} (n = {self.count})"


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
    def verdict(self) -> Verdict:
        """The verdict that counts."""
        return self.deciding.verdict

    @property
    def verdict_text(self) -> str:
        """The verdict, and what was changed about a published method."""
        changed = self.claim.protocol and self.verdict != "not run"
        return f"{self.verdict} ({self.claim.protocol})" if changed else self.verdict

    @property
    def failing(self) -> bool:
        """Whether the claim was measured at the scale it needs, here or on record, and fails."""
        return not FAILED.isdisjoint((self.recorded.verdict, self.fresh.verdict))


def judge(claim: Claim, record: Record | None) -> Judgement:
    """Measure a claim on a record and say what that means."""
    if record is None:
        return Judgement(claim, None, 0, None, False, None, "not run")
    reached = reaches(claim, record.parameters)
    # What a stand-in says instead may be that there is none, and another profile may leave a part out: nothing was run.
    lacks = record.profile != "paper" or bool(claim.stand_in)
    chosen = selected(claim, record, may_lack=lacks or not reached)
    if not chosen:
        return Judgement(claim, None, 0, None, False, None, "not run")
    import pandas as pd

    values = pd.Series([line[claim.measure.column] for line in chosen], dtype=float)
    # A row that sums up many samples says how many.
    count = sum(int(line.get("count") or 1) for line in chosen)
    value = _reduced(values, claim)
    spread = float(values.std()) if claim.measure.reduce == "mean" and len(values) > 1 else None
    agrees = claim.holds(value, list(values))
    differs = differences(claim, chosen, record.parameters)
    at_scale = reached and not differs
    verdict = _verdict(claim, value, agrees=agrees, differs=bool(differs), reached=reached)
    return Judgement(claim, value, count, spread, at_scale, agrees, verdict, differs)


def _verdict(claim: Claim, value: float, *, agrees: bool, differs: bool, reached: bool) -> Verdict:
    if differs:
        return "stand-in: agrees" if agrees else "stand-in: disagrees"
    if not reached:
        return "trend: agrees" if agrees else "trend: disagrees"
    if claim.ours:
        return "holds" if agrees else "fails"
    if claim.beats(value):
        return "better"
    return "reproduced" if agrees else "not reproduced"


def reaches(claim: Claim, parameters: Columns) -> bool:
    """Whether parameters have as many samples and starts as a claim needs."""
    return all(_allowed(claim, name, parameters.get(name), needed) for name, needed in claim.needs.items())


def differences(claim: Claim, lines: Iterable[Columns], parameters: Columns) -> tuple[str, ...]:
    """Return the names of a claim's setting that rows do not have as the paper had them.

    What a row does not say is what the study uses, or its parameter; what nothing says is taken to be different.
    """
    if claim.setting == "any":
        return ()
    given = dict(parameters) | claim.used
    rows = list(lines)
    return tuple(
        name
        for name, wanted in claim.setting.items()
        if not all(_allowed(claim, name, row[name] if name in row else given.get(name), wanted) for row in rows)
    )


def _allowed(claim: Claim, name: str, given: Any, wanted: Any) -> bool:
    lifted = claim.immaterial.get(name)
    return enough(given, wanted) or (lifted is not None and enough(given, lifted.value))


def enough(given: Any, needed: Any) -> bool:
    """Whether a value is as large as a claim needs it, or one of the words it needs.

    Of a list among the parameters, of networks or sizes say, the claim's value must be one, and all of several. Where
    a single value is given, several needed ones are alternatives.
    """
    if isinstance(given, list):
        return all(among(one, given) for one in (needed if isinstance(needed, list) else [needed]))
    if isinstance(needed, list):
        return among(given, needed)
    if isinstance(needed, int | float) and not isinstance(needed, bool):
        return isinstance(given, int | float) and not isinstance(given, bool) and given >= needed
    return bool(given == needed)


def among(value: Any, wanted: list[Any]) -> bool:
    """Whether a row's value is one of those that a claim selects."""
    # True equals 1, but a claim about `bias: true` does not mean the rows with one class.
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in wanted)


def selected(claim: Claim, record: Record, *, may_lack: bool) -> list[dict[str, Any]]:
    """Return the rows that measure a claim, each with its trial's inputs.

    There may be none: a smaller run that leaves the claim's network out, say, has not run the claim, and that is no
    mistake.
    """
    column, where, lines = claim.measure.column, claim.measure.where, record.lines
    for name, verb in (*((name, "selects by") for name in where), (column, "measures")):
        if name not in record.columns and not may_lack:
            known = ", ".join(sorted(record.columns))
            raise InputError(f"claim '{claim.id}' {verb} '{name}', which its study does not report: it has {known}")
    wanted = {name: value if isinstance(value, list) else [value] for name, value in where.items()}
    # The condition that most lines fail leaves few to look at.
    few = min((record.places(name, values) for name, values in wanted.items()), key=len, default=range(len(lines)))
    chosen = [
        lines[place] for place in few if all(among(lines[place].get(name), values) for name, values in wanted.items())
    ]
    # A row of another part of the study has no such column; that is not a NaN that was measured.
    chosen = [line for line in chosen if line.get(column) is not None]
    if not chosen and not may_lack:
        raise InputError(
            f"claim '{claim.id}' selects no row of '{record.study}' at the {record.profile} profile: {where}"
        )
    if not all(isinstance(line[column], int | float) for line in chosen):
        raise InputError(f"claim '{claim.id}' measures '{column}', which is not a number in every row")
    return chosen


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
