"""Define the results of an audit as plain data: findings, attacks without an answer, and costs of defences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradleak.errors import InputError, unknown
from gradleak.precision import precision_of

SCHEMA: Literal["gradleak-audit/1"] = "gradleak-audit/1"
# The measures and their descriptions. A larger value is worse for privacy.
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

# The targets of attacks, and the target of each measure that has another name than its target.
TARGETS = ("labels", "classes", "features", "inputs", "words", "sentences")
TARGET_OF = {"image-psnr": "inputs", "image-ssim": "inputs"}
RECOVERED, NOT_RECOVERED, NOT_ATTACKED, NOT_COMPARED = "recovered", "not recovered", "not attacked", "not compared"


class Place(NamedTuple):
    """The precision, the defence and the batch size, which identify a case in a report."""

    precision: str
    defense: str
    batch_size: int


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Placed(_Plain):
    """A row of a report about one case: the defence, the batch size and the client's precision."""

    defense: str
    batch_size: int
    precision: str = "float32"

    @property
    def place(self) -> Place:
        """The precision, the defence and the batch size."""
        return Place(self.precision, self.defense, self.batch_size)


class Finding(_Placed):
    """The result of one attack on one batch with one defence.

    Attributes:
        attack: The attack's name.
        certificate: The status of the attack's answer.
        measures: The comparison with the private batch, by names of MEASURES and "lpips" (a smaller value is worse);
            empty if there is no private batch.
        chance: The same measures for a guess.
        expected: For counts, the share of "labels" that the attack counts correctly on simulated batches for this
            model, and the share that an even "guess" has there.
        sentence: The result in one sentence.
        stops: What would stop the attack.
        page: The page of the book that shows the attack.
        cut: Whether the attack was interrupted when its time was over.
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
    """An attack without an answer.

    Attributes:
        attack: The attack's name.
        why: The reason.
        page: The page of the book that shows the attack.
        applies: Whether the attack applies here, but raised an error or lacked time or memory.
        late: Whether it lacked time.
    """

    attack: str
    why: str
    page: str
    applies: bool = False
    late: bool = False


class Outcome(_Placed):
    """The result for one target in one case, over all attacks that aim at this target.

    Attributes:
        target: One of TARGETS.
        outcome: "recovered" if at least a part was recovered; "not recovered" if the attacks' answers are no better
            than a guess; "not attacked" if no attack answered; "not compared" if the answers have no certificate and
            there is no private batch to compare them with.
        attack: The best attack.
        share: The share that the best attack recovered.
        guess: The share that a guess has.
        why: Why attacks did not answer.
    """

    target: Literal["labels", "classes", "features", "inputs", "words", "sentences"]
    outcome: Literal["recovered", "not recovered", "not attacked", "not compared"]
    attack: str = ""
    share: float | None = None
    guess: float | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """The outcome in a few words, with the share if it is known."""
        if self.share is None or self.outcome == NOT_ATTACKED:
            return self.outcome
        share = measure_text(self.target, self.share)
        return f"recovered, {share}" if self.outcome == RECOVERED else f"not recovered ({share})"


class Cost(_Placed):
    """The cost of a defence and a precision for training.

    Attributes:
        cosine: The cosine of the sent gradient with the true gradient, which has the precision of the parameters.
        loss_before: The batch's loss before a step of gradient descent.
        loss_after: The loss after a step along the sent gradient.
        loss_after_undefended: The loss after a step along the true gradient.
    """

    cosine: float | None
    loss_before: float
    loss_after: float
    loss_after_undefended: float


class Picture(_Placed):
    """A PNG in base64 with the private images in the upper row and the recovered images in the lower row."""

    attack: str
    png: str


class Audited(_Plain):
    """The results of an audit for every batch size, precision and defence.

    Attributes:
        form: The version of this format.
        version: The version of this package.
        facts: Facts about the network.
        settings: The settings of the audit.
        proofs: What the equations' number proves about labels, features and inputs.
        findings: The results of attacks.
        not_tried: The attacks without an answer.
        outcomes: The result for each target in each case.
        costs: The costs of defences and precisions.
        notes: Remarks.
        interrupted: Whether the user interrupted the audit.
        seconds: The duration (s).
        pictures: Private and recovered images.
    """

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
        """Return the largest value of a measure over all attacks and cases.

        An attack that recovered nothing has the value 0.

        Args:
            measure: A name of MEASURES.
            defense: Only cases with this defence.
            batch_size: Only cases with this batch size.
            precision: Only cases with this precision.
            allow_not_attacked: Whether to skip cases in which no attack measured it.

        Raises:
            InputError: No attack measured it in one of the cases, so that its value there is unknown.
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
        """Return the largest value of a measure in one case; None if no attack measured it there."""
        values = [
            finding.measures[measure]
            for finding in self.findings
            if finding.place == place and measure in finding.measures
        ]
        if values:
            return max(values)
        state = self.outcome(TARGET_OF.get(measure, measure), place)
        nothing = state is not None and state.outcome == NOT_RECOVERED
        # A measure of images is 0 only if another case has it, which shows that the inputs are large enough images.
        return 0.0 if nothing and (measure in TARGETS or measure in self.measured) else None

    def outcome(self, target: str, place: Place) -> Outcome | None:
        """Return the outcome of a target in one case; None if this kind of inputs has no such target."""
        return next((outcome for outcome in self.outcomes if outcome.target == target and outcome.place == place), None)

    def not_attacked(self, measure: str, places: Sequence[Place] | None = None) -> str:
        """Return one line on the cases in which no attack measured a measure, with the reason; "" if there are none."""
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
        remaining = sum(map(len, reasons.values())) - 1
        rest = f" and in {remaining} more {'case' if remaining == 1 else 'cases'}" if remaining else ""
        return f"no attack measured '{measure}' ({where[0]}{rest}): {first}"

    @property
    def measured(self) -> list[str]:
        """The measures that at least one finding has."""
        return [name for name in MEASURES if any(name in finding.measures for finding in self.findings)]

    @property
    def cases(self) -> list[Place]:
        """The audited cases, in order."""
        entries: list[Cost | Finding | NotTried] = [*self.costs, *self.findings, *self.not_tried]
        return list(dict.fromkeys(entry.place for entry in entries))

    @property
    def precisions(self) -> list[str]:
        """The audited precisions."""
        return list(dict.fromkeys(place.precision for place in self.cases))

    def shown_place(self, place: Place) -> str:
        """Return the defence, with the precision if the report has several."""
        return place.defense if len(self.precisions) < 2 else f"{place.defense}, {place.precision}"

    def above(self, limits: Mapping[str, float], *, allow_not_attacked: bool = False) -> list[str]:
        """Return a line for each measure whose largest value is above its limit.

        Args:
            limits: The limit of each measure.
            allow_not_attacked: Whether to skip cases in which no attack measured a measure.

        Raises:
            InputError: No value is above its limit, but in some case a measure is unknown.
        """
        for name in limits:
            if name not in MEASURES:
                raise unknown("measure", name, MEASURES)
        worst = {
            name: max(
                (value for place in self.cases if (value := self.most(name, place)) is not None), default=-math.inf
            )
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
        """Return one row per case, with the outcomes of targets and the largest values of other measures."""
        targets = [name for name in TARGETS if any(outcome.target == name for outcome in self.outcomes)]
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
                row[name] = "–" if value is None else measure_text(name, value)
            rows.append(row)
        return rows

    def to_json(self) -> str:
        """Return the report as JSON without pictures."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return a report from its JSON."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(f"this is no audit report ({SCHEMA}): {place or 'it'}: {first['msg']}") from error


def measure_text(measure: str, value: float) -> str:
    """Return a measure's value as text."""
    if measure == "image-psnr":
        return "over 150 dB" if value >= 150 else f"{value:.1f} dB"
    return f"{value:.2f}" if measure.startswith("image") else f"{100 * value:.0f} %"


def finite(value: float, most: float = 200.0) -> float:
    """Return a value that JSON can represent: limited to ±`most`, and 0 instead of NaN."""
    return max(-most, min(most, value)) if not math.isnan(value) else 0.0
