"""Figures 4 and 5's study: attacks along the way of a training; what defences leave, and to whom."""

from __future__ import annotations

import pytest

from gradleak.runs.records import Record
from gradleak.studies.wainakh2021.llg_defenses import AttackedBehind, BoundedBehind

STUDY = "llg-defenses"
CHOSEN = {
    "iterations": 600,
    "every": 200,
    "batches": 5,
    "runs": 1,
    "repeats": 4,
    "sizes": [1, 8],
    "defenses": ["none/0", "noise/1", "prune/0.2", "grad-drop/0.9", "dp/1", "dp-coded/1"],
}


def test_defences_cost_attackers_and_training(record: Record) -> None:
    frame = record.rows(AttackedBehind)
    lost = frame[frame["attack"] == "LLG+"].groupby("defense")["lost"].mean()
    assert abs(lost["none"]) < 3
    assert abs(lost["prune"]) < 3
    assert lost["noise"] > 10
    utility = frame.groupby("defense")["utility"].first()
    assert utility["none"] == pytest.approx(1)
    assert utility["noise"] < utility["grad-drop"] < 1
    bounds = record.rows(BoundedBehind)
    assert set(bounds["defense"]) == {"noise", "dp", "dp-coded"}
    assert set(bounds["attack"]) == {"LLG+"}
    assert (bounds["over_guess_least"] <= bounds["over_guess_most"]).all()
