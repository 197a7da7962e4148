"""Figure 4's study: attacks along the way of a training."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wainakh2021 import llg_training

STUDY = "llg-training"
CHOSEN = {"iterations": 600, "every": 200, "batches": 5, "runs": 1}


def test_the_model_learns_and_is_attacked_at_every_stop(record: Record) -> None:
    frame = record.frame()
    assert sorted(frame["step"].unique()) == [0, 200, 400, 600]
    assert len(frame) == 2 * 4 * len(llg_training.SHOWN)
    even = frame[frame["clients"] == "even"]
    accuracy = even.groupby("step")["accuracy"].mean()
    assert accuracy[600] > accuracy[0] + 10
    success = even.groupby("attack")["success"].mean()
    assert success["LLG+"] > success["guess"] + 30


def test_skewed_clients_know_the_classes_that_they_saw_last(record: Record) -> None:
    frame = record.frame()
    last = frame[(frame["clients"] == "skewed") & (frame["step"] == 600)].iloc[0]
    assert last["own_accuracy"] > last["accuracy"] + 10


def test_tables_and_figures(record: Record) -> None:
    assert list(llg_training.table(record)["training steps"]) == 2 * ["0", "200", "400", "600"]
    assert records.about(record) == "1 network, 600 steps, 5 batches at each stop, skewed and even clients, digits"
    figure = llg_training.figure_training(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
