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


def test_table_and_figures(record: Record) -> None:
    table = feature_matching.table(record).set_index(["labels", "distance", "weights"])
    assert len(table) == 2 * 2 * 6
    assert table.loc[("mixup", "L2", "α=0 β=2"), "paper: mean PSNR (dB)"] == "34.18"
    coded = table.xs("α=1 β=2 (code)", level="weights")
    assert (coded["with line search: mean PSNR (dB)"] == "–").all()
    assert (coded["as published: mean PSNR (dB)"] != "–").all()
    for draw in (feature_matching.figure_means, feature_matching.figure_curves, feature_matching.draw_paired):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
