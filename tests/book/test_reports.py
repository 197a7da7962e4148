"""The reports on the papers say what the records say, and name every numbered part of a paper."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gradleak import claims, studies
from gradleak.book import build, reports
from gradleak.claims.model import CAUSES
from gradleak.errors import InputError

PAPERS = build.papers()
LINES = claims.lines({})
# A digit in a written sentence may only name something: ResNet18, float64, Table 3, Figure 2(a), batches of 64.
NAMES = re.compile(
    r"\{[^}]*\}|\b[A-Za-z]+-?\d[\w.-]*|\b(Tables?|Figures?|Theorem|Equation|Algorithms?|norm) \d+(\(\w\)| and \d+)?"
    r"|lower 95 % bound|batches of (more than )?\d+( to \d+)?"
)


def filled(paper: str) -> reports.Filled:
    own = [line for line in LINES if studies.paper_of(line.claim.study) == paper]
    return reports.Filled(paper, reports.read(paper), own)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_report_rests_on_decided_claims_that_say_so(paper: str) -> None:
    about = filled(paper)
    report, judged = about.report, about.judgements
    for finding in report.holds:
        assert all(judged[name].agrees for name in finding.rests), finding.says
    for finding in report.fails:
        assert not any(judged[name].agrees for name in finding.rests), finding.says
        assert set(about.cause(finding).split("; ")) <= CAUSES.keys()
    for finding in (*report.holds, *report.fails):
        assert {judged[name].verdict for name in finding.rests} <= claims.DECIDED, finding.says
    of_papers = {line.claim.id for line in claims.of_papers(about.judged)}
    for finding in report.undecided:
        verdicts = {judged[name].verdict for name in finding.rests if name in of_papers}
        assert verdicts, finding.says
        assert not verdicts & claims.DECIDED, "what a stand-in measured neither holds nor fails"


@pytest.mark.parametrize("paper", PAPERS)
def test_a_report_quotes_records_and_types_no_number(paper: str) -> None:
    about = filled(paper)
    for finding in about.report.findings:
        used = set(re.findall(r"\{c\[([^\]]+)\]\.(?:text|cases|value)", finding.says))
        assert used <= {*finding.rests}, "a sentence quotes a value on which it does not rest"
        assert "than the paper" not in finding.says or "claim.published" in finding.says, finding.says
    report = about.report
    texts = (report.question, report.not_run, report.easy, report.hard, report.silent, report.quote)
    for sentence in (*texts, *(finding.says for finding in report.findings)):
        assert not re.search(r"\d", NAMES.sub("", sentence)), sentence


@pytest.mark.parametrize("paper", PAPERS)
def test_every_part_of_a_paper_has_verdicts_or_says_why_not(paper: str) -> None:
    about = filled(paper)
    for place, entry in about.report.places.items():
        assert bool(about.about[place]) is not bool(entry.get("none")), place
    of_papers = claims.of_papers(about.judged)
    counted = {line.claim.id for lines in about.about.values() for line in lines}
    assert counted == {line.claim.id for line in of_papers}
    text = reports.text(paper, about.judged)
    for page in {line.claim.study for line in of_papers}:
        assert f"<executed/{paper}/{page}>" in text
    assert f":name: tab-report-{paper}" in text


def test_places_are_read_from_a_claims_place_and_table() -> None:
    places = {line.claim.id: reports.places_of(line) for line in LINES}
    assert places["theorem1-sum-float64"] == ["Theorem 1"]
    assert places["failure-analysis-bound"] == ["Appendix B"]
    assert places["gs-psnr-two"] == ["Figure 5", "Figure 6"]
    assert places["noise-drop"] == []


def test_what_a_report_lacks_is_named() -> None:
    with pytest.raises(InputError, match="no-such-claim"):
        filled(PAPERS[0]).fill("It is {c[no-such-claim].text}.")
    about = filled("wang2024")
    fewer = about.report.model_copy(update={"places": {k: v for k, v in about.report.places.items() if k != "Table 2"}})
    with pytest.raises(InputError, match="about Table 2"):
        _ = replace(about, report=fewer).about
    assert reports.text("no-such-paper", []) == reports.NOTHING
    lines = [line for line in LINES if line.claim.study == "theorem1"]
    assert reports.text("wang2024", lines) == reports.NOTHING, "this book lacks pages on which the report rests"
