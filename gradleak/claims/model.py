"""A claim as data: what is measured, what is published, and the rule under which the claim counts as reproduced.

A paper's claim is decided by a measurement on the network, the data, the resolution and the number of steps that the
paper used (`setting`), with at least as many samples and starts (`needs`). A measurement in another setting is a
*stand-in*: it agrees or disagrees with the paper, but does not reproduce the claim. A measurement in the paper's
setting with fewer samples is a *trend*. Differences without influence are stated in `immaterial`, with the reason.
Only a method of our own, in the paper's setting, can be better than the paper. Our own claims are predictions or
findings, and hold or fail.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gradleak.claims import rounding
from gradleak.runs.records import Strict

Number = int | float
# The ends of the scales of measures other than shares in per cent and errors, which are never below 0.
SCALES = dict.fromkeys(("classes", "f1", "instances", "precision", "recall"), (0.0, 1.0)) | {"ssim": (-1.0, 1.0)}
# Measures of which less is better.
ERROR = re.compile("error|lpips")
# A number in the text that a paper states in place of a number.
NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Measure(Strict):
    """The rows of a record that measure a claim, and how they are reduced to one number.

    Attributes:
        where: The required value of each column that selects rows, or a list of alternative values.
        column: The column that is measured.
        reduce: The statistic; "share" is the percentage of rows in which the column is true, and "only" is the value
            of a single row.
        format: The format specification of the value.
        samples: The column with the number of samples that a row summarises; a row without it is one sample.
    """

    where: dict[str, Any] = Field(default_factory=dict)
    column: str
    reduce: Literal["mean", "median", "min", "max", "sum", "share", "only"]
    format: str = ".3g"
    samples: str = "count"


class Within(Strict):
    """The allowed distance from the published value; `below` is the distance on the lower side if that differs."""

    absolute: Number = 0
    relative: Number = 0
    below: Number | None = None


class Central(Strict):
    """The rule for a published value that comes from a single random draw.

    Attributes:
        share: The published value must be among the central `share` percent of our draws.
        near: The largest distance between the published value and the mean of our draws.
        draws: The least number of our draws.
    """

    share: Number = 80
    near: Number
    draws: int = Field(30, ge=2)

    def holds(self, published: float, draws: Sequence[float]) -> bool:
        """Whether the published value is among the central draws; equal draws have no spread to compare it with."""
        if len(draws) < self.draws or min(draws) == max(draws):
            return False
        cuts = statistics.quantiles(draws, n=1000, method="inclusive")
        tail = 5 * (100 - self.share)
        return bool(cuts[round(tail) - 1] <= published <= cuts[round(1000 - tail) - 1])


class Rule(Strict):
    """The rule under which a measured value reproduces a claim; exactly one of the fields is set.

    Attributes:
        at_most: The largest accepted value.
        at_least: The smallest accepted value.
        within: The accepted distance from the published value; a number is an absolute distance.
        between: The smallest and the largest accepted value.
        central: A condition on the published value and all measured rows.

    Examples:
        >>> Rule(within=2).holds(21.5, published=20), Rule(at_least=90).text()
        (True, '≥ 90')
    """

    at_most: Number | None = None
    at_least: Number | None = None
    within: Within | None = None
    between: tuple[Number, Number] | None = None
    central: Central | None = None

    @field_validator("within", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        return {"absolute": value} if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _one(self) -> Rule:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"a rule is exactly one of at_most, at_least, within, between, central; got {given or 'none'}"
            )
        return self

    def _interval(self, published: Any) -> tuple[float, float, float]:
        """Return the smallest and the largest accepted distance from a value, and this value."""
        if self.within is not None:
            above = self.within.absolute + self.within.relative * abs(published)
            return -(above if self.within.below is None else self.within.below), above, published
        if self.central is not None:
            return -self.central.near, self.central.near, published
        least, most = self.between or (self.at_least, self.at_most)
        return -math.inf if least is None else least, math.inf if most is None else most, 0

    def accepted(self, published: Any) -> tuple[float, float]:
        """Return the smallest and the largest value that the rule accepts."""
        least, most, origin = self._interval(published)
        return origin + least, origin + most

    def holds(self, value: float, published: Any, draws: Sequence[float] = ()) -> bool:
        """Whether a value follows the rule, which NaN never does; `draws` are the values of the rows behind it."""
        # Compare the distance, because the ends of the accepted interval would be rounded.
        least, most, origin = self._interval(published)
        return bool(least <= value - origin <= most) and (self.central is None or self.central.holds(published, draws))

    def limits(self) -> set[float]:
        """Return the limits of a rule that does not compare with a published number."""
        return {float(limit) for limit in (self.at_most, self.at_least, *(self.between or ())) if limit is not None}

    def text(self) -> str:
        """Return the rule as a short text, such as "≤ 2"."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        if self.between is not None:
            return f"{self.between[0]:g} … {self.between[1]:g}"
        if self.central is not None:
            return f"± {self.central.near:g}, in the central {self.central.share:g} % of {self.central.draws} draws"
        assert self.within is not None
        if self.within.below is not None:
            return f"{self.within.below:g} below to {self.within.absolute:g} above"
        absolute = f"± {self.within.absolute:g}" if self.within.absolute else ""
        relative = f"± {100 * self.within.relative:.0f} %" if self.within.relative else ""
        return f"{absolute} {relative}".strip()


