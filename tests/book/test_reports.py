"""The reports on the papers say what the records say, and name every numbered part of a paper."""

from __future__ import annotations

import re

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
    return reports.Filled(paper, [line for line in LINES if studies.paper_of(line.claim.study) == paper])


@pytest.mark.parametrize("paper", PAPERS)
def test_a_report_rests_on_claims_that_say_so(paper: str) -> None:
    report = filled(paper)
    for finding in report.report.holds:
        assert all(report.judgements[name].agrees for name in finding.rests), finding.says
    for finding in report.report.fails:
        assert not any(report.judgements[name].agrees for name in finding.rests), finding.says
        assert set(report.cause(finding).split("; ")) <= CAUSES.keys()
    for finding in report.report.findings:
        used = set(re.findall(r"\{c\[([^\]]+)\]\.(?:text|cases|value)", finding.says))
        assert used <= {*finding.rests}, "a sentence quotes a value on which it does not rest"


@pytest.mark.parametrize("paper", PAPERS)
def test_what_a_stand_in_measured_neither_holds_nor_fails(paper: str) -> None:
    report = filled(paper)
    for finding in (*report.report.holds, *report.report.fails):
        assert {report.judgements[name].verdict for name in finding.rests} <= claims.DECIDED, finding.says
    of_papers = {line.claim.id for line in report.lines}
    for finding in report.report.undecided:
        verdicts = {report.judgements[name].verdict for name in finding.rests if name in of_papers}
        assert verdicts, finding.says
        assert not verdicts & claims.DECIDED, finding.says


@pytest.mark.parametrize("paper", PAPERS)
def test_a_comparison_with_the_paper_quotes_the_paper(paper: str) -> None:
    for finding in reports.read(paper).findings:
        assert "than the paper" not in finding.says or "claim.published" in finding.says, finding.says


@pytest.mark.parametrize("paper", PAPERS)
def test_no_number_of_a_report_is_typed(paper: str) -> None:
    for sentence in reports.read(paper).sentences:
        assert not re.search(r"\d", NAMES.sub("", sentence)), sentence


@pytest.mark.parametrize("paper", PAPERS)
def test_a_report_is_about_four_hundred_words(paper: str) -> None:
    report = filled(paper)
    assert 280 <= sum(len(report.fill(sentence).split()) for sentence in report.report.sentences) <= 480


@pytest.mark.parametrize("paper", PAPERS)
def test_every_part_of_a_paper_has_verdicts_or_says_why_not(paper: str) -> None:
    report = filled(paper)
    for place, entry in report.report.places.items():
        assert bool(report.tallies[place].all) is not bool(entry.none), place
    counted = {line.claim.id for tally in report.tallies.values() for line in tally.lines}
    assert counted == {line.claim.id for line in report.lines}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_report_leads_to_its_pages(paper: str) -> None:
    lines = [line for line in LINES if studies.paper_of(line.claim.study) == paper]
    text = reports.text(paper, lines)
    for page in {line.claim.study for line in claims.of_papers(lines)}:
        assert f"<executed/{paper}/{page}>" in text
    assert f":name: tab-report-{paper}" in text


def test_places_are_read_from_a_claims_place_and_table() -> None:
    places = {line.claim.id: reports.places_of(line) for line in LINES}
    assert places["theorem1-sum-float64"] == ["Theorem 1"]
    assert places["failure-analysis-bound"] == ["Appendix B"]
    assert places["gs-psnr-two"] == ["Figure 5", "Figure 6"]
    assert places["noise-drop"] == []


def test_an_unknown_claim_in_a_sentence_is_named() -> None:
    with pytest.raises(InputError, match="no-such-claim"):
        filled(PAPERS[0]).fill("It is {c[no-such-claim].text}.")


def test_a_claim_about_a_part_that_the_report_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    report = reports.read("wang2024")
    fewer = report.model_copy(update={"places": {k: v for k, v in report.places.items() if k != "Table 2"}})
    monkeypatch.setattr(reports, "read", lambda paper: fewer)
    with pytest.raises(InputError, match="about Table 2"):
        _ = filled("wang2024").tallies


def test_a_paper_without_a_report_says_so() -> None:
    assert reports.text("no-such-paper", []) == reports.NOTHING


def test_a_book_without_some_of_the_pages_leaves_the_report_out() -> None:
    lines = [line for line in LINES if line.claim.study == "theorem1"]
    assert reports.text("wang2024", lines) == reports.NOTHING
