"""What an audit says as plain data: findings, what was not tried, what a defence costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradleak.errors import InputError, unknown
from gradleak.precision import precision_of

SCHEMA: Literal["gradleak-audit/1"] = "gradleak-audit/1"
# What is measured, and in words; more of each is worse for the private batch.
MEASURES = {
    "labels": "share of labels found",
    "classes": "share of classes found (Jaccard)",
    "features": "share of features found to 1 %",
    "inputs": "share of inputs found (images: 30 dB; others: 1 %)",
    "image-psnr": "the best image's PSNR in dB",
    "image-ssim": "the best image's SSIM",
    "words": "share of words found (Jaccard)",
    "sentences": "share of sentences read whole",
}


class Place(NamedTuple):
    """The precision, the defence and the size of a batch, which identify it in a report."""

    precision: str
    defense: str
    batch_size: int


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Placed(_Plain):
    """A line of a report about one batch: the defence, the batch size and the client's precision."""

    defense: str
    batch_size: int
    precision: str = "float32"

    @property
    def place(self) -> Place:
        """The precision, the defence and the batch size."""
        return Place(self.precision, self.defense, self.batch_size)


class Finding(_Placed):
    """What one attack got from one batch behind one defence.

    `measures` compare it with the private batch, by names of MEASURES, "lpips" (less is worse) beside; empty where
    there is no truth to compare with. `certificate`: what the attack itself says of it; `chance`: what guessing gets.
    """

    attack: str
    certificate: str
    measures: dict[str, float]
    chance: dict[str, float]
    sentence: str
    stops: str
    page: str
    cut: bool = False


class NotTried(_Placed):
    """An attack that was not run, and why."""

    attack: str
    why: str
    page: str


class Cost(_Placed):
    """What a defence and a precision leave for training: the cosine of the sent with the true gradient, and losses.

    The losses are those around one step. The true gradient is computed in the type of the parameters.
    """

    cosine: float | None
    loss_before: float
    loss_after: float
    loss_after_undefended: float


class Picture(_Placed):
    """Images as a PNG in base64: the private ones above, the recovered below."""

    attack: str
    png: str


class Audited(_Plain):
    """What a model's gradients give away, batch by batch, precision by precision and defence by defence."""

    form: Literal["gradleak-audit/1"] = Field(SCHEMA, alias="schema")
    version: str
    facts: dict[str, str]
    settings: dict[str, str]
    proofs: list[str]
    findings: list[Finding]
    not_tried: list[NotTried]
    costs: list[Cost]
    notes: list[str] = []
    interrupted: bool = False
    seconds: float = 0.0
    pictures: list[Picture] = Field(default=[], exclude=True, repr=False)

    def worst(
        self, measure: str, *, defense: str | None = None, batch_size: int | None = None, precision: str | None = None
    ) -> float:
        """Return the most that any attack got of a measure, over all batches, defences and precisions or those of one.

        An error where nothing measured it: that would pass any bar.
        """
        if measure not in MEASURES:
            raise unknown("measure", measure, MEASURES)
        precision = None if precision is None else precision_of(precision).name
        values = [
            one.measures[measure]
            for one in self.findings
            if measure in one.measures
            and defense in (None, one.defense)
            and batch_size in (None, one.batch_size)
            and precision in (None, one.precision)
        ]
        if not values:
            raise InputError(f"no attack measured '{measure}' here; measured: {', '.join(self.measured) or 'nothing'}")
        return max(values)

    @property
    def measured(self) -> list[str]:
        """The measures that some finding has."""
        return [name for name in MEASURES if any(name in one.measures for one in self.findings)]

    @property
    def cases(self) -> list[Place]:
        """The precisions, defences and batch sizes that were looked at, in their order."""
        told: list[Cost | Finding | NotTried] = [*self.costs, *self.findings, *self.not_tried]
        return list(dict.fromkeys(one.place for one in told))

    @property
    def precisions(self) -> list[str]:
        """The precisions that were looked at."""
        return list(dict.fromkeys(place.precision for place in self.cases))

    def shown_place(self, place: Place) -> str:
        """Return the defence as text, with the precision where there are several."""
        return place.defense if len(self.precisions) < 2 else f"{place.defense}, {place.precision}"

    def above(self, limits: Mapping[str, float]) -> list[str]:
        """Return a line for each measure whose worst is above its limit."""
        worst = {name: self.worst(name) for name in limits}
        return [
            f"{name} = {worst[name]:.4g} is above {limits[name]:g}" for name in limits if worst[name] > limits[name]
        ]

    def table(self) -> list[dict[str, str]]:
        """Return the worst of every measure, a row a defence, batch size and precision, where there are several."""
        rows = []
        for place in self.cases:
            row = {"defence": place.defense, "batch size": str(place.batch_size)}
            if len(self.precisions) > 1:
                row["precision"] = place.precision
            for name in self.measured:
                try:
                    row[name] = shown(name, self.worst(name, **place._asdict()))
                except InputError:
                    row[name] = "–"
            rows.append(row)
        return rows

    def to_json(self) -> str:
        """Return the report as JSON under its schema, without pictures."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return a report from its JSON."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(f"this is no report of an audit ({SCHEMA}): {place or 'it'}: {first['msg']}") from error


def shown(measure: str, value: float) -> str:
    """Return a measure's value as text."""
    if measure == "image-psnr":
        return "over 150 dB" if value >= 150 else f"{value:.1f} dB"
    return f"{value:.2f}" if measure.startswith("image") else f"{100 * value:.0f} %"


def finite(value: float, most: float = 200.0) -> float:
    """Return a value that JSON can hold: infinities cut off."""
    return max(-most, min(most, value)) if not math.isnan(value) else 0.0
