"""What leaks: every number of the first page's table comes from a record, and so do the defences that it names."""

from __future__ import annotations

import functools

import pytest

from gradleak import studies
from gradleak.book import explorer, landing
from gradleak.book.stopping import LEAST, stop
from gradleak.runs import records
from gradleak.show.leaks import Leaks
from gradleak.studies import Study
from gradleak.studies.shared.outcomes import KINDS, RESCALING, Outcome, family

# Pages whose attacks an engineer looks for in the explorer.
EXPLORED = (
    *("llg-attack", "llg-architectures", "llg-training", "llg-defenses", "label-attacks-compared"),
    *("batch-restoration", "reveal-labels", "posterior-attack", "posterior-trained"),
    *("label-accuracy", "label-accuracy-intense", "label-accuracy-as-coded", "noise", "identifiability"),
    *("batch-soft-labels", "joint-batches", "cocktail-party"),
    *("fcn-inversion", "cnn-inversion", "exact-batch", "peeling", "peeling-limits"),
    *("cnn-reconstruction", "feature-matching", "what-matching-costs"),
    *("gradinversion", "gradinversion-baselines", "gradinversion-batches", "gradinversion-many", "gradinversion-long"),
    *("sentences", "defended-sentences", "words", "spoken"),
    *("transcripts", "harder-transcripts", "matched-transcripts"),
    *("precision", "audit"),
)


def changed(monkeypatch: pytest.MonkeyPatch, study: str, column: str, value: object) -> None:
    """Let a study's record say another thing in every row that has this column."""
    kept, recorded = records.recorded(study), records.recorded
    assert kept is not None
    trials = [
        trial.model_copy(update={"rows": [row | ({column: value} if column in row else {}) for row in trial.rows]})
        for trial in kept.trials
    ]
    other = kept.model_copy(update={"trials": trials})
    monkeypatch.setattr(records, "recorded", lambda name: other if name == study else recorded(name))


@functools.cache
def pages() -> list[Study]:
    """Return all pages."""
    return [studies.load(name) for name in studies.names()]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """The outcomes of all records."""
    return explorer.gather(pages())


@pytest.mark.parametrize(
    ("study", "column", "value", "page", "shown"),
    [
        ("label-accuracy-intense", "accuracy", 12.5, "label-accuracy-intense", "12.5 % of 27,000 labels"),
        ("label-accuracy-intense", "milliseconds", 7.0, "label-accuracy-intense", "7 ms elapsed"),
        ("batch-soft-labels", "label_error", 0.25, "batch-soft-labels", "L1 error 2e-01"),
        ("fcn-inversion", "psnr", 11.0, "fcn-inversion", "11 dB"),
        ("fcn-inversion", "seconds", 42.0, "fcn-inversion", "42 s"),
        ("exact-batch", "seconds", 42.0, "exact-batch", "42 s elapsed"),
        ("cnn-inversion", "psnr", 13.0, "cnn-inversion", "13 dB trained"),
        ("cnn-reconstruction", "psnr", 9.0, "cnn-reconstruction", "9 dB trained"),
        ("llg-attack", "success", 21.0, "llg-attack", "21 % of labels"),
        ("posterior-attack", "instances", 0.5, "posterior-attack", "instance accuracy (Jaccard index) 0.500"),
        ("reveal-labels", "exact", False, "reveal-labels", "0 % of sets"),
        ("batch-restoration", "accuracy", 33.0, "batch-restoration", "33.0 % of labels"),
        ("sentences", "exact", False, "sentences", "0 of "),
        ("transcripts", "exact", False, "transcripts", "0 of "),
    ],
)
def test_a_row_says_what_its_record_says(
    study: str, column: str, value: object, page: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = row(page)
    changed(monkeypatch, study, column, value)
    after = row(page)
    assert after != before
    assert shown in f"{after.exactness} {after.time}"


def row(page: str) -> Leaks:
    """Return a page's row."""
    leaks: Leaks = studies.load(page).module.leaks(records.recorded(page))
    return leaks


def test_every_row_leads_to_its_page_and_names_a_kind_of_leak(outcomes: list[Outcome]) -> None:
    own = [study for study in pages() if hasattr(study.module, "leaks")]
    assert len(own) == 13
    text = landing.text(pages(), outcomes)
    for study in own:
        assert f"<executed/{study.paper}/{study.name}>`" in text
        assert row(study.name).kind in KINDS
    assert text.count("not recorded") < 5


def test_what_is_not_recorded_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "recorded", lambda name: None)
    assert explorer.gather(pages()) == []
    rows = [line for line in landing.text(pages(), []).splitlines() if line.startswith("| {doc}")]
    assert len(rows) == 13
    assert all(line.count("not recorded") == 4 for line in rows)