# The kinds of changes. A rule may be made looser only if it was stricter than the paper's sentence.
ChangeKind = Literal[
    "wording", "measure", "rule tightened", "rule made looser", "scale", "method", "written after the run"
]

# The causes for which a claim fails or disagrees, in the scoreboard's order, with what each means.
CAUSES = {
    "the paper contradicts itself": "Its text, its numbers and its code do not agree with each other.",
    "the statement does not hold": "It was measured in the paper's setting, and the reason why it is false is known.",
    "details are not published": "The number depends on something that neither the paper nor its code states.",
    "chance": "The paper's number comes from a single draw, and other draws lie as far away.",
    "our prediction was wrong": "A prediction of ours, or a limit that we chose ourselves, was not met.",
    "a stand-in was measured": "Another network, dataset or length of the search stands in for the paper's.",
    "too few samples": "The paper's setting was measured with fewer samples or starts than the paper had.",
    "not explained yet": "We do not know the cause.",
}


class Change(Strict):
    """A change of a claim after a measurement, or that the claim was written after it; `why` also states the date."""

    kind: ChangeKind
    why: str


class Immaterial(Strict):
    """A value that differs from the paper's without influence on a claim, and the reason."""

    value: Any
    why: str


class Claim(Strict):
    """One statement of a paper or of ours, and the measurement that can confirm it.

    Attributes:
        id: The unique name of the claim.
        paper: The citation key of the paper.
        place: The part of the paper that states the claim.
        statement: The claim in words.
        study: The study that measures the claim.
        measure: What is measured.
        published: The published number, or a text.
        unit: The unit of the value.
        rule: The rule under which the claim holds.
        limit: What the rule's limit is where `published` has no number: "" if it is our choice, "rounding" if it leaves
            room for rounding errors or few exceptions alone, "sentence" if the paper's sentence means this limit.
        method: Whether a published method is measured, or our own; only our own can be `better`.
        better: The direction in which a value beyond the published one is better.
        protocol: The change of a published method, in words.
        setting: The paper's network, dataset, resolution and steps, by the names of the record's columns or of the
            study's parameters; "any" if the claim is about every gradient.
        used: The study's values for the setting where neither a column nor a parameter states them.
        needs: The paper's numbers of samples and starts, by parameter.
        immaterial: Values that may differ from the paper's, with reasons.
        ours: "prediction" for our own claim from before the run, "finding" for one from after it, "" for a paper's.
        note: A remark, such as the reason why the claim fails.
        cause: The cause for which the claim fails, where it does and the verdict does not tell it; None elsewhere.
        stand_in: What is measured instead of the paper's setting, in words.
        changed: The changes of the claim after a measurement.
        table: The title of the published table, for a claim that is one of its cells.
        group: The group of rows in the table, or "".
        row: The row in the table.
        column: The column in the table.
        heads: What the table and the statement show in place of some of these names, which are part of the id.
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
    limit: Literal["", "rounding", "sentence"] = ""
    method: Literal["published", "own"] = "published"
    better: Literal["higher", "lower"] | None = None
    protocol: str = ""
    setting: dict[str, Any] | Literal["any"] = Field(default_factory=dict)
    used: dict[str, Any] = Field(default_factory=dict)
    needs: dict[str, Any] = Field(default_factory=dict)
    immaterial: dict[str, Immaterial] = Field(default_factory=dict)
    ours: Literal["", "prediction", "finding"] = ""
    note: str = ""
    cause: str | None = None
    stand_in: str = ""
    changed: tuple[Change, ...] = ()
    table: str = ""
    group: str = ""
    row: str = ""
    column: str = ""
    heads: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _policy(self) -> Claim:
        compares = self.rule.within or self.rule.central or self.better
        if compares and not isinstance(self.published, int | float):
            raise ValueError("'within', 'central' and 'better' need a published number, and there is none")
        if self.cause and self.cause not in CAUSES:
            raise ValueError(f"its cause is one of {', '.join(CAUSES)}; got '{self.cause}'")
        if self.cause and self.stand_in:
            raise ValueError("a stand-in decides nothing, so the claim cannot fail: leave out its cause")
        if self.ours:
            for name in ("better", "setting", "stand_in", "immaterial", "protocol"):
                if getattr(self, name):
                    raise ValueError(f"a claim of ours has no {name}: that field is for a paper's claim")
            return self
        if self.better and self.method != "own":
            raise ValueError("'better' is for a method of our own: a published one is reproduced or not")
        if not self.setting:
            raise ValueError("a paper's claim must state its setting: the paper's network, data and steps")
        return self

    @property
    def read(self) -> bool:
        """Whether a paper's claim rests on our reading: its limit is our choice, or was made looser after the run."""
        if self.ours:
            return False
        looser = any(change.kind == "rule made looser" for change in self.changed)
        stated = {0.0, *(float(number) for number in NUMBER.findall(str(self.published or "")))}
        return looser or not (
            isinstance(self.published, int | float) or self.limit or stated.issuperset(self.rule.limits())
        )

    @property
    def open_ended(self) -> bool:
        """Whether a two-sided rule reaches the end of its measure's scale, so that only one of its limits can fail."""
        if self.rule.within is None:
            return False
        error = ERROR.search(self.measure.column)
        scale = (0.0, math.inf) if error else SCALES.get(self.measure.column, (-math.inf, math.inf))
        least, most = (0.0, 100.0) if self.unit == "%" else scale
        low, high = self.rule.accepted(self.published)
        return low <= least or high >= most

    def beats(self, value: float) -> bool:
        """Whether a value is better than the published value, in the claim's direction `better`."""
        if self.better is None or not isinstance(self.published, int | float):
            return False
        return value > self.published if self.better == "higher" else value < self.published

    def holds(self, value: float, draws: Sequence[float] = ()) -> bool:
        """Whether a value follows the rule or is better than the published value, which NaN never does."""
        return self.beats(value) or self.rule.holds(value, self.published, draws)

    def accepted(self) -> tuple[float, float]:
        """Return the smallest and the largest value with which the claim holds."""
        least, most = self.rule.accepted(self.published)
        return (-math.inf if self.better == "lower" else least, math.inf if self.better == "higher" else most)

    @property
    def shown_names(self) -> tuple[str, str, str]:
        """The group, the row and the column as the table shows them."""
        group, row, column = (self.heads.get(name, name) for name in (self.group, self.row, self.column))
        return group, row, column

    @property
    def rule_text(self) -> str:
        """The rule, with the direction in which values are better, as a short text."""
        return self.rule.text() + (f" or {self.better}" if self.better and self.rule.within else "")

    @property
    def remarks(self) -> list[str]:
        """The texts shown beside the claim: the note, the stand-in, immaterial differences, changes, other verdicts."""
        immaterial = [
            f"{name} {'≥' if isinstance(entry.value, int | float) else '='} {entry.value} is accepted in place of the "
            f"paper's value: {entry.why}"
            for name, entry in self.immaterial.items()
        ]
        changed = [f"Changed ({entry.kind}): {entry.why}" for entry in self.changed]
        other = rounding.verdicts(self.id)
        ends = "The rule's interval reaches the end of the scale, so that only values on one side of it fail."
        rule = [ends] if self.open_ended else []
        return [text for text in (self.note, self.stand_in, *immaterial, *rule, *changed, *other) if text]

    def number(self, value: Any) -> str:
        """Return a value of this claim as text in its format, without its unit."""
        if value is None:
            return "–"
        if not isinstance(value, int | float):
            return str(value)
        text = format(value, self.measure.format)
        return "0" if value == 0 and "e" in text else text.replace("%", " %")

    def formatted(self, value: Any) -> str:
        """Return a value of this claim as text in its format, with its unit."""
        text = self.number(value)
        # A published text such as "over 98" ends with a number and gets the unit; "outperforms" does not.
        return f"{text} {self.unit}".strip() if text[-1:].isdigit() else text
