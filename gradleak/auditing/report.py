"""The report of an audit: its results, and how they are read, shown and written to a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError

import gradleak
from gradleak.auditing import folders, html
from gradleak.auditing.findings import (
    MEASURES,
    TARGETS,
    Cost,
    Finding,
    NotTried,
    Outcome,
    Picture,
    Place,
    Plain,
    measure_text,
)
from gradleak.auditing.folders import SCHEMA, Written
from gradleak.errors import InputError, unknown
from gradleak.leak import Mode
from gradleak.precision import precision_of
from gradleak.wording import counted

# The targets of measures that have another name than their target.
TARGET_OF = dict.fromkeys(("recognisable", "image-psnr", "image-ssim", "image-gain"), "inputs")


class Report(Plain):
    """The results of an audit for every batch size, precision and defence; a notebook displays them as HTML.

    Attributes:
        form: The version of this format.
        version: The version of this package.
        verdict: What the strongest attacks recovered in the worst case, in one sentence.
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
        broken: The errors that the model raised, and the steps in which it raised them.
        files: The files that were written in addition to report.json.
    """

    form: Literal["gradleak-audit/1"] = Field(SCHEMA, alias="schema")
    version: str = gradleak.__version__
    verdict: str = ""
    facts: dict[str, str]
    settings: dict[str, str]
    proofs: list[str]
    findings: list[Finding]
    not_tried: list[NotTried]
    outcomes: list[Outcome] = Field(default=[])
    costs: list[Cost]
    notes: list[str] = Field(default=[])
    interrupted: bool = False
    seconds: float = 0.0
    pictures: list[Picture] = Field(default=[], exclude=True, repr=False)
    broken: list[str] = Field(default=[])
    files: list[Written] = Field(default=[])

    def worst(
        self,
        measure: str,
        *,
        defense: str | None = None,
        batch_size: int | None = None,
        precision: str | None = None,
        mode: Mode | None = None,
        allow_not_attacked: bool = False,
    ) -> float:
        """Return the largest value of a measure over all attacks and cases.

        An attack that recovered nothing has the value 0.

        Args:
            measure: A name of MEASURES.
            defense: Only cases with this defence.
            batch_size: Only cases with this batch size.
            precision: Only cases with this precision.
            mode: Only cases with this mode.
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
            and mode in (None, place.mode)
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
        nothing = state is not None and state.outcome == "not recovered"
        # A measure of images is 0 only if another case has it, which shows that the inputs are large enough images.
        return 0.0 if nothing and (measure in TARGETS or measure in self.measured) else None

    def outcome(self, target: str, place: Place) -> Outcome | None:
        """Return the outcome of a target in one case; None if this kind of inputs has no such target."""
        return next((outcome for outcome in self.outcomes if outcome.target == target and outcome.place == place), None)

    def not_attacked(self, measure: str, places: Sequence[Place]) -> str:
        """Return one line on the cases in which no attack measured a measure, with the reason; "" if there are none."""
        reasons: dict[str, list[str]] = {}
        for place in places:
            if self.most(measure, place) is None:
                state = self.outcome(TARGET_OF.get(measure, measure), place)
                why = "there is no private batch to compare with" if state and state.outcome == "not compared" else ""
                why = why or (state.why if state else "") or "no attack here measures it"
                reasons.setdefault(why, []).append(f"{self.shown_place(place)}, batch of {place.batch_size}")
        if not reasons:
            return ""
        first, where = next(iter(reasons.items()))
        remaining = sum(map(len, reasons.values())) - 1
        rest = f" and in {counted(remaining, 'more case')}" if remaining else ""
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

    def varied(self, place: Place) -> dict[str, str]:
        """Return the precision and the mode of a case, each if the report has several."""
        named = {"precision": place.precision, "mode": f"{place.mode} mode"}
        return {name: text for name, text in named.items() if len({getattr(case, name) for case in self.cases}) > 1}

    def shown_place(self, place: Place) -> str:
        """Return the defence, with the precision and the mode if the report has several."""
        return ", ".join([place.defense, *self.varied(place).values()])

    def above(self, limits: Mapping[str, float], *, allow_not_attacked: bool = False) -> list[str]:
        """Return a line for each measure whose largest value is above its limit.

        Args:
            limits: The limit of each measure.
            allow_not_attacked: Whether to skip cases in which no attack measured a measure.

        Raises:
            InputError: No value is above its limit, but in some case a measure is unknown.
        """
        lines = []
        for name, limit in limits.items():
            if name not in MEASURES:
                raise unknown("measure", name, MEASURES)
            values = [value for place in self.cases if (value := self.most(name, place)) is not None]
            if max(values, default=-math.inf) > limit:
                lines.append(f"{name} = {max(values):.4g} is above {limit:g}")
        missing = [line for name in limits if (line := self.not_attacked(name, self.cases))]
        if missing and not lines and not allow_not_attacked:
            raise InputError(missing[0])
        return lines

    def table(self) -> list[dict[str, str]]:
        """Return one row per case, with the outcomes of targets and the largest values of other measures."""
        targets = [name for name in TARGETS if any(outcome.target == name for outcome in self.outcomes)]
        others = [name for name in self.measured if name not in targets and name != "recognisable"]
        rows = []
        for place in self.cases:
            row = {"defence": place.defense, "batch size": str(place.batch_size)}
            row |= self.varied(place)
            for name in targets:
                state = self.outcome(name, place)
                row[name] = "–" if state is None else state.text
            for measure in others:
                value = self.most(measure, place)
                row[measure] = "–" if value is None else measure_text(measure, value)
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

    def write(self, folder: str | Path) -> Path:
        """Write index.html, report.json and the figures into a folder, and return the path of index.html.

        The files of an earlier report are replaced or removed. Other files are kept; an error is raised if one of them
        would be overwritten.
        """
        with folders.held(Path(folder)):
            return self.put(Path(folder))

    def put(self, place: Path) -> Path:
        """Do the same as `write`, for a folder that is already `held`."""
        files = {folders.PAGE: html.page(self, place).encode()}
        files |= {f"{folders.FIGURES}/{name}": data for name, data in html.figures(self)}
        folders.replace(place, files, lambda written: self.model_copy(update={"files": written}).to_json())
        return place / folders.PAGE

    def _repr_html_(self) -> str:
        return html.fragment(self)

    def __repr__(self) -> str:
        return f"Report({self.verdict!r})"

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.notes])
