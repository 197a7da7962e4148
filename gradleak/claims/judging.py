"""Judge claims: measure a claim on a record, and compare the value with the claim's rule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from gradleak.claims.model import ERROR, Claim
from gradleak.errors import InputError
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record, exactly

Verdict = Literal[
    "reproduced", "better", "not reproduced", "agrees, as we read it", "disagrees, as we read it", "no evidence",
    "stand-in: agrees", "stand-in: disagrees", "trend: agrees", "trend: disagrees",
    "holds", "fails", "not run",
]  # fmt: skip
# The verdicts that decide a claim, because it was measured at the claim's scale.
DECIDED: frozenset[Verdict] = frozenset(
    {"reproduced", "better", "not reproduced", "agrees, as we read it", "disagrees, as we read it", "holds", "fails"}
)
# The verdicts on claims that were measured at their scale and do not hold.
FAILED: frozenset[Verdict] = frozenset({"not reproduced", "disagrees, as we read it", "fails"})
# The causes that follow from the verdict. They need not be stated with the claim.
DERIVED: dict[Verdict, str] = {
    "stand-in: disagrees": "a stand-in was measured",
    "trend: disagrees": "too few samples",
    "fails": "our prediction was wrong",
}

# The attackers that use nothing of what was sent, by their names in the columns that name a row's attacker.
TRIVIAL = frozenset({"guess", "guess, drawn", "constant", "noise", "mean colour", "grey", "one direction"})
ATTACKERS = ("attack", "run")
# Columns in which an attacker who answers nothing gets 0.
FOUND = (
    "accuracy", "back", "bag_exact", "certified", "class_right", "confirmed", "counted_zero", "drawn", "drawn_idlg",
    "drawn_known", "exact", "f1", "features_found", "guaranteed", "identified", "idlg", "inputs", "labels",
    "labels_found", "opened", "oracle", "over_40", "over_flat", "precision", "reached", "recall", "recognisable",
    "right", "right_share", "searched_right", "shown", "square_right", "success", "unique", "unique_right",
    "unique_share", "whole", "within_one", "within_tenth",
)  # fmt: skip
# What an attacker gets, by column, who answers nothing, who gives the mean of other images (12.5 to 12.7 dB on the
# photographs, CIFAR-10 and Flowers-17; SSIM and LPIPS on CIFAR-10), and who gives every class the same probability.
ANSWERS = {
    "an empty answer": dict.fromkeys(FOUND, 0.0) | {"word_errors": 1.0},
    "the mean of other images": {"ssim": 0.12, "lpips": 0.51}
    | dict.fromkeys(("psnr", "eight_bit", "image-psnr", "scaled"), 12.6),
    "equal probabilities": {"label_error": 1.35, "mean_error": 1.35, "start_label_error": 1.35},
}


@dataclass(frozen=True)
class Judgement:
    """The judgement of a claim on a record.

    Attributes:
        claim: The claim.
        value: The measured value; None if nothing was measured.
        count: The number of samples behind the value.
        spread: The standard deviation of the rows' values, if the value is a mean of several rows.
        agrees: Whether the value follows the claim's rule; None if nothing was measured.
        verdict: The verdict.
        differs: The names in the claim's setting whose measured values differ from the paper's.
        trivial: The attacker without any knowledge who meets the rule as well, so that the claim has no evidence; "" if
            none does.
    """

    claim: Claim
    value: float | None = None
    count: int = 0
    spread: float | None = None
    agrees: bool | None = None
    verdict: Verdict = "not run"
    differs: tuple[str, ...] = ()
    trivial: str = ""

    @property
    def undecided(self) -> bool:
        """Whether a further measurement could decide the claim."""
        return self.verdict not in DECIDED and self.verdict != "no evidence"

    @property
    def text(self) -> str:
        """The value alone with its unit, as a text."""
        return self.claim.formatted(self.value)

    @property
    def cases(self) -> str:
        """A share of cases as their numbers, such as "22 of 24"."""
        if self.claim.measure.reduce != "share" or self.value is None:
            raise InputError(f"claim '{self.claim.id}' is no measured share of cases")
        return f"{round(self.value * self.count / 100):,} of {self.count:,}"

    @property
    def with_spread(self) -> str:
        """The value with its spread and count, as a text."""
        return "–" if self.value is None else f"{self.text_and_spread} (n = {self.count})"

    @property
    def text_and_spread(self) -> str:
        """The value with its spread, as a text."""
        return self.text + ("" if self.spread is None else f" ± {format(self.spread, self.claim.measure.format)}")


@dataclass(frozen=True)
class Line:
    """The judgements of a claim on the recorded run and on the new run."""

    recorded: Judgement
    fresh: Judgement

    @property
    def claim(self) -> Claim:
        """The claim."""
        return self.fresh.claim

    @property
    def deciding(self) -> Judgement:
        """The judgement that counts: first one at the claim's scale, then one with a value, then the recorded one."""
        judgements = [self.recorded, self.fresh]
        return max(judgements, key=lambda judged: (judged.verdict in DECIDED, judged.value is not None))

    @property
    def verdict(self) -> Verdict:
        """The verdict that counts."""
        return self.deciding.verdict

    @property
    def verdict_text(self) -> str:
        """The verdict, with the change of the published method in brackets, if there is one."""
        changed = self.claim.protocol and self.verdict != "not run"
        return f"{self.verdict} ({self.claim.protocol})" if changed else self.verdict

    @property
    def failing(self) -> bool:
        """Whether the claim fails at the scale that it needs, in the recorded run or in the new run."""
        return not FAILED.isdisjoint((self.recorded.verdict, self.fresh.verdict))

    @property
    def disagrees(self) -> bool:
        """Whether the claim fails or disagrees, so that it needs a cause."""
        return self.failing or self.verdict in DERIVED

    @property
    def cause(self) -> str | None:
        """The cause for which the claim fails or disagrees; None for other claims, and where no cause is stated."""
        return (self.claim.cause or DERIVED.get(self.verdict)) if self.disagrees else None


