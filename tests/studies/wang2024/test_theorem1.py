"""Theorem 1's study: the theorem holds in every draw, its bound is one, its figures show something."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import torch

from gradleak.labels import label_path, nonnegative_intervals
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import theorem1

STUDY = "theorem1"
CHOSEN = theorem1.Parameters.at("smallest")


def test_sums_stay_under_their_bound(record: Record) -> None:
    frame = record.frame()
    sums = frame[frame["part"].isin(["layers", "network"])]
    assert (sums["bound_share"] < 1).all()
    assert (sums["bound_share"] > 0).all()
    assert (sums[sums["dtype"] == "float64"]["error"] < 1e-12).all()
    assert (sums["pseudo_labels"] >= 20).all()


def test_the_bound_can_fail() -> None:
    """A label that does not sum to one, off by more than rounding, breaks the bound."""
    labels = torch.tensor([[[0.5, 0.5 + 1e-3]]])
    row = theorem1.measured_sums(labels, torch.ones(1, 1), torch.float32)
    assert row.bound_share > 1


def test_a_bias_gives_the_label_at_once(record: Record) -> None:
    frame = record.frame()
    bias = frame[(frame["part"] == "layers") & frame["bias"].eq(True) & (frame["dtype"] == "float64")]
    assert (bias["median_label_error_closed_form"] < 1e-13).all()
    assert (bias["median_label_error_bias_ignored"] > 1e-2).all()


def test_intervals_hold_the_truth(record: Record) -> None:
    frame = record.frame()
    intervals = frame[(frame["part"] == "interval") & (frame["labels"] == "smoothing")]
    assert intervals["ambiguous"].all()
    truth, low, high = (intervals[name].abs() for name in ("truth", "low", "high"))
    assert ((low <= truth) & (truth <= high)).all()
    assert (intervals["least"] <= low * (1 + 1e-6)).all()
    assert intervals["label_distance"].between(0, 2).all()


def test_tables_and_figures(record: Record) -> None:
    assert len(theorem1.table(record)) == 2 * 2 + 3
    assert len(theorem1.bias_table(record)) == 4
    assert list(theorem1.interval_table(record)["labels"]) == ["smoothing", "mixup", "onehot"]
    weight = torch.randn(5, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    label = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    error = (weight @ hidden).softmax(dim=0) - label
    path = label_path(error[:, None] * hidden, weight)
    truth = float(1 / error[path.row[0]])
    interval = next(pair for pair in nonnegative_intervals(path)[0] if pair[0] * truth > 0)
    drawn = [
        theorem1.figure_errors(record),
        theorem1.figure_intervals(record),
        theorem1.figure_two(record),
        theorem1.draw_two(path, truth, (interval[0], math.copysign(math.inf, truth))),
    ]
    for figure in drawn:
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
