"""What leaks: every number of the first page's table comes from a record."""

from __future__ import annotations

import pytest

from gradleak import studies
from gradleak.book import landing
from gradleak.runs import records


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
    ("study", "column", "value", "row", "shown"),
    [
        ("label-accuracy-intense", "accuracy", 12.5, landing.soft_label, "12.5 % of 27,000 labels"),
        ("label-accuracy-intense", "milliseconds", 7.0, landing.soft_label, "7 ms"),
        ("batch-soft-labels", "label_error", 0.25, landing.batch_labels, "L1 error 2e-01"),
        ("fcn-inversion", "psnr", 11.0, landing.image_fully_connected, "11 dB"),
        ("exact-batch", "seconds", 42.0, landing.images_of_a_batch, "42 s"),
        ("cnn-inversion", "psnr", 13.0, landing.image_convolutional, "13 dB trained"),
        ("cnn-reconstruction", "psnr", 9.0, landing.image_matched, "9 dB trained"),
        ("llg-attack", "success", 21.0, landing.labels_by_sign, "21 % of labels"),
        ("posterior-attack", "instances", 0.5, landing.labels_by_posterior, "50.0 % of labels"),
        ("reveal-labels", "exact", False, landing.labels_by_factors, "0 % of sets"),
        ("batch-restoration", "accuracy", 33.0, landing.labels_by_minimum, "33.0 % of labels"),
        ("sentences", "exact", False, landing.sentences_in_order, "0 of "),
        ("sentences", "right", 1.0, landing.sentences_in_order, "none of"),
        ("transcripts", "exact", False, landing.transcript, "0 of "),
        ("noise", "within_tenth", 50.0, landing.soft_label, "none of"),
        ("llg-defenses", "over_guess", 0.0, landing.labels_by_sign, "prune 20% of all"),
    ],
)
def test_a_row_says_what_its_record_says(
    study: str, column: str, value: object, row: landing.Row, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = row()
    changed(monkeypatch, study, column, value)
    after = row()
    assert after != before
    assert shown in f"{after.exactly} {after.time} {after.stopped}"


def test_every_row_leads_to_its_page() -> None:
    text = landing.text()
    for _, page, _ in landing.ROWS:
        assert f"<executed/{studies.paper_of(page)}/{page}>`" in text
    assert text.count("not recorded") < 5


def test_what_is_not_recorded_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "recorded", lambda name: None)
    rows = [line for line in landing.text().splitlines() if line.startswith("| {doc}")]
    assert len(rows) == len(landing.ROWS)
    assert all(line.count("not recorded") == 4 for line in rows)
