"""A report on each paper: written sentences with numbers from the records, and the verdicts on every part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from gradleak import claims, paths, studies
from gradleak.claims import Judgement, Line
from gradleak.errors import InputError
from gradleak.runs.records import Strict

# The sections of a report, by the fields of its written part.
SECTIONS = {
    "question": "What the paper set out to show",
    "holds": "What holds",
    "fails": "What does not hold",
    "undecided": "What runs with stand-ins suggest, without deciding a claim",
    "not_run": "What was not run",
    "easy": "What was easy",
    "hard": "What was hard",
    "silent": "Details that neither the paper's text nor its code gives",
}
# "Figures 5 and 6" and "Table 2" in the place of a claim.
NUMBERED = re.compile(
    r"\b(Figure|Table|Theorem|Property|Remark|Appendix|Algorithm)s? ((?:\d+|[A-H]\b)(?: and (?:\d+|[A-H]\b))*)"
)
REST = "the text"
NOTHING = "*This book has no report on this paper yet, or not the pages on which it rests.*\n"


class Finding(Strict):
    """A sentence about what holds, fails or is not decided.

    Attributes:
        says: The sentence. `{c[claim-id].text}` stands for a recorded value, `{c[claim-id].cases}` for a share as
            numbers of cases, and `{t[Table 2]}` for the number of claims on a part of the paper that agree.
        rests: The ids of the claims on which the sentence rests. If it is about what holds or fails, all of them are
            decided, and all agree with the paper or all disagree.
    """

    says: str
    rests: tuple[str, ...] = Field(min_length=1)


class Report(Strict):
    """The written part of a report.

    Attributes:
        question: What the paper set out to show.
        holds: What holds.
        fails: What does not.
        undecided: What stand-ins show, which decide nothing.
        not_run: What was not run, and why.
        easy: What was easy.
        hard: What was hard.
        silent: What neither the text nor the code tells.
        quote: One line to quote.
        page: The page whose best figure stands for the paper.
        caption: The caption of this figure.
        places: Every numbered figure, table, theorem and appendix of the paper: what it shows and,
            where this book has no claim about it, the reason.
    """

    question: str
    holds: tuple[Finding, ...] = Field(min_length=1)
    fails: tuple[Finding, ...]
    undecided: tuple[Finding, ...] = ()
    not_run: str
    easy: str
    hard: str
    silent: str
    quote: str
    page: str
    caption: str
    places: dict[str, dict[Literal["about", "none"], str]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All sentences that rest on claims."""
        return (*self.holds, *self.fails, *self.undecided)


@dataclass(frozen=True)
class Filled:
    """A report with the numbers of the records.

    Attributes:
        paper: The citation key of the paper.
        report: The written part.
        judged: The judged claims of all studies of the paper.
    """

    paper: str
    report: Report
    judged: Sequence[Line]

    @cached_property
    def judgements(self) -> Mapping[str, Judgement]:
        """The judgements of the recorded run, by the claims' ids."""
        return {line.claim.id: line.recorded for line in self.judged}

    @cached_property
    def about(self) -> Mapping[str, Sequence[Line]]:
        """The papers' claims about every place of the paper, and under `REST` those about none of them."""
        by_place: dict[str, list[Line]] = {place: [] for place in (*self.report.places, REST)}
        for line in claims.of_papers(self.judged):
            for place in places_of(line) or [REST]:
                if place not in by_place:
                    raise InputError(f"claim '{line.claim.id}' is about {place}, which {file_of(self.paper)} lacks")
                by_place[place].append(line)
        return by_place

    def cause(self, finding: Finding) -> str:
        """Return the causes of the claims on which a sentence about what fails rests, as the scoreboard lists them."""
        causes = {line.claim.id: line.cause or "not explained yet" for line in self.judged}
        return "; ".join(dict.fromkeys(causes[name] for name in finding.rests))

    def fill(self, text: str) -> str:
        """Return a sentence with its numbers."""
        agree = {
            place: f"{sum(bool(line.recorded.agrees) for line in lines)} of {len(lines)}"
            for place, lines in self.about.items()
        }
        try:
            return text.format(c=self.judgements, t=agree)
        except (KeyError, AttributeError, ValueError, IndexError) as error:
            raise InputError(f"{file_of(self.paper)}: '{text[:60]}…' names {error}, which is not known") from error


def file_of(paper: str) -> str:
    """Return the name of the file with a paper's report, from the top of the checkout."""
    return f"book/reports/{paper}.yaml"


def read(paper: str) -> Report:
    """Read the written part of a paper's report."""
    try:
        return Report.model_validate(yaml.safe_load((paths.root() / file_of(paper)).read_text("utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise InputError(f"{file_of(paper)}: {error}") from error


def written(paper: str, judged: Sequence[Line]) -> Report | None:
    """Return the written part of a paper's report; None if there is none, or this book lacks pages on which it rests.

    Args:
        paper: The paper.
        judged: The judged claims of all studies of the paper.
    """
    if not (paths.root() / file_of(paper)).is_file():
        return None
    report = read(paper)
    named = {name for finding in report.findings for name in finding.rests}
    known = named <= {line.claim.id for line in judged} and report.page in studies.names()
    return report if known else None


def places_of(line: Line) -> list[str]:
    """Return the numbered parts of the paper that a claim is about: "Figure 2", "Table 3"."""
    text = f"{line.claim.place} {line.claim.table}"
    found = (f"{kind} {number}" for kind, numbers in NUMBERED.findall(text) for number in numbers.split(" and "))
    return list(dict.fromkeys(found))


def text(paper: str, judged: Sequence[Line]) -> str:
    """Return a report in Markdown.

    Args:
        paper: The paper.
        judged: The judged claims of all studies of the paper.
    """
    report = written(paper, judged)
    if report is None:
        return NOTHING
    filled = Filled(paper, report, judged)
    answers = []
    for field, head in SECTIONS.items():
        answer = getattr(report, field)
        if not isinstance(answer, str):
            cause = {one: f" *Cause: {filled.cause(one)}.*" for one in report.fails}
            answer = "\n".join(["\n", *(f"- {one.says}{cause.get(one, '')}" for one in answer)]) if answer else ""
        answers += [f"**{head}.** {answer}"] if answer else []
    picture = f"```{{figure}} generated/report-{paper}.png\n:name: fig-report-{paper}\n:alt: {report.caption}\n"
    figure = f"{picture}\n{report.caption}\n```"
    sentences = (filled.fill(sentence) for sentence in (*answers, f"> {report.quote}"))
    return "\n\n".join([*sentences, figure, _table(filled)]) + "\n"


def _table(filled: Filled) -> str:
    """Return the table that leads from every part of the paper to its pages and verdicts."""
    rows = [("part", "what it shows", "page", "verdicts, or why there is none"), ("---",) * 4]
    for place, lines in filled.about.items():
        entry = filled.report.places.get(place, {"about": f"statements in {REST}"})
        pages = dict.fromkeys(line.claim.study for line in lines)
        links = ", ".join(f"{{doc}}`{name} <executed/{studies.paper_of(name)}/{name}>`" for name in pages)
        if place != REST or lines:
            verdicts = claims.in_words(lines) or entry["none"]
            rows.append(("elsewhere" if place == REST else place, entry["about"], links or "–", verdicts))
    caption = f"Every numbered part of {filled.paper}, the pages that check it, and the verdicts on its claims."
    head = f":::{{table}} {caption}\n:name: tab-report-{filled.paper}\n:class: gradleak-table places\n\n"
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n:::"
