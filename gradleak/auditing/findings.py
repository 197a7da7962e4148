"""What an audit says as plain data: findings, what was not tried, what a defence costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
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

# What attacks are after, and the measure that says how much of that was recovered (itself for all others).
TARGETS = ("labels", "classes", "features", "inputs", "words", "sentences")
TARGET_OF = {"image-psnr": "inputs", "image-ssim": "inputs"}
RECOVERED, NOT_RECOVERED, NOT_ATTACKED, NOT_COMPARED = "recovered", "not recovered", "not attacked", "not compared"


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
    `expected`: of a count, the share of "labels" that the attack gets right on batches made up for this model, and what
    an even "guess" gets of those.
    """

    attack: str
    certificate: str
    measures: dict[str, float]
    chance: dict[str, float]
    expected: dict[str, float] = {}
    sentence: str
    stops: str
    page: str
    cut: bool = False


class NotTried(_Placed):
    """An attack that has no answer, and why.

    `applies`: it might have had one, but for its breaking down, or for the time or the memory; `late`: for the time.
    """

    attack: str
    why: str
    page: str
    applies: bool = False
    late: bool = False


class Outcome(_Placed):
    """What became of one target (TARGETS) in one case, over all attacks that are after it.

    "recovered", in part at least; "not recovered": attacks answered, and got nothing, or no more than guessing; "not
    attacked": none answered, `why` says for what reasons; "not compared": some answered, nothing certifies their
    answers, and there is no private batch to compare them with. `share`: the most that the best `attack` got; `guess`:
    what guessing gets.
    """

    target: Literal["labels", "classes", "features", "inputs", "words", "sentences"]
    outcome: Literal["recovered", "not recovered", "not attacked", "not compared"]
    attack: str = ""
    share: float | None = None
    guess: float | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """The outcome in a few words, with the share where there is one."""
        if self.share is None or self.outcome == NOT_ATTACKED:
            return self.outcome
        share = shown(self.target, self.share)
        return f"recovered, {share}" if self.outcome == RECOVERED else f"not recovered ({share})"


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
    outcomes: list[Outcome] = []
    costs: list[Cost]
    notes: list[str] = []
    interrupted: bool = False
    seconds: float = 0.0
    pictures: list[Picture] = Field(default=[], exclude=True, repr=False)

    def worst(
        self,
        measure: str,
        *,
        defense: str | None = None,
        batch_size: int | None = None,
        precision: str | None = None,
        allow_not_attacked: bool = False,
    ) -> float:
        """Return the most that any attack got of a measure, over all batches, defences and precisions or those of one.

        An error where the measure was not attacked in one of these cases, since nothing is known of it there;
        `allow_not_attacked` leaves such cases out. Attacks that answered with nothing got 0.
        """
        if measure not in MEASURES:
            raise unknown("measure", measure, MEASURES)
        precision = None if precision is None else precision_of(precision).name
        places = [
            place
            for place in self.cases
            if defense in (None, place.defense)
            and batch_size in (None, place.batch_size)
            and precision in (None, place.precision)
        ]
        if not allow_not_attacked and (missing := self.not_attacked(measure, places)):
            raise InputError(missing)
        values = [value for place in places if (value := self.most(measure, place)) is not None]
        if not values:
            raise InputError(f"no attack measured '{measure}' here; measured: {', '.join(self.measured) or 'nothing'}")
        return max(values)

    def most(self, measure: str, place: Place) -> float | None:
        """Return the most that any attack got of a measure in one case; None where it was not attacked or compared."""
        values = [one.measures[measure] for one in self.findings if one.place == place and measure in one.measures]
        if values:
            return max(values)
        state = self.outcome(TARGET_OF.get(measure, measure), place)
        nothing = state is not None and state.outcome == NOT_RECOVERED
        # Whether inputs are images that are large enough for a measure shows where one was measured.
        return 0.0 if nothing and (measure in TARGETS or measure in self.measured) else None

    def outcome(self, target: str, place: Place) -> Outcome | None:
        """Return what became of a target in one case; None where the inputs have no such thing."""
        return next((one for one in self.outcomes if one.target == target and one.place == place), None)

    def not_attacked(self, measure: str, places: Sequence[Place] | None = None) -> str:
        """Return in one line in which cases a measure was not attacked or not compared, and why; "" where in none."""
        reasons: dict[str, list[str]] = {}
        for place in self.cases if places is None else places:
            if self.most(measure, place) is None:
                state = self.outcome(TARGET_OF.get(measure, measure), place)
                why = "there is no private batch to compare with" if state and state.outcome == NOT_COMPARED else ""
                why = why or (state.why if state else "") or "no attack here measures it"
                reasons.setdefault(why, []).append(f"{self.shown_place(place)}, batch of {place.batch_size}")
        if not reasons:
            return ""
        first, where = next(iter(reasons.items()))
        more = sum(map(len, reasons.values())) - 1
        rest = f" and in {more} more {'case' if more == 1 else 'cases'}" if more else ""
        return f"no attack measured '{measure}' ({where[0]}{rest}): {first}"

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

    def above(self, limits: Mapping[str, float], *, allow_not_attacked: bool = False) -> list[str]:
        """Return a line for each measure whose worst is above its limit.

        An error where none is above and one of the measures was not attacked in some case, unless that is allowed.
        """
        for name in limits:
            if name not in MEASURES:
                raise unknown("measure", name, MEASURES)
        worst = {
            name: max((v for place in self.cases if (v := self.most(name, place)) is not None), default=-math.inf)
            for name in limits
        }
        lines = [
            f"{name} = {worst[name]:.4g} is above {limits[name]:g}" for name in limits if worst[name] > limits[name]
        ]
        missing = [line for name in limits if (line := self.not_attacked(name))]
        if missing and not lines and not allow_not_attacked:
            raise InputError(missing[0])
        return lines

    def table(self) -> list[dict[str, str]]:
        """Return a row a defence, batch size and precision, where there are several: outcomes, and worst measures."""
        targets = [name for name in TARGETS if any(one.target == name for one in self.outcomes)]
        others = [name for name in self.measured if name not in targets]
        rows = []
        for place in self.cases:
            row = {"defence": place.defense, "batch size": str(place.batch_size)}
            if len(self.precisions) > 1:
                row["precision"] = place.precision
            for name in targets:
                state = self.outcome(name, place)
                row[name] = "–" if state is None else state.text
            for name in others:
                value = self.most(name, place)
                row[name] = "–" if value is None else shown(name, value)
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
