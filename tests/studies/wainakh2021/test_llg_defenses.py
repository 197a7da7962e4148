"""Figure 5's study: what defences leave, and to whom."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wainakh2021 import llg_defenses

STUDY = "llg-defenses"
CHOSEN = {
    "repeats": 4,
    "sizes": [1, 8],
    "defenses": ["none/0", "noise/1", "prune/0.2", "grad-drop/0.9", "dp/1", "dp-coded/1"],
}


def test_defences_cost_attackers_and_training(record: Record) -> None:
    frame = record.frame()
    lost = frame[frame["attack"] == "LLG+"].groupby("defense")["lost"].mean()
    assert abs(lost["none"]) < 3
    assert abs(lost["prune"]) < 3
    assert lost["noise"] > 10
    utility = frame.groupby("defense")["utility"].first()
    assert utility["none"] == pytest.approx(1)
    assert utility["noise"] < utility["grad-drop"] < 1


def test_tensors_by_themselves_are_clipped_less_often_than_all_together(record: Record) -> None:
    clipped = record.frame().groupby("defense")["clipped"].first()
    assert clipped["none"] == 0
    assert clipped["dp"] == 100
    assert 0 < clipped["dp-coded"] < 100


def test_who_knows_the_defence_finds_more_behind_grad_drop(record: Record) -> None:
    frame = record.frame()
    own = frame[(frame["defense"] == "grad-drop") & (frame["size"] == 8)].set_index("attack")["success"]
    assert own["shadow"] > own["guess"]
    assert own["shadow"] >= own["posterior"]


def test_tables_and_figures(record: Record) -> None:
    table = llg_defenses.table(record)
    assert table["defence"][1] == "noise variance 1"
    worst = record.frame().query("defense == 'noise'").groupby("size")["over_guess"].max().min()
    assert table.iloc[1, -1] == f"{worst:.1f} points"
    assert records.about(record) == "4 networks behind each defence and digits"
    figure = llg_defenses.figure_defenses(record)
    assert figures.gray_table(figure).std() > 0.02
    assert len(figure.axes) == 3 * 3, "an attacker a row, a kind of defence that was tried a column"
    plt.close(figure)
