"""Figures 4 and 5's study: attacks along the way of a training; what defences leave, and to whom."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wainakh2021 import llg_defenses
from gradleak.studies.wainakh2021.llg_defenses import AttackedBehind, AttackedTraining

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


def test_the_model_learns_and_is_attacked_at_every_stop(record: Record) -> None:
    frame = record.rows(AttackedTraining)
    assert sorted(frame["step"].unique()) == [0, 200, 400, 600]
    assert len(frame) == 2 * 4 * len(llg_defenses.ATTACKS)
    even = frame[frame["clients"] == "even"]
    accuracy = even.groupby("step")["accuracy"].mean()
    assert accuracy[600] > accuracy[0] + 10
    success = even.groupby("attack")["success"].mean()
    assert success["LLG+"] > success["guess"] + 30


def test_skewed_clients_know_the_classes_that_they_saw_last(record: Record) -> None:
    frame = record.rows(AttackedTraining)
    last = frame[(frame["clients"] == "skewed") & (frame["step"] == 600)].iloc[0]
    assert last["own_accuracy"] > last["accuracy"] + 10


def test_defences_cost_attackers_and_training(record: Record) -> None:
    frame = record.rows(AttackedBehind)
    lost = frame[frame["attack"] == "LLG+"].groupby("defense")["lost"].mean()
    assert abs(lost["none"]) < 3
    assert abs(lost["prune"]) < 3
    assert lost["noise"] > 10
    utility = frame.groupby("defense")["utility"].first()
    assert utility["none"] == pytest.approx(1)
    assert utility["noise"] < utility["grad-drop"] < 1


def test_tensors_by_themselves_are_clipped_less_often_than_all_together(record: Record) -> None:
    clipped = record.rows(AttackedBehind).groupby("defense")["clipped"].first()
    assert clipped["none"] == 0
    assert clipped["dp"] == 100
    assert 0 < clipped["dp-coded"] < 100


def test_who_knows_the_defence_finds_more_behind_grad_drop(record: Record) -> None:
    frame = record.rows(AttackedBehind)
    own = frame[(frame["defense"] == "grad-drop") & (frame["size"] == 8)].set_index("attack")["success"]
    assert own["shadow"] > own["guess"]
    assert own["shadow"] >= own["posterior"]


def test_tables_and_figures(record: Record) -> None:
    table = llg_defenses.table(record)
    assert table["defence"][1] == "noise variance 1"
    noise = select(record.rows(AttackedBehind), defense="noise")
    assert table.iloc[1, -1] == f"{noise.groupby('size')['over_guess'].max().min():.1f} points"
    assert records.about(record) == (
        "600 training steps, 5 batches at each stop, skewed and even clients; 4 networks behind each defence; digits"
    )
    behind = llg_defenses.figure_defenses(record)
    assert len(behind.axes) == 3 * 3, "an attacker a row, a kind of defence that was tried a column"
    for figure in (llg_defenses.figure_training(record), behind):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
