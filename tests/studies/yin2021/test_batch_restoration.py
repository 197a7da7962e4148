"""Table 1's study: two rules, on features of one sign and of any, with and without repeats."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.yin2021 import batch_restoration

STUDY = "batch-restoration"
CHOSEN = {"rows": ["photos/lenet5/relu/60", "photos/lenet5/tanh/60"], "sizes": [1, 20], "samples": 100}


def test_rules_find_everything_on_features_of_one_sign(record: Record) -> None:
    frame = record.frame()
    own = frame[~frame["repeats"].astype(bool)].set_index(["activation", "rule", "size"])["accuracy"]
    assert own["relu", "GradInversion", 20] == 100
    assert own["relu", "row sums", 20] == 100
    assert own["tanh", "row sums", 20] < 60
    assert own["tanh", "GradInversion", 1] == 100


def test_repeats_are_the_limit_of_a_set(record: Record) -> None:
    frame = record.frame()
    own = frame[frame["repeats"].astype(bool) & (frame["activation"] == "relu")].set_index(["rule", "size"])["accuracy"]
    expected = 100 * 60 * (1 - (1 - 1 / 60) ** 20) / 20
    assert own["GradInversion", 20] == pytest.approx(expected, abs=8)
    assert own["GradInversion", 1] == 100


def test_tables_and_figures(record: Record) -> None:
    assert len(batch_restoration.table(record)) == 4
    assert list(batch_restoration.repeats_table(record)["limit (%)"]) == ["100.0", "85.6"] * 2
    assert records.about(record) == "2 networks, 100 samples at each batch size, photos"
    figure = batch_restoration.figure_accuracy(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
