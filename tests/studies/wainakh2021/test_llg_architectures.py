"""Figure 3's study: LLG+ and others on several networks."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wainakh2021 import llg_architectures

STUDY = "llg-architectures"
CHOSEN = {"repeats": 3, "sizes": [1, 8], "networks": ["llg-cnn", "llg-lenet"]}


def test_every_attack_on_every_network(record: Record) -> None:
    frame = record.frame()
    assert len(frame) == 2 * len(llg_architectures.SHOWN) * 2
    cnn = frame[(frame["network"] == "llg-cnn") & (frame["attack"] == "LLG+")]
    assert cnn["success"].gt(95).all()


def test_figure(record: Record) -> None:
    assert records.about(record) == "3 networks of each kind and photos"
    figure = llg_architectures.figure_architectures(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
