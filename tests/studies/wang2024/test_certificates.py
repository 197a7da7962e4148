"""The page on certificates: what is certified is right where assumptions hold, and a wrong certificate is shown."""

from __future__ import annotations

from gradleak.hunting import FAMILIES
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import certificates

STUDY = "certificates"
CHOSEN = certificates.Parameters.at("smallest") | {"labels": 3, "inversions": 3}


def test_nothing_certified_is_wrong_where_every_assumption_holds(record: Record) -> None:
    frame = record.rows(certificates.Hunt)
    kept = frame[frame["broken"] == "none"]
    assert kept["wrong"].sum() == 0
    assert kept["right_count"].sum() > kept["cases"].sum() / 2
    assert set(kept["family"]) == set(FAMILIES)
    assert (frame[list(certificates.COUNTS.values())].sum(axis=1) == frame["cases"]).all()
    for kind in (certificates.Mapped, certificates.Proved, certificates.Clipped):
        assert record.rows(kind)["unique"].max() > 0 == record.rows(kind)["wrong"].sum()
    trouble = record.rows(certificates.Trouble)
    assert trouble["unique_count"].sum() > 0 == trouble["wrong"].sum() == trouble["proved_wrong"].sum()


def test_a_proof_confirms_the_search_and_finds_labels_of_three_classes(record: Record) -> None:
    proved = record.rows(certificates.Proved)
    ordinary = select(proved, classes=10, spread=1.0)
    ordinary = ordinary[ordinary["dtype"] != "float16"]
    assert (ordinary["confirmed"] == ordinary["unique_searched"]).all()
    three = select(proved, classes=3, labels="smoothing", dtype="float64")
    assert three["unique_searched"].max() == 0 < three["unique"].max()


def test_a_wrong_certificate_is_counted_for_its_attack(record: Record) -> None:
    peeling = {"family": "peeling", "broken": "signs of lower layers"}
    (trial,) = (trial for trial in record.trials if peeling.items() <= trial.inputs.items())
    wrong = trial.model_copy(update={"rows": [trial.rows[0] | {"right_count": 4, "wrong": 2}]})
    (line,) = certificates.broken_table(record.model_copy(update={"trials": [wrong]})).to_dict(orient="records")
    assert (line["wrong certificates"], line["attacks with wrong certificates"]) == ("2", "peeling 2")