def judge(claim: Claim, record: Record | None) -> Judgement:
    """Measure a claim on a record and return the verdict; without rows that measure it, the verdict is "not run"."""
    if record is None or not (chosen := selected(claim, record)):
        return Judgement(claim)
    # Where rows of the paper's setting lie beside those of a stand-in, they alone count.
    chosen = [row for row in chosen if not differences(claim, [row], record.parameters)] or chosen
    values = pd.Series([line[claim.measure.column] for line in chosen], dtype=float)
    count = sum(int(line.get(claim.measure.samples, 1)) for line in chosen)
    value = _reduced(values, claim)
    spread = float(values.std()) if claim.measure.reduce == "mean" and len(values) > 1 else None
    agrees = claim.holds(value, list(values))
    differs = differences(claim, chosen, record.parameters)
    reached = reaches(claim, record.parameters) and _finished(claim, record, chosen)
    trivial = _trivial(claim, record) if agrees else ""
    verdict = _verdict(claim, value, agrees=agrees, trivial=bool(trivial), differs=bool(differs), reached=reached)
    return Judgement(claim, value, count, spread, agrees, verdict, differs, trivial)


def _trivial(claim: Claim, record: Record) -> str:
    """Return an attacker who uses nothing of what was sent and meets a claim that asks for success; "" if none does.

    That an attack finds little is no success, and a guess may find as little.
    """
    measure = claim.measure
    if (claim.rule.at_least if ERROR.search(measure.column) else claim.rule.at_most) is not None:
        return ""
    for answer, columns in ANSWERS.items():
        value = columns.get(measure.column, math.nan) * (100 if measure.reduce == "share" else 1)
        if claim.holds(value, [value]):
            return answer
    for name in ATTACKERS:
        own = measure.where.get(name)
        if not isinstance(own, str) or own in TRIVIAL:
            continue
        others = measure.model_copy(update={"where": measure.where | {name: list(TRIVIAL)}})
        rows = selected(claim.model_copy(update={"measure": others}), record)
        for attacker in dict.fromkeys(str(row[name]) for row in rows):
            values = pd.Series([row[measure.column] for row in rows if row[name] == attacker], dtype=float)
            if (measure.reduce != "only" or len(values) == 1) and claim.holds(_reduced(values, claim), list(values)):
                return attacker
    return ""


def _finished(claim: Claim, record: Record, chosen: list[Columns]) -> bool:
    """Whether no trial is waiting that measures a claim, and the rows that measure it come from runs that reach it.

    A claim is measured by the parts of the study that have rows for it.
    """
    parts = {line.get("part", "") for line in chosen}
    if any(inputs.get("part", "") in parts and may_measure(claim, inputs) for inputs in record.waiting):
        return False
    runs = {id(parameters): parameters for line in chosen if (parameters := record.under.get(id(line)))}
    return all(reaches(claim, record.parameters | parameters) for parameters in runs.values())


