"""Table 4's study: weights of gradient and feature, on the same images and starts."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import feature_matching

STUDY = "feature-matching"
CHOSEN = {"l2_steps": 10, "cosine_steps": 20, "whole": 2}


def test_every_weight_is_run_on_every_image(record: Record) -> None:
    frame = record.frame()
    images = frame[frame["what"] == "image"]
    # Two kinds of label: the paper's five weights with two distances, its code's, and three with full steps.
    assert len(images) == 2 * (2 * 5 + 1 + 3) * 2
    assert images["label_error"].max() < 1e-4


def test_the_feature_helps_with_l2(record: Record) -> None:
    frame = record.frame()
    paired = frame[(frame["what"] == "paired") & (frame["distance"] == "l2")]
    assert paired[paired["run"] == "α=0 β=2 against α=1 β=0"]["difference"].gt(0).all()


def test_tables_and_figures(record: Record) -> None:
    assert list(feature_matching.table(record).columns)[3:8] == list(feature_matching.WEIGHTS)
    assert feature_matching.table(record)["α=0 β=2"].str.endswith(" / 34.18").any()
    coded = feature_matching.coded_table(record)
    assert len(coded) == 2 * (2 + 1 + 3)
    assert set(coded[coded["weights"] == "α=1 β=2"]["distance"]) == {"cosine"}
    assert len(feature_matching.detail_table(record)) == 28
    assert len(feature_matching.paired_table(record)) == 22
    for draw in (feature_matching.figure_images, feature_matching.figure_curves, feature_matching.figure_losses):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
