"""A report on each paper: written sentences with numbers from the records, and the verdicts on every part of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import yaml
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradleak import claims, paths, studies
from gradleak.claims import Judgement, Line
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.show import figures

# "Figures 5 and 6" and "Table 2" in the place of a claim.
NUMBERED = re.compile(
    r"\b(Figure|Table|Theorem|Property|Appendix|Algorithm)s? ((?:\d+|[A-H]\b)(?: and (?:\d+|[A-H]\b))*)"
)
REST = "the text"


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
        findings = [finding.says for finding in self.findings]
        return [self.question, *findings, self.not_run, self.easy, self.hard, self.silent, self.quote]


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
    def decided(self) -> int:
        """The number of claims that are decided at the paper's scale."""
        return sum(line.recorded.verdict in claims.DECIDED for line in self.lines)

    @property
    def words(self) -> str:
        """The numbers of claims by verdict."""
        return claims.in_words(self.lines)


class Filled:
    """A report with the numbers of the records.

    Args:
        paper: The citation key of the paper.
        judged: The judged claims of all studies of the paper.
    """

    def __init__(self, paper: str, judged: Sequence[Line]) -> None:
        self.paper = paper
        self.report = read(paper)
        self.lines = claims.of_papers(judged)
        self.by_id = {line.claim.id: line for line in judged}

    @cached_property
    def judgements(self) -> Mapping[str, Judgement]:
        """The judgements of the recorded run, by the claims' ids."""
        return {name: line.recorded for name, line in self.by_id.items()}

    @cached_property
    def tallies(self) -> Mapping[str, Tally]:
        """The claims about every place of the paper, and under `REST` those about none of them."""
        by_place: dict[str, list[Line]] = {place: [] for place in (*self.report.places, REST)}
        for line in self.lines:
            for place in places_of(line) or [REST]:
                if place not in by_place:
                    raise InputError(f"claim '{line.claim.id}' is about {place}, which {file_name(self.paper)} lacks")
                by_place[place].append(line)
        return {place: Tally(tuple(lines)) for place, lines in by_place.items()}

    def cause(self, finding: Finding) -> str:
        """Return the causes of the claims on which a sentence about what fails rests, as the scoreboard lists them."""
        found = [self.by_id[name].cause or "not explained yet" for name in finding.rests]
        return "; ".join(dict.fromkeys(found))

    def fill(self, text: str) -> str:
        """Return a sentence with its numbers."""
        try:
            return text.format(c=self.judgements, t=self.tallies)
        except (KeyError, AttributeError, ValueError, IndexError) as error:
            raise InputError(f"{file_name(self.paper)}: '{text[:60]}…' names {error}, which is not known") from error


def file_name(paper: str) -> str:
    """Return the name of the file with a paper's report."""
    return f"book/reports/{paper}.yaml"


def read(paper: str) -> Report:
    """Read the written part of a paper's report."""
    file = paths.book() / "reports" / f"{paper}.yaml"
    try:
        return Report.model_validate(yaml.safe_load(file.read_text("utf-8")))
    except FileNotFoundError as error:
        raise InputError(f"paper '{paper}' has no report: expected {file_name(paper)}") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise InputError(f"{file_name(paper)}: {error}") from error


def written(paper: str, judged: Sequence[Line]) -> bool:
    """Whether a paper has a report, and this book has the pages on which it rests.

    Args:
        paper: The paper.
        judged: The judged claims of all studies of the paper.
    """
    if not (paths.book() / "reports" / f"{paper}.yaml").is_file():
        return False
    report = read(paper)
    known = {line.claim.id for line in judged}
    named = {name for finding in report.findings for name in finding.rests}
    return report.page in studies.names() and named <= known


def places_of(line: Line) -> list[str]:
    """Return the numbered parts of the paper that a claim is about: "Figure 2", "Table 3"."""
    text = f"{line.claim.place} {line.claim.table}"
    found = (f"{kind} {number}" for kind, numbers in NUMBERED.findall(text) for number in numbers.split(" and "))
    return list(dict.fromkeys(found))


NOTHING = "*This book has no report on this paper yet, or not the pages on which it rests.*\n"


def text(paper: str, judged: Sequence[Line]) -> str:
    """Return a report in Markdown.

    Args:
        paper: The paper.
        judged: The judged claims of all studies of the paper.
    """
    if not written(paper, judged):
        return NOTHING
    filled = Filled(paper, judged)
    report, say = filled.report, filled.fill
    options = f":name: fig-report-{paper}\n:alt: {report.caption}\n"
    picture = f"```{{figure}} generated/report-{paper}.png\n{options}\n{report.caption}\n```"

    def listed(findings: Sequence[Finding], *, causes: bool = False) -> str:
        ends = [f" *Cause: {filled.cause(one)}.*" if causes else "" for one in findings]
        return "\n".join(f"- {say(one.says)}{end}" for one, end in zip(findings, ends, strict=True))

    parts = {
        "What the paper set out to show": say(report.question),
        "What holds": listed(report.holds),
        "What does not hold": listed(report.fails, causes=True),
        "What stand-ins show, without deciding it": listed(report.undecided) if report.undecided else "",
        "What was not run": say(report.not_run),
        "What was easy": say(report.easy),
        "What was hard": say(report.hard),
        "What neither the text nor the code tells": say(report.silent),
    }
    answers = []
    for head, answer in parts.items():
        between = "\n\n" if answer.startswith("- ") else " "
        answers += [f"**{head}.**{between}{answer}"] if answer else []
    return "\n\n".join([*answers, f"> {say(report.quote)}", picture, _table(filled)]) + "\n"


def _table(filled: Filled) -> str:
    """Return the table that leads from every part of the paper to its pages and verdicts."""
    rows = [
        f"| {place} | {entry.about} | {_pages(filled.tallies[place])} | {filled.tallies[place].words or entry.none} |"
        for place, entry in filled.report.places.items()
    ]
    rest = filled.tallies[REST]
    if rest.all:
        rows.append(f"| elsewhere | statements in {REST} | {_pages(rest)} | {rest.words} |")
    caption = f"Every numbered part of {filled.paper}, the pages that check it, and the verdicts on its claims."
    lines = ["| part | what it shows | page | verdicts, or why there is none |", "| --- | --- | --- | --- |", *rows]
    return (
        f":::{{table}} {caption}\n:name: tab-report-{filled.paper}\n:class: gradleak-table places\n\n"
        + "\n".join(lines)
        + "\n:::"
    )


def _pages(tally: Tally) -> str:
    """Return links to the pages that measure some claims."""
    pages = Counter(line.claim.study for line in tally.lines)
    links = (f"{{doc}}`{name} <executed/{studies.paper_of(name)}/{name}>`" for name in pages)
    return ", ".join(links) or "–"


def chapter(paper: str) -> str:
    """Return the title of a paper's chapter with the paper's key, such as "Soft labels (wang2024)"."""
    file = paths.book() / f"{paper}.md"
    title = file.read_text("utf-8").partition("\n")[0].removeprefix("# ") if file.is_file() else ""
    return f"{title} ({paper})" if title else paper


def figure(paper: str) -> Figure:
    """Draw the figure of a paper's report, from the recorded run of its page."""
    page = read(paper).page
    record = records.recorded(page)
    if record is None:
        return figures.nothing(f"page '{page}' is not recorded")
    drawn: Figure = studies.load(page).module.headline(record).figure(record)
    return drawn
