"""A report on each paper: written sentences with numbers from the records, and the verdicts on every part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradleak import claims, paths, studies
from gradleak.claims import Judgement, Line
from gradleak.errors import InputError

# "Figures 5 and 6" and "Table 2" in the place of a claim.
NUMBERED = re.compile(
    r"\b(Figure|Table|Theorem|Property|Appendix|Algorithm)s? ((?:\d+|[A-H]\b)(?: and (?:\d+|[A-H]\b))*)"
)
REST = "the text"
NOTHING = "*This book has no report on this paper yet, or not the pages on which it rests.*\n"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Finding(_Strict):
    """A sentence about what holds, fails or is not decided.

    Attributes:
        says: The sentence. `{c[claim-id].text}` stands for a recorded value, `{c[claim-id].cases}` for a share as
            numbers of cases, and `{t[Table 2].agree}` for a number of claims.
        rests: The ids of the claims on which the sentence rests. If it is about what holds or fails, all of them are
            decided, and all agree with the paper or all disagree.
    """

    says: str
    rests: tuple[str, ...] = Field(min_length=1)


class Place(_Strict):
    """A numbered figure, table, theorem or appendix of a paper.

    Attributes:
        about: What it shows.
        none: Why no claim of this book is about it; "" if there is one.
    """

    about: str
    none: str = ""


class Report(_Strict):
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
        places: Every numbered figure, table, theorem and appendix of the paper.
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
    places: dict[str, Place]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All sentences that rest on claims."""
        return (*self.holds, *self.fails, *self.undecided)

    @property
    def sentences(self) -> list[str]:
        """All written sentences."""
        parts = (self.question, self.not_run, self.easy, self.hard, self.silent, self.quote)
        return [*parts, *(finding.says for finding in self.findings)]


@dataclass(frozen=True)
class Tally:
    """The judged claims about a place of a paper."""

    lines: tuple[Line, ...]

    @property
    def all(self) -> int:
        """The number of claims."""
        return len(self.lines)

    @property
    def agree(self) -> int:
        """The number of claims that agree with the paper, decided or not."""
        return sum(bool(line.recorded.agrees) for line in self.lines)

    @property
    def row(self) -> tuple[str, str]:
        """Links to the pages that measure the claims, and the numbers of claims by verdict."""
        pages = dict.fromkeys(line.claim.study for line in self.lines)
        links = (f"{{doc}}`{name} <executed/{studies.paper_of(name)}/{name}>`" for name in pages)
        return ", ".join(links) or "–", claims.in_words(self.lines)


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
    def tallies(self) -> Mapping[str, Tally]:
        """The papers' claims about every place of the paper, and under `REST` those about none of them."""
        by_place: dict[str, list[Line]] = {place: [] for place in (*self.report.places, REST)}
        for line in claims.of_papers(self.judged):
            for place in places_of(line) or [REST]:
                if place not in by_place:
                    raise InputError(f"claim '{line.claim.id}' is about {place}, which {file_of(self.paper)} lacks")
                by_place[place].append(line)
        return {place: Tally(tuple(lines)) for place, lines in by_place.items()}

    def cause(self, finding: Finding) -> str:
        """Return the causes of the claims on which a sentence about what fails rests, as the scoreboard lists them."""
        causes = {line.claim.id: line.cause or "not explained yet" for line in self.judged}
        return "; ".join(dict.fromkeys(causes[name] for name in finding.rests))

    def fill(self, text: str) -> str:
        """Return a sentence with its numbers."""
        try:
            return text.format(c=self.judgements, t=self.tallies)
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
    failing = [f"{finding.says} *Cause: {filled.cause(finding)}.*" for finding in report.fails]
    parts = {
        "What the paper set out to show": report.question,
        "What holds": [finding.says for finding in report.holds],
        "What does not hold": failing,
        "What stand-ins show, without deciding it": [finding.says for finding in report.undecided],
        "What was not run": report.not_run,
        "What was easy": report.easy,
        "What was hard": report.hard,
        "What neither the text nor the code tells": report.silent,
    }
    answers = [
        f"**{head}.** {answer}" if isinstance(answer, str) else "\n- ".join([f"**{head}.**\n", *answer])
        for head, answer in parts.items()
        if answer
    ]
    picture = f"```{{figure}} generated/report-{paper}.png\n:name: fig-report-{paper}\n:alt: {report.caption}\n"
    figure = f"{picture}\n{report.caption}\n```"
    sentences = (filled.fill(sentence) for sentence in (*answers, f"> {report.quote}"))
    return "\n\n".join([*sentences, figure, _table(filled)]) + "\n"


def _table(filled: Filled) -> str:
    """Return the table that leads from every part of the paper to its pages and verdicts."""
    rows = [("part", "what it shows", "page", "verdicts, or why there is none"), ("---",) * 4]
    for place, entry in filled.report.places.items():
        pages, verdicts = filled.tallies[place].row
        rows.append((place, entry.about, pages, verdicts or entry.none))
    if filled.tallies[REST].all:
        rows.append(("elsewhere", f"statements in {REST}", *filled.tallies[REST].row))
    caption = f"Every numbered part of {filled.paper}, the pages that check it, and the verdicts on its claims."
    head = f":::{{table}} {caption}\n:name: tab-report-{filled.paper}\n:class: gradleak-table places\n\n"
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n:::"
