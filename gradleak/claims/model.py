"""A claim as data: what is measured, what is published, and the rule under which it counts as reproduced."""

from __future__ import annotations

import math
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
    """A distance from the published value."""

    absolute: Number = 0
    relative: Number = 0


class Rule(_Strict):
    """When a measured value counts as reproducing the claim: exactly one of these.

    `within: 2` is an absolute distance.
    """

    at_most: Number | None = None
    at_least: Number | None = None
    within: Within | None = None
    between: tuple[Number, Number] | None = None

    @field_validator("within", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        return {"absolute": value} if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _one(self) -> Rule:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(f"a rule is exactly one of at_most, at_least, within, between; got {given or 'none'}")
        return self

    def accepted(self, published: Any) -> tuple[float, float]:
        """Return the least and the largest value that follow the rule."""
        if self.at_most is not None:
            return -math.inf, self.at_most
        if self.at_least is not None:
            return self.at_least, math.inf
        if self.between is not None:
            return self.between
        assert self.within is not None
        distance = self.within.absolute + self.within.relative * abs(published)
        return published - distance, published + distance

    def holds(self, value: float, published: Any) -> bool:
        """Whether a value follows the rule; NaN never does."""
        if self.within is not None and not math.isnan(value):
            # The distance itself: the ends of the interval are rounded.
            return bool(abs(value - published) <= self.within.absolute + self.within.relative * abs(published))
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
        assert self.within is not None
        absolute = f"± {self.within.absolute:g}" if self.within.absolute else ""
        return absolute + (f" ± {self.within.relative:.0%}" if self.within.relative else "")


class Claim(_Strict):
    """One thing a paper says, or we do, and what would show it.

    `stand_in` says what is measured instead of data that the paper profile cannot count on; `changed` when and why the
    rule, the measure or the scale was changed after a measurement. A cell of a published table has the table's title,
    its group of rows (there may be none), its row and its column.
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
    changed: str = ""
    table: str = ""
    group: str = ""
    row: str = ""
    column: str = ""

    @model_validator(mode="after")
    def _published_number(self) -> Claim:
        if (self.rule.within or self.better) and not isinstance(self.published, int | float):
            raise ValueError("'within' and 'better' compare with a published number, and there is none")
        return self

    def beats(self, value: float) -> bool:
        """Whether a value lies beyond the published one, on the side that the claim calls good."""
        if self.better is None or not isinstance(self.published, int | float):
            return False
        return value > self.published if self.better == "higher" else value < self.published

    def holds(self, value: float) -> bool:
        """Whether a value follows the rule or is better than the published one; NaN does neither."""
        return self.beats(value) or self.rule.holds(value, self.published)

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
        """What is said beside the claim: its note, its stand-in, and whether it was changed."""
        changed = f"Changed {self.changed}" if self.changed else ""
        return [text for text in (self.note, self.stand_in, changed) if text]

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
