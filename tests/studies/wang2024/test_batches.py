"""The batches' study: whole batches come back, none is silently wrong, and every frontier has an end."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from gradleak.labels import BatchLabels
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import batches

STUDY = "batches"
CHOSEN = {
    "repeats_alone": 2,
    "cells": [
        {"network": "resnet18", "size": 3, "classes": 20},
        {"network": "resnet18", "size": 6, "classes": 20, "repeated": True, "labels": "mixup"},
        {"network": "resnet18", "size": 8, "classes": 10, "labels": "onehot"},
    ],
    "noises": [1e-8, 1e-2],
    "repeats": 1,
    "joint_cells": [
        {"network": "layer", "size": 5, "classes": 8},
        {"network": "layer", "size": 6, "classes": 8},
        {"network": "layer", "size": 4, "classes": 8, "repeated": True, "known": False},
        {"network": "layer", "size": 4, "classes": 8, "labels": "mixup"},
        {"network": "lenet", "size": 5},
    ],
    "starts": 48,
    "sizes": [4],
    "classes": 100,
    "defenses": ["clip/0.5", "half/16"],
}
# Golden rows hold these as well.
MORE = {
    "cells": [*CHOSEN["cells"], {"network": "lenet", "size": 2, "stage": "trained"}],
    "precisions": ["float32", "float64"],
}


def test_batches_are_whole_until_equations_run_out(record: Record) -> None:
    alone, together = record.rows(batches.OneByOne), record.rows(batches.Together)
    assert not alone["silent"].any()
    assert select(alone, noise=0).groupby("size")["whole"].mean().to_dict() == {3: 1, 6: 1, 8: 0}
    assert select(alone, attacker="aware").groupby("noise")["found"].min().to_dict() == {1e-8: 3, 1e-2: 0}
    assert select(alone, attacker="unaware", noise=1e-2)["flagged"].all()
    many = together["size"].eq(6)
    assert together[~many]["right"].all()
    assert "found" not in set(together[many]["status"]), "as many equations as unknowns"


def test_the_images_come_back(record: Record) -> None:
    closed = select(batches.inverted(record), attack=batches.CLOSED_FORM)
    assert closed["certified"].all()
    assert closed["lowest_psnr"].min() > 80
    behind = record.rows(batches.DefendedBatch)
    unaware = select(behind, attacker="unaware")
    assert (unaware[unaware["utility"] < 1 - 1e-11]["status"] != "exact").all()
    assert (select(behind, defense="clip")["status"] == "failed").all()


def test_a_wrong_label_counts_as_wrong() -> None:
    hidden, labels = torch.rand(2, 4).double(), torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double()
    right = BatchLabels(labels, hidden, torch.zeros(2), torch.zeros(2), 0.0, "unique")
    wrong = replace(right, labels=labels.flip(0))
    failed = replace(right, labels=labels * math.nan, features=hidden * math.nan, status="failed")
    verdicts = [batches.judge(found, hidden, labels) for found in (right, wrong, failed)]
    assert [row["whole"] for row in verdicts] == [True, False, False]
    assert [row["silent"] for row in verdicts] == [False, True, False]
    assert [row["found"] for row in verdicts] == [2, 2, 0]
