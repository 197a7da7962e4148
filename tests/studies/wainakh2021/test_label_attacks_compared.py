"""The comparison: every attack in every setting, on the same batches."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
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


def test_a_normalised_dummy_is_beside_llg_on_the_same_batches(record: Record) -> None:
    frame = record.frame()
    told, clean = frame[frame["attack"] == compared.IN_RANGE], frame[frame["defense"] == "none"]
    keys = ["network", "epochs", "size"]
    llg = clean[clean["attack"] == "LLG"].set_index(keys)["success"]
    own = told.set_index(keys)
    assert (own["success"] - llg).sub(own["over_llg"]).abs().max() == pytest.approx(0)


def test_who_refuses_finds_nothing(record: Record) -> None:
    frame = record.frame()
    refused = frame[(frame["attack"] == "GradInversion") & (frame["size"] == 12)]
    assert refused["success"].eq(0).all()
    assert refused["classes"].eq(0).all()


def test_trained_networks_say_how_good_they_are(record: Record) -> None:
    frame = record.frame()
    assert frame[frame["epochs"] == 1]["test_accuracy"].gt(0.05).all()
    assert frame[frame["epochs"] == 0]["test_accuracy"].isna().all()


def test_tables_and_figures(record: Record) -> None:
    table = compared.table(record)
    assert list(table["attack"]) == list(compared.ATTACKS)
    frame = record.frame()
    worst = frame[frame["attack"] == "shadow"]["success"].min()
    assert table.iloc[-1]["fewest labels found"] == f"{worst:.1f} %"
    assert records.about(record) == "2 networks at 2 stages of training, 3 batches of a size, photos"
    assert len(compared.threat_table()) == len(compared.ATTACKS)
    for draw in (compared.figure_labels, compared.figure_defenses):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        told = [text.get_text() for text in figure.axes[0].get_yticklabels()].count(compared.IN_RANGE)
        assert told == (draw is compared.figure_labels)
        plt.close(figure)


def test_heat_maps_hold_means(record: Record) -> None:
    figure = compared.figure_defenses(record)
    frame = record.frame()
    clean = frame[(frame["defense"] == "none") & (frame["size"] == 12)].groupby("attack")["success"].mean()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[1::2] == [f"{clean[name]:.0f}" for name in compared.ATTACKS]
    plt.close(figure)
