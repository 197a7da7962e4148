"""The noise study: what each attack keeps, tables and figures."""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import noise

STUDY = "noise"
CHOSEN = noise.Parameters.at("smallest") | {"samples": 12, "levels": [1e-4, 1e-1]}


def test_little_noise_leaves_the_label_and_much_takes_it(record: Record) -> None:
    frame = record.frame()
    little, much = (select(frame, attack=noise.KNOWN, reading="deviation", level=level) for level in (1e-4, 1e-1))
    assert (little["within_tenth"] >= 90).all()
    assert (little["label_error"] < 0.01).all()
    assert much["label_error"].min() > 10 * little["label_error"].max()
    variances = select(frame, reading="variance")
    assert (variances["std"] == variances["level"] ** 0.5).all()
