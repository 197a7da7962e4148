"""Table 1's study: two rules, on features of one sign and of any, with and without repeats."""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.show.aggregate import select

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
