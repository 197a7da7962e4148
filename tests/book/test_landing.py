"""What leaks: every number of the first page's table comes from a record."""

from __future__ import annotations

import pytest

from gradleak import studies
from gradleak.book import landing
from gradleak.runs import records
from gradleak.show.leaks import Leaks
from gradleak.studies import Study


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


@pytest.mark.parametrize(
    ("study", "column", "value", "page", "shown"),
    [
        ("label-accuracy-intense", "accuracy", 12.5, "label-accuracy-intense", "12.5 % of 27,000 labels"),
        ("label-accuracy-intense", "milliseconds", 7.0, "label-accuracy-intense", "7 ms"),
        ("batch-soft-labels", "label_error", 0.25, "batch-soft-labels", "L1 error 2e-01"),
        ("fcn-inversion", "psnr", 11.0, "fcn-inversion", "11 dB"),
        ("exact-batch", "seconds", 42.0, "exact-batch", "42 s"),
        ("cnn-inversion", "psnr", 13.0, "cnn-inversion", "13 dB trained"),
        ("cnn-reconstruction", "psnr", 9.0, "cnn-reconstruction", "9 dB trained"),
        ("llg-attack", "success", 21.0, "llg-attack", "21 % of labels"),
        ("posterior-attack", "instances", 0.5, "posterior-attack", "50.0 % of labels"),
        ("reveal-labels", "exact", False, "reveal-labels", "0 % of sets"),
        ("batch-restoration", "accuracy", 33.0, "batch-restoration", "33.0 % of labels"),
        ("sentences", "exact", False, "sentences", "0 of "),
        ("sentences", "right", 1.0, "sentences", "none of"),
        ("transcripts", "exact", False, "transcripts", "0 of "),
        ("noise", "within_tenth", 50.0, "label-accuracy-intense", "none of"),
        ("llg-defenses", "over_guess", 0.0, "llg-attack", "prune 20% of all"),
    ],
)
def test_a_row_says_what_its_record_says(
    study: str, column: str, value: object, page: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = row(page)
    changed(monkeypatch, study, column, value)
    after = row(page)
    assert after != before
    assert shown in f"{after.exactness} {after.time} {after.stopped}"


def row(page: str) -> Leaks:
    """Return a page's row."""
    leaks: Leaks = studies.load(page).module.leaks(records.recorded(page))
    return leaks


def pages() -> list[Study]:
    """Return all pages."""
    return [studies.load(name) for name in studies.names()]


def test_every_row_leads_to_its_page() -> None:
    own = [study for study in pages() if hasattr(study.module, "leaks")]
    assert len(own) == 13
    text = landing.text(pages())
    for study in own:
        assert f"<executed/{study.paper}/{study.name}>`" in text
    assert text.count("not recorded") < 5


def test_what_is_not_recorded_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "recorded", lambda name: None)
    rows = [line for line in landing.text(pages()).splitlines() if line.startswith("| {doc}")]
    assert len(rows) == 13
    assert all(line.count("not recorded") == 4 for line in rows)
