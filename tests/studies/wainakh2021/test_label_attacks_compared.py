"""The comparison: every attack in every setting, on the same batches."""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.studies.wainakh2021.label_attacks_compared import LEARNED, ON_TRAINED, OnTrained

STUDY = "label-attacks-compared"
CHOSEN = {
    "networks": [{"network": "llg-cnn"}, {"network": "lenet5", "activation": "tanh"}],
    "epochs": [0, 1],
    "defenses": ["none/0", "grad-drop/0.9"],
    "sizes": [1, 12],
    "batches": 3,
    "trained": [{"network": "lenet5", "epochs": 1}],
    "trained_sizes": [4],
    "trained_batches": 2,
    "images": 50,
}


def test_attacks_that_know_more_find_more(record: Record) -> None:
    frame = record.frame()
    clean = frame[(frame["defense"] == "none") & (frame["epochs"] == 0)]
    own = clean[clean["network"] == "llg-cnn"].groupby("attack")["success"].mean()
    assert own["LLG+"] > 95
    assert own["guess"] < 60
    signs = clean[clean["activation"] == "tanh"].groupby("attack")["success"].mean()
    assert signs["posterior"] > signs["LLG+"]


def test_networks_that_were_trained_to_the_end_have_rows_of_every_attack(record: Record) -> None:
    rows = record.rows(OnTrained)
    assert set(rows["attack"]) == set(ON_TRAINED)
    assert len(rows) == len(ON_TRAINED) * 4
    learned = rows[rows["attack"] == LEARNED]
    assert (learned["success"] - learned["over_others"] <= 100).all()
    assert learned["over_others"].notna().all()