def _verdict(claim: Claim, value: float, *, agrees: bool, trivial: bool, differs: bool, reached: bool) -> Verdict:
    if trivial:
        return "no evidence"
    if differs:
        return "stand-in: agrees" if agrees else "stand-in: disagrees"
    if not reached:
        return "trend: agrees" if agrees else "trend: disagrees"
    if claim.ours:
        return "holds" if agrees else "fails"
    if claim.beats(value):
        return "better"
    if claim.read:
        return "agrees, as we read it" if agrees else "disagrees, as we read it"
    return "reproduced" if agrees else "not reproduced"


def reaches(claim: Claim, parameters: Columns) -> bool:
    """Whether a run with these parameters has as many samples and starts as a claim needs."""
    return all(_allowed(claim, name, parameters.get(name), needed) for name, needed in claim.needs.items())


def may_measure(claim: Claim, inputs: Columns) -> bool:
    """Whether a trial with these inputs may have rows that measure a claim, as far as its inputs say."""
    return all(
        among(inputs[name], value if isinstance(value, list) else [value])
        for name, value in claim.measure.where.items()
        if name in inputs
    )


def differences(claim: Claim, lines: Iterable[Columns], parameters: Columns) -> tuple[str, ...]:
    """Return the names in a claim's setting for which some row has another value than the paper.

    If a row has no such column, the value is the one in the claim's `used`, or else the parameter of the run. A value
    that is stated nowhere counts as different.

    Args:
        claim: The claim.
        lines: The rows that measure the claim, with their trials' inputs.
        parameters: The parameters of the run.
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
    immaterial = claim.immaterial.get(name)
    return enough(given, wanted) or (immaterial is not None and enough(given, immaterial.value))


def enough(given: Any, needed: Any) -> bool:
    """Whether the value of a parameter satisfies what a claim needs.

    A number must be at least as large as the needed number, and any other value must be equal. If `given` is a list,
    such as networks or sizes, it must contain all needed values. If only `needed` is a list, its values are
    alternatives.

    Examples:
        >>> enough(100, 50), enough([1, 8, 32], [8, 32]), enough("lenet", ["lenet", "vgg16"])
        (True, True, True)
    """
    if isinstance(given, list):
        return all(among(value, given) for value in (needed if isinstance(needed, list) else [needed]))
    if isinstance(needed, list):
        return among(given, needed)
    if isinstance(needed, int | float) and not isinstance(needed, bool):
        return isinstance(given, int | float) and not isinstance(given, bool) and given >= needed
    return bool(given == needed)


def among(value: Any, wanted: list[Any]) -> bool:
    """Whether a row's value is one of the values that a claim selects."""
    # In Python True equals 1, but a claim that selects true must not select the number 1.
    return value in wanted and any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in wanted)


def selected(claim: Claim, record: Record) -> list[dict[str, Any]]:
    """Return the rows that measure a claim, each with its trial's inputs; a value that is no number is an error."""
    column = claim.measure.column
    alike = []
    for name, value in claim.measure.where.items():
        places = record.places[name]
        wanted = value if isinstance(value, list) else [value]
        alike.append(set().union(*(places.get(exactly(one), ()) for one in wanted)))
    lines = [record.lines[place] for place in sorted(set.intersection(*alike))] if alike else record.lines
    # Rows of other parts of the study may lack the column. Such a missing value is not a measured NaN.
    chosen = [line for line in lines if line.get(column) is not None]
    if not all(isinstance(line[column], int | float) for line in chosen):
        raise InputError(f"claim '{claim.id}' measures '{column}', which is not a number in every row")
    return chosen


def _reduced(values: pd.Series[float], claim: Claim) -> float:
    statistic = claim.measure.reduce
    if statistic == "share":
        return 100 * float(values.mean())
    if statistic == "only":
        if len(values) != 1:
            raise InputError(f"claim '{claim.id}' selects {len(values)} rows where it needs one")
        return float(values.iloc[0])
    # A NaN comes from a failed trial, which a mean without it would hide.
    return float(getattr(values, statistic)(skipna=False))
