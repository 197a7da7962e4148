"""The study of peeling: small batches to their end, honest about layers and noise."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import peeling

STUDY = "peeling"
CHOSEN = {"matching": 1}


def test_the_batch_is_peeled_to_its_end(record: Record) -> None:
    frame = record.frame()
    batch = frame[(frame["part"] == "peeled") & (frame["what"] == "batch")].iloc[0]
    assert batch["status"] == "unique"
    assert batch["least"] > 100
    assert batch["back"]
    assert not batch["silently"]
    assert batch["matched"] == "x"
    layers = frame[(frame["part"] == "peeled") & (frame["what"] == "layer")]
    assert len(layers) == 17
    assert layers["honest"].all()


def test_noise_is_never_called_unique(record: Record) -> None:
    frame = record.frame()
    noisy = frame[frame["part"] == "noise"]
    assert len(noisy) == 2
    assert not noisy["silently"].any()


def test_the_count_is_of_networks_and_sizes() -> None:
    counted = peeling.counts_table().set_index(["network", "from B"])
    assert counted.loc[("ResNet20", "2"), "reason"] == "128 output positions (B = 2), but only 64 channels"
    assert "MaxPool2d" in counted.loc[("ResNet18, 7×7 stem", "1"), "reason"]
    assert counted.loc[("ResNet18, CIFAR form", "8"), "peeling ends at"] == "layer3.0.conv1, shortcut"


def test_tables_and_figures(record: Record) -> None:
    assert list(peeling.table(record)["B"]) == ["1"]
    assert len(peeling.layer_table(record)) == 17
    assert len(peeling.noise_table(record)) == 1
    for figure in (peeling.figure_batch(record), peeling.figure_layers(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
