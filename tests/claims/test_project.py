"""The project's claims, its records and the reports on its papers, together.

A stand-in decides nothing, a published method is never better, what fails has a cause, whoever only guesses fails every
claim that an attack does well, and the reports say what the records say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import replace

import pytest
import torch

from gradleak import claims, data, metrics, studies
from gradleak.book import build, queue, reports
from gradleak.claims import Claim
from gradleak.claims.judging import ANSWERS, ATTACKERS, TRIVIAL, judge, selected
from gradleak.claims.model import CAUSES
from gradleak.errors import InputError
from gradleak.studies.shared.samples import LABELS, soft_labels
from tests.recorded import lines, record_of

# The attacks that others published, by the words for them in rows of records, and the runs of the papers' searches.
PUBLISHED = {
    "LLG", "LLG*", "LLG+", "LLG*, zeros", "LLG*, ones", "iLRG", "posterior", "DLG", "iDLG", "GT", "Ours",
    "DLG + Ours", "RLG", "RLG as coded", "minimum rule", "row sums", "GradInversion", "as coded", "swarm",
    "lbfgs, then pso", "search",
}  # fmt: skip
GUESSES = ("guess", "guess, drawn")
# The gain of one attack over another, or of a setting over another.
GAINS = {
    "low", "lower", "over_guess", "over_llg", "lost", "gain", "identified_gain", "bag_gains", "starts_gain",
    "over_matching",
}  # fmt: skip
PSNR = {"psnr", "image-psnr", "eight_bit"}
# Columns that may be negative, and columns with values of at most 1.
SIGNED = GAINS | PSNR | {"ssim", "least_weight", "over_guess_least", "difference"}
SHARES = {"precision", "recall", "f1", "instances"}
# A label's own error is that of our solver, whatever is searched with the label afterwards.
OWN = ("label_error",)
# Why no trivial attacker is known for a column: it measures no success.
NO_SUCCESS = {
    "a difference of two attacks or settings, which equal ones do not have": GAINS
    | {"ahead", "apart", "difference", "high", "over_guess_least", "over_guess_most", "over_others", "over_unbalanced"},
    "data compared, beside claims that the attack succeeds on them": {"drawn_beyond", "same"},
    "times and sizes": {
        "cases", "cpu_seconds", "extra_seconds", "seconds", "times", "times_faster", "times_seconds", "times_slower",
        "variables",
    },
    "wrong answers, or keeping silent": {
        "ambiguous", "bad", "deceived", "failed", "honest", "images_honest", "lost", "proved_wrong", "searched_wrong",
        "silent", "silently", "unique_count", "wrong", "wrongly_sure",
    },
    "a property of gradients, losses and networks, without an attacker": {
        "absent_negative", "best_wrong", "bound_share", "correlation", "first_wrong", "found", "impact_variation",
        "interval", "label_distance", "least_weight", "mean", "median_label_error_closed_form", "negative_interval",
        "present_positive", "slope_differs", "spread", "sum_error", "test_accuracy", "value", "variation", "widening",
        "within", "worst", "zero",
    },
    "the number of words is a part of the answer, and a wrong number makes the words wrong": {"length_error"},
}  # fmt: skip
# The answers that are called unique and are wrong.
PROMISES = {"silent", "silently", "wrongly_sure", "deceived", "wrong", "proved_wrong"}
# Shares of labels that are right up to an L1 error, and of texts that are exact.
RECOVERED = dict.fromkeys(("accuracy", "counted_zero", "drawn", "right", "searched_right", "whole", "within_one"), 1e-3)
RECOVERED |= {"within_tenth": 0.1}
PAPERS = build.papers()
# A digit in a written sentence may only name something: ResNet18, float64, Table 3, Figure 2(a), batches of 64.
NAMES = re.compile(
    r"\{[^}]*\}|\b[A-Za-z]+-?\d[\w.-]*|\b(Tables?|Figures?|Theorem|Equation|Algorithms?|norm) \d+(\(\w\)| and \d+)?"
    r"|lower 95 % bound|batches of (more than )?\d+( to \d+)?"
)


def demanding(columns: Collection[str]) -> list[Claim]:
    """Return the claims that ask for much in one of these columns, and are evidence."""
    every = (line.claim for line in lines() if line.verdict != "no evidence")
    return [one for one in every if one.measure.column in columns and one.rule.at_least is not None]


def about(claim: Claim, **attack: str) -> Claim:
    """Return the claim as it would be about another attack; without one, as it would be about all of them."""
    where = {name: value for name, value in claim.measure.where.items() if name != "attack"} | attack
    return claim.model_copy(update={"measure": claim.measure.model_copy(update={"where": where})})


def met(asked: list[Claim], value: float) -> list[str]:
    """Return the claims that this value meets."""
    return [f"{one.study}: {one.id}" for one in asked if one.holds(value * (100 if one.unit == "%" else 1))]


def test_ids_are_unique_over_all_pages_and_fit_into_an_address() -> None:
    # "claims/<id>.html" is the file of a claim's page, also where file names ignore case.
    names = [line.claim.id.lower() for line in lines()]
    assert len(names) == len(set(names))
    assert not [name for name in names if set(name) & set(" \t\n\"'<>#%?&`/\\")]


@pytest.mark.parametrize("name", studies.names())
def test_claims_name_what_exists_and_are_no_looser_than_when_they_were_recorded(name: str) -> None:
    record, known = record_of(name), set(studies.load(name).Parameters.model_fields)
    columns = known.union(*record.lines)
    own = claims.load(name)
    assert own
    for claim in own:
        assert set(claim.needs) <= known, f"{claim.id} needs a parameter that its study does not have"
        assert {*(claim.setting if isinstance(claim.setting, dict) else {})} <= {*columns, *claim.used}, claim.id
    assert claims.loosened(record) == []
    predictions = {claim.id for claim in own if claim.ours == "prediction"}
    assert not record.rules or predictions <= record.rules.keys(), "written after the run, and called predictions"


def test_every_rule_can_fail() -> None:
    for claim in claims.load():
        column = claim.measure.column
        percent = claim.measure.reduce == "share" or claim.unit == "%"
        greatest = 100.0 if percent else 1.0 if column in SHARES else math.inf
        least, most = claim.accepted()
        assert least > (-math.inf if column in SIGNED else 0.0) or most < greatest, claim.id


def test_a_stand_in_is_never_reproduced_and_a_published_method_never_better() -> None:
    of_papers = claims.of_papers(lines())
    waiting = {name for entry in queue.queue() for name in entry.decides}
    assert {line.claim.id for line in lines() if line.verdict == "not run"} <= waiting, "no run would measure it"
    differing = {line.claim.id: line for line in of_papers if line.recorded.differs}
    assert {line.claim.id for line in of_papers if line.claim.stand_in} == differing.keys()
    assert {line.verdict for line in differing.values()} == {"stand-in: agrees", "stand-in: disagrees", "no evidence"}
    better = [line.claim for line in lines() if line.verdict == "better"]
    assert len(differing) > 180
    assert len(better) > 10
    assert {claim.method for claim in better} == {"own"}
    for line in of_papers:
        names = {str(line.claim.measure.where.get(key)) for key in ("attack", "run", "rule", "solver")}
        if names & PUBLISHED and line.claim.measure.column not in OWN:
            assert line.claim.method == "published", f"{line.claim.study}: {line.claim.id}"


def test_what_fails_or_was_changed_says_why() -> None:
    failing = [line for line in lines() if line.failing]
    assert not [line.claim.id for line in lines() if line.disagrees and line.cause is None]
    assert not [line.claim.id for line in failing if not line.claim.note.strip()]
    assert {line.cause for line in lines()} == {None, *CAUSES}
    # A table may state the cause of all its failing cells at once; a claim outside a table states its own.
    places = {(line.claim.study, line.claim.table or line.claim.id) for line in failing}
    assert {(one.claim.study, one.claim.table or one.claim.id) for one in lines() if one.claim.cause} <= places
    changes = [(line.claim.id, change) for line in lines() for change in line.claim.changed]
    kinds = {change.kind for _, change in changes}
    assert kinds >= {"measure", "rule tightened", "rule made looser", "scale", "written after the run"}
    assert not [name for name, change in changes if len(change.why) <= 20 or "2026-" not in change.why]


def test_what_a_guess_meets_is_no_evidence_and_nothing_gains_over_itself() -> None:
    tried, agreeing = 0, set()
    for claim in (line.claim for line in lines()):
        attack = claim.measure.where.get("attack")
        # A claim that an attack finds little is one about a defence, and a guess may well meet it.
        if attack is None or attack in GUESSES or claim.rule.at_least is None:
            continue
        record = record_of(claim.study)
        for guess in {row.get("attack") for row in selected(about(claim), record)}.intersection(GUESSES):
            tried += 1
            if judge(about(claim, attack=guess), record).agrees and judge(claim, record).agrees:
                agreeing.add(claim.id)
    none = {line.claim.id: line.recorded.trivial for line in lines() if line.verdict == "no evidence"}
    assert tried > 30
    assert agreeing <= none.keys()
    assert {"guess", "constant", "mean colour", *list(ANSWERS)[:2]} == set(none.values())
    # "Worse by no more than" is met by what is alike, and says so.
    gains = [one for one in demanding(GAINS) if (one.rule.at_least or 0) >= 0]
    assert len(gains) > 50
    assert met(gains, 0.0) == []


def test_for_every_measure_a_trivial_attacker_is_known_or_why_there_is_none() -> None:
    excused = set().union(*NO_SUCCESS.values())
    for claim in (line.claim for line in lines()):
        column = claim.measure.column
        beside = (
            row.get(column) is not None and not TRIVIAL.isdisjoint(str(row.get(name)) for name in ATTACKERS)
            for row in record_of(claim.study).lines
        )
        assert column in excused.union(*ANSWERS.values()) or any(beside), f"{claim.id} measures {column}"
    assert not excused.intersection(*ANSWERS.values())


def test_who_is_never_sure_breaks_no_promise_and_finds_nothing() -> None:
    promises = [one for one in claims.load() if one.measure.column in PROMISES and one.rule.at_most == 0]
    assert len(promises) > 15
    asking = {line.claim.study for line in lines() if line.recorded.agrees and not line.claim.holds(0.0)}
    assert {promise.study for promise in promises} <= asking, "a page asks for no answers"


@pytest.mark.parametrize("kind", LABELS)
def test_a_label_that_is_made_up_is_not_recovered(kind: str) -> None:
    classes, count = 10, 20_000
    generator = torch.Generator().manual_seed(0)
    truth, drawn = (
        soft_labels(kind, torch.randint(classes, (count,), generator=generator), classes, generator) for _ in range(2)
    )
    constant = torch.full_like(truth, 1 / classes)
    for column, near in RECOVERED.items():
        best = max(float((metrics.label_error(own, truth) < near).double().mean()) for own in (drawn, constant))
        assert kind == "onehot" or best < 0.03
        # A class that is drawn is right for one of ten; no claim has fewer classes and asks for so little.
        assert met(demanding({column}), best) == []


def test_the_mean_of_other_images_is_no_reconstruction() -> None:
    private, public = (data.load("photos", split).images for split in ("train", "test"))
    grey, mean = torch.full_like(private, 0.5), public.mean(dim=0, keepdim=True).expand_as(private)
    best = max(float(metrics.psnr(own, private).mean()) for own in (grey, mean))
    assert best == pytest.approx(ANSWERS["the mean of other images"]["psnr"], abs=0.3)
    asked = demanding(PSNR)
    assert len(asked) > 10
    assert met(asked, best) == []


def filled(paper: str) -> reports.Filled:
    own = [line for line in lines() if studies.paper_of(line.claim.study) == paper]
    return reports.Filled(paper, reports.read(paper), own)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_report_rests_on_decided_claims_and_types_no_number(paper: str) -> None:
    about = filled(paper)
    report, judged = about.report, about.judgements
    for finding in (*report.holds, *report.fails):
        assert {judged[name].verdict for name in finding.rests} <= claims.DECIDED, finding.says
        assert {judged[name].agrees for name in finding.rests} == {finding in report.holds}, finding.says
    for finding in report.fails:
        assert set(about.cause(finding).split("; ")) <= CAUSES.keys()
    of_papers = {line.claim.id for line in claims.of_papers(about.judged)}
    for finding in report.undecided:
        verdicts = {judged[name].verdict for name in finding.rests if name in of_papers}
        assert verdicts, finding.says
        assert not verdicts & claims.DECIDED, "what a stand-in measured neither holds nor fails"
    for finding in report.findings:
        used = set(re.findall(r"\{c\[([^\]]+)\]\.(?:text|cases|value)", finding.says))
        assert used <= {*finding.rests}, "a sentence quotes a value on which it does not rest"
        assert "than the paper" not in finding.says or "claim.published" in finding.says, finding.says
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


def test_places_are_read_from_a_claims_place_and_table_and_what_a_report_lacks_is_named() -> None:
    places = {line.claim.id: reports.places_of(line) for line in lines()}
    assert places["gs-psnr-two"] == ["Figure 5", "Figure 6"]
    assert places["noise-drop"] == []
    about = filled("wang2024")
    with pytest.raises(InputError, match="no-such-claim"):
        about.fill("It is {c[no-such-claim].text}.")
    fewer = about.report.model_copy(update={"places": {k: v for k, v in about.report.places.items() if k != "Table 2"}})
    with pytest.raises(InputError, match="about Table 2"):
        _ = replace(about, report=fewer).about
    some = [line for line in lines() if line.claim.study == "theorem1"]
    assert reports.text("wang2024", some) == reports.NOTHING, "this book lacks pages on which the report rests"
