"""Table 1's study: two rules, on features of one sign and of any, with and without repeats."""

from __future__ import annotations

import pytest

from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.yin2021 import batch_restoration

STUDY = "batch-restoration"
CHOSEN = {
    "rows": [
        {"dataset": "photos", "network": "lenet5", "activation": activation, "classes": 60}
        for activation in ("relu", "tanh")
    ],
    "sizes": [1, 20],
    "samples": 100,
}


def test_rules_find_everything_on_features_of_one_sign(record: Record) -> None:
    own = select(record.frame(), repeats=False).set_index(["activation", "rule", "size"])["accuracy"]
    assert own["relu", "GradInversion", 20] == own["relu", "row sums", 20] == own["tanh", "GradInversion", 1] == 100
    assert own["tanh", "row sums", 20] < 60


def test_repeats_are_the_limit_of_a_set(record: Record) -> None:
    rows = select(batch_restoration.restored(record), repeats=True, activation="relu", rule="GradInversion")
    assert rows["limit"].tolist() == pytest.approx([100, 85.6], abs=0.1)
    assert rows["accuracy"].tolist() == [100, pytest.approx(85.6, abs=8)]
