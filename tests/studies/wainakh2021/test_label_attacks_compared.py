"""The comparison: every attack in every setting, on the same batches."""

from __future__ import annotations

from gradleak.runs.records import Record

STUDY = "label-attacks-compared"
CHOSEN = {
    "networks": [{"network": "llg-cnn"}, {"network": "lenet5", "activation": "tanh"}],
    "epochs": [0, 1],
    "defenses": ["none/0", "grad-drop/0.9"],
    "sizes": [1, 12],
    "batches": 3,
}


def test_attacks_that_know_more_find_more(record: Record) -> None:
    frame = record.frame()
    clean = frame[(frame["defense"] == "none") & (frame["epochs"] == 0)]
    own = clean[clean["network"] == "llg-cnn"].groupby("attack")["success"].mean()
    assert own["LLG+"] > 95
    assert own["guess"] < 60
    signs = clean[clean["activation"] == "tanh"].groupby("attack")["success"].mean()
    assert signs["posterior"] > signs["LLG+"]