def test_the_named_pages_state_their_outcomes(outcomes: list[Outcome]) -> None:
    assert {one.page for one in outcomes} == set(EXPLORED)
    assert {one.leak for one in outcomes} == set(KINDS)


def test_no_two_outcomes_have_the_same_setting(outcomes: list[Outcome]) -> None:
    settings = [
        (one.page, one.measure, *(getattr(one, axis) for axis in (*explorer.CHOICES, "defense", "detail")))
        for one in outcomes
    ]
    assert len(settings) == len(set(settings))


def test_outcomes_are_numbers_with_their_intervals(outcomes: list[Outcome]) -> None:
    for one in outcomes:
        assert one.count >= 1
        assert one.batch >= 1
        assert one.attack
        assert one.network
        assert one.training in ("trained", "untrained")
        assert not one.low > one.value
        assert not one.high < one.value
        assert one.unit == "dB" or (0 <= one.value <= 100 and one.low <= one.high)


def test_no_rescaling_is_named_and_every_stop_is_in_the_records(outcomes: list[Outcome]) -> None:
    for kind in KINDS:
        named = stop(kind, outcomes)
        if named is None:
            continue
        assert named.family != RESCALING
        proof = [
            one
            for one in outcomes
            if (one.leak, one.family, one.page) == (kind, named.family, named.page) and one.cosine == named.cosine
        ]
        assert any(one.count >= LEAST for one in proof)
        assert max(one.severity for one in proof) == 0


def test_an_audit_refutes_what_clipping_seems_to_stop(outcomes: list[Outcome]) -> None:
    images = [one for one in outcomes if one.leak == "images" and one.family == RESCALING]
    assert any(one.page == "fcn-inversion" and one.severity == 0 for one in images)
    assert any(one.page == "audit" and one.severity == 3 for one in images)


@pytest.mark.parametrize(
    ("study", "column", "value", "kind"),
    [
        ("noise", "within_tenth", 50.0, "soft labels"),
        ("fcn-inversion", "psnr", 50.0, "images"),
        ("harder-transcripts", "exact", True, "text"),
    ],
)
def test_a_defence_is_named_no_more_where_its_record_says_that_an_attack_succeeds(
    study: str, column: str, value: object, kind: str, outcomes: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = landing.stopped(outcomes)
    assert f"{{page}}`{study}`" in before[kind]
    changed(monkeypatch, study, column, value)
    others = [one for one in outcomes if one.page != study]
    after = landing.stopped([*others, *explorer.gather([studies.load(study)])])
    assert f"{{page}}`{study}`" not in after[kind]
    assert {name: text for name, text in after.items() if name != kind} == {
        name: text for name, text in before.items() if name != kind
    }


def test_the_records_defences_have_a_family(outcomes: list[Outcome]) -> None:
    for defense in {one.defense for one in outcomes}:
        assert family(defense)


def test_the_explorer_of_all_records_is_small_enough_for_a_page(outcomes: list[Outcome]) -> None:
    script = explorer.script(pages(), outcomes)
    assert len(script) < 500_000
    text = explorer.text(pages(), outcomes)
    assert len(text) < 200_000
    assert "[not run]{.not-run}" in text
    for name in EXPLORED:
        assert f"executed/{studies.paper_of(name)}/{name}.html" in script
