"""A claim as data: what is measured, what is published, and the rule under which it counts as reproduced.

**When a claim of a paper is decided.** It is decided where it was measured on the network, the data, the resolution
and the number of steps that the paper used (`setting`), with at least as many samples and starts (`needs`). A
measurement in another setting is a *stand-in*: it agrees with the paper or disagrees, and reproduces nothing. A
measurement in the paper's setting with fewer samples is a *trend*. A difference that does not matter is stated in
`immaterial`, with its reason. Only a method of our own, in the paper's setting, can be better than the paper. Our own
claims are predictions or findings, and hold or fail.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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
    """A distance from the published value, the same on both sides unless it is another one `below`."""

    absolute: Number = 0
    relative: Number = 0
    below: Number | None = None


class Central(_Strict):
    """That the published value, which is of one draw, is among the central `share` percent of at least `draws` draws of
    ours, and `near` their mean."""

    share: Number = 80
    near: Number
    draws: int = Field(30, ge=2)


class Rule(_Strict):
    """When a measured value counts as reproducing the claim: exactly one of these.

    `within: 2` is an absolute distance. `central` looks at all rows, and at their mean.
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

    def accepted(self, published: Any) -> tuple[float, float]:
        """Return the least and the largest value that follow the rule."""
        if self.at_most is not None:
            return -math.inf, self.at_most
        if self.at_least is not None:
            return self.at_least, math.inf
        if self.between is not None:
            return self.between
        if self.central is not None:
            return published - self.central.near, published + self.central.near
        assert self.within is not None
        distance = self.within.absolute + self.within.relative * abs(published)
        return published - (distance if self.within.below is None else self.within.below), published + distance

    def holds(self, value: float, published: Any, draws: Sequence[float] = ()) -> bool:
        """Whether a value follows the rule; NaN never does. `draws` are the rows that it is the mean of."""
        if self.central is not None:
            tail = (100 - self.central.share) / 200
            ordered = sorted(draws)
            # Draws that are all alike spread over nothing, and tell nothing about one draw of the paper's.
            if len(ordered) < self.central.draws or ordered[0] == ordered[-1] or math.isnan(value):
                return False
            least, most = (
                statistics.quantiles(ordered, n=1000, method="inclusive")[round(1000 * part) - 1]
                for part in (tail, 1 - tail)
            )
            return bool(abs(value - published) <= self.central.near and least <= published <= most)
        if self.within is not None and not math.isnan(value):
            # The distance itself: the ends of the interval are rounded.
            distance, below = self.within.absolute + self.within.relative * abs(published), self.within.below
            return bool(-(distance if below is None else below) <= value - published <= distance)
        least, most = self.accepted(published)
        return least <= value <= most

    def text(self) -> str:
        """The rule in a few characters."""
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
            return f"− {self.within.below:g} + {self.within.absolute:g}"
        absolute = f"± {self.within.absolute:g}" if self.within.absolute else ""
        return absolute + (f" ± {self.within.relative:.0%}" if self.within.relative else "")


# What a change was about. A rule may be corrected to be looser only where it was stricter than the paper's sentence.
ChangeKind = Literal[
    "wording", "measure", "rule tightened", "rule corrected", "scale", "method", "written after the run"
]


class Change(_Strict):
    """That a claim was changed after a measurement, or written after it: what about it, when and why."""

    kind: ChangeKind
    why: str


class Immaterial(_Strict):
    """A value other than the paper's that does not matter for a claim, and why."""

    value: Any
    why: str


