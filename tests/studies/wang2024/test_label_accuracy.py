"""Table 1's study: what is not recovered is open or zero, and both ways of counting are shown."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak import claims
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import label_accuracy

STUDY = "label-accuracy"
CHOSEN = {"samples": 60, "searches": 2, "draws": 2, "drawn": 10, "varied": ["photos/2/10"]}


def test_what_is_not_recovered_is_said_to_be_open(record: Record) -> None:
    frame = label_accuracy._frame(record).set_index("labels")
    assert (frame["silent"] == 0).all()
    assert (frame["accuracy"] > 60).all()
    assert (frame["accuracy"] < 100).all(), "a saturated network guesses some images rightly"
    assert (frame["accuracy"] + frame["ambiguous"] + frame["failed"] >= 100 - 1e-9).all()
    assert frame.loc["onehot", "failed"] == frame.loc["onehot", "zero"] > 0
    assert frame.loc["onehot", "counted_zero"] == 100
    assert frame.loc["smoothing", "class_right"] > 95
    assert frame.loc["onehot", "idlg"] == frame.loc["onehot", "accuracy"]


def test_every_draw_is_another_network(record: Record) -> None:
    frame = record.frame()
    drawn = frame[frame["drawn"].notna()]
    assert len(drawn) == 2 * 2 + 2 * 3
    assert (drawn["part"] == label_accuracy.VARIED).sum() == 2 * 3
    drawn = drawn[drawn["part"] == label_accuracy.VARIED]
    assert drawn.loc[drawn["labels"] == "onehot", "drawn_idlg"].between(60, 100).all()
    assert drawn["drawn"].between(60, 100).all()
    for labels, own in drawn.groupby("labels"):
        text = label_accuracy.draws_table(record)[labels].iloc[0]
        assert text.startswith(f"{own['drawn'].mean():.1f} ± ")
    first, again = (
        label_accuracy.RandomNetwork(**trial.inputs | {"draw": 1}).run()[0]
        for trial in (record.trials[0], record.trials[3])
    )
    assert isinstance(again, label_accuracy.FurtherNetwork)
    assert first.count == 60
    assert again.drawn == record.trials[3].rows[0]["drawn"]


def test_table_figure_and_the_claims_on_data_that_is_not_at_hand(record: Record) -> None:
    assert list(label_accuracy.table(record)["labels"]) == ["smoothing", "mixup", "onehot"]
    assert list(label_accuracy.rival_table(record)["class right, iDLG"][:2]) == ["–", "–"]
    figure = label_accuracy.figure_statuses(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
    stand_ins = [claim for claim in claims.load("label-accuracy") if claim.stand_in]
    assert len(stand_ins) == 6
    for claim in stand_ins:
        assert claims.judge(claim, records.recorded(STUDY)).differs == ("dataset",)
    shown = claims.verdicts(record)
    assert any("Tiny-ImageNet" in note for note in shown.tables[0].notes)
