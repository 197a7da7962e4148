"""The comparison: every attack in every setting, on the same batches."""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.studies.wainakh2021 import label_attacks_compared as compared

STUDY = "label-attacks-compared"
CHOSEN = {
    "networks": ["llg-cnn/", "lenet5/tanh"],
    "told": ["llg-cnn/", "lenet5/tanh"],
    "epochs": [0, 1],
    "defenses": ["none/0", "grad-drop/0.9"],
    "sizes": [1, 12],
    "batches": 3,
}


def test_every_attack_in_every_setting(record: Record) -> None:
    frame = record.frame()
    assert len(frame) == 2 * 2 * 2 * len(compared.ATTACKS) * 2 + 2 * 2 * 2
    clean = frame[(frame["defense"] == "none") & (frame["epochs"] == 0)]
    own = clean[clean["network"] == "llg-cnn"].groupby("attack")["success"].mean()
    assert own["LLG+"] > 95
    assert own["guess"] < 60
    signs = clean[clean["activation"] == "tanh"].groupby("attack")["success"].mean()
    assert signs["posterior"] > signs["LLG+"]


def test_who_refuses_finds_nothing(record: Record) -> None:
    frame = record.frame()
    refused = frame[(frame["attack"] == "GradInversion") & (frame["size"] == 12)]
    assert refused["success"].eq(0).all()
    assert refused["classes"].eq(0).all()