class Claim(_Strict):
    """One thing a paper says, or we do, and what would show it.

    `ours` says that the claim is no paper's: a prediction, written before the run, or a finding, written after it.
    `setting` is what the paper measured the claim on, by the names of the record's columns or of the study's
    parameters: network, dataset, resolution, steps, or `any` where it speaks of every gradient; `used` is what the
    study has of these where neither column nor parameter says it; `needs` are the paper's numbers of samples and
    starts, as parameters. `immaterial` names what may differ, and why. `stand_in` says in words what is measured
    instead of the paper's setting. `method` says whose method is measured: only our own can be `better`. `protocol`
    names what was changed about a published method. `changed` says what was changed after a measurement, `replaces`
    names claims that were measured once and for which this one stands now. A cell of a published table has the table's
    title, its group of rows (there may be none), its row and its column.
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
    method: Literal["published", "own"] = "published"
    better: Literal["higher", "lower"] | None = None
    protocol: str = ""
    setting: dict[str, Any] | Literal["any"] = Field(default_factory=dict)
    used: dict[str, Any] = Field(default_factory=dict)
    needs: dict[str, Any] = Field(default_factory=dict)
    immaterial: dict[str, Immaterial] = Field(default_factory=dict)
    ours: Literal["", "prediction", "finding"] = ""
    note: str = ""
    stand_in: str = ""
    changed: tuple[Change, ...] = ()
    replaces: tuple[str, ...] = ()
    table: str = ""
    group: str = ""
    row: str = ""
    column: str = ""

    @field_validator("changed", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _published_number(self) -> Claim:
        compares = self.rule.within or self.rule.central or self.better
        if compares and not isinstance(self.published, int | float):
            raise ValueError("'within', 'central' and 'better' compare with a published number, and there is none")
        return self

    @model_validator(mode="after")
    def _policy(self) -> Claim:
        if self.ours:
            of_papers = [
                name for name in ("better", "setting", "stand_in", "immaterial", "protocol") if getattr(self, name)
            ]
            if of_papers:
                raise ValueError(f"a claim of ours has no {of_papers[0]}: that is said of a paper's claim")
            return self
        if self.immaterial and self.setting == "any":
            raise ValueError("a claim about any setting has none that could be immaterial")
        if self.better and self.method != "own":
            raise ValueError("'better' is for a method of our own: a published one is reproduced or not")
        if not self.setting:
            raise ValueError("a paper's claim states its setting: the network, the data, the steps the paper had")
        lost = [name for name in self.immaterial if name not in self.setting and name not in self.needs]
        if lost:
            raise ValueError(f"'{lost[0]}' is called immaterial, and neither setting nor needs ask for it")
        return self

    def beats(self, value: float) -> bool:
        """Whether a value lies beyond the published one, on the side that the claim calls good."""
        if self.better is None or not isinstance(self.published, int | float):
            return False
        return value > self.published if self.better == "higher" else value < self.published

    def holds(self, value: float, draws: Sequence[float] = ()) -> bool:
        """Whether a value follows the rule or is better than the published one; NaN does neither."""
        return self.beats(value) or self.rule.holds(value, self.published, draws)

    def accepted(self) -> tuple[float, float]:
        """Return the least and the largest value with which the claim holds."""
        least, most = self.rule.accepted(self.published)
        return (-math.inf if self.better == "lower" else least, math.inf if self.better == "higher" else most)

    @property
    def rule_text(self) -> str:
        """The rule with its good side, in a few characters."""
        return self.rule.text() + (f" or {self.better}" if self.better and self.rule.within else "")

    @property
    def remarks(self) -> list[str]:
        """The texts shown beside the claim: its note, what stands in, differences without effect, and changes."""
        lifted = [f"That {name} is {one.value} does not matter: {one.why}" for name, one in self.immaterial.items()]
        changed = [f"Changed ({one.kind}): {one.why}" for one in self.changed]
        return [text for text in (self.note, self.stand_in, *lifted, *changed) if text]

    def number(self, value: Any) -> str:
        """A value of this claim as text in its format, without its unit."""
        if value is None:
            return "–"
        return format(value, self.measure.format) if isinstance(value, int | float) else str(value)

    def shown(self, value: Any) -> str:
        """A value of this claim as text, in its format and unit."""
        text = self.number(value)
        # "over 98" is a number; "outperforms" has no unit.
        return f"{text} {self.unit}".strip() if text[-1:].isdigit() else text
