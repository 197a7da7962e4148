"""The page on Theorem 1: sums stay under a bound that can fail, and right minima differ from wrong minima."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import torch

from gradleak.labels import Minima, label_path, nonnegative_intervals
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
    assert (sums[sums["dtype"] == "float64"]["sum_error"] < 1e-12).all()
    assert (sums["pseudo_labels"] >= 20).all()


def test_the_bound_can_fail() -> None:
    """A label that does not sum to one, off by more than rounding, breaks the bound."""
    labels = torch.tensor([[[0.5, 0.5 + 1e-3]]])
    row = theorem1.measured_sums(labels, torch.ones(1, 1), torch.float32)
    assert row["bound_share"] > 1


def test_a_bias_gives_the_label_at_once(record: Record) -> None:
    frame = record.frame()
    bias = frame[(frame["part"] == "layers") & frame["bias"].eq(True) & (frame["dtype"] == "float64")]
    assert (bias["median_label_error_closed_form"] < 1e-13).all()
    assert (bias["median_label_error_bias_ignored"] > 1e-2).all()


def test_intervals_hold_the_truth(record: Record) -> None:
    frame = record.frame()
    intervals = frame[(frame["part"] == "interval") & (frame["labels"] == "smoothing")]
    assert intervals["interval"].all()
    truth, low, high = (intervals[name].abs() for name in ("truth", "low", "high"))
    assert ((low <= truth) & (truth <= high)).all()
    assert (intervals["least"] <= low * (1 + 1e-6)).all()
    assert intervals["label_distance"].between(0, 2).all()


def test_the_least_minimum_is_the_truth(record: Record) -> None:
    frame = theorem1._samples(record)
    assert len(frame) == 2 * 2 * 12
    assert (~frame["best_wrong"]).mean() > 0.95
    assert (frame["minima"] >= 1).all()
    assert frame["truth"].abs().min() >= 1
    wrong = frame[~frame["first_wrong"] & frame["first_wrong"].notna()]
    assert ((wrong["first"] - wrong["truth"]).abs() / wrong["truth"].abs() < 1e-3).all()


def test_smoothed_labels_are_not_found_by_the_square_loss_and_mixed_ones_are(record: Record) -> None:
    frame = theorem1._samples(record)
    assert frame[frame["labels"] == "smoothing"]["square_right"].mean() < 0.2
    assert frame[frame["labels"] == "mixup"]["square_right"].mean() > 0.9


def test_minima_are_judged_by_the_papers_thresholds() -> None:
    minima = Minima(torch.tensor([-3.0, 0.5, 2.0, 4.0]), torch.tensor([1e-3, 1e-3, 1e-13, 0.0]))
    assert theorem1.first_minimum(minima, 4.0, 1.0) == 2.0
    assert theorem1.first_minimum(minima, 4.0, 0.25) == 0.5
    assert theorem1.first_minimum(minima, -1.0, 1.0) == -3.0
    assert math.isnan(theorem1.first_minimum(minima, 4.0, 5.0))
    assert theorem1._accepted_wrong(minima, 4.0)
    assert not theorem1._accepted_wrong(Minima(minima.scalars, torch.ones(4)), 4.0)
    assert theorem1._found(4.0024, 4.0)
    assert not theorem1._found(4.01, 4.0)
    assert theorem1._found(400.3, 400.0)


def test_the_sample_that_figures_show_is_in_the_record(record: Record) -> None:
    cases, frame = theorem1._examples(record), theorem1._samples(record)
    assert list(cases) == ["untrained", "trained"]
    for stage, (path, truth) in cases.items():
        own = frame[(frame["stage"] == stage) & (frame["labels"] == "smoothing")]
        assert truth in set(own["truth"])
        label = path.labels(torch.tensor([[truth]], dtype=torch.float64))[0, 0]
        # Smoothed: all entries but the largest are equal.
        assert label.sort().values[:-1].std() < 1e-5
        assert abs(float(label.sum()) - 1) < 1e-5


def test_the_first_wrong_sample_is_shown_or_else_the_one_with_the_most_minima() -> None:
    rows = [{"sample": n, "first_wrong": n in (1, 2), "minima": n} for n in range(4)]
    assert theorem1._example(rows) == 1
    assert theorem1._example([row | {"first_wrong": False} for row in rows]) == 3


def test_tables_and_figures(record: Record) -> None:
    assert len(theorem1.table(record)) == 2 * 2 + 3
    assert len(theorem1.bias_table(record)) == 4
    assert list(theorem1.interval_table(record)["labels"]) == ["smoothing", "mixup", "onehot"]
    assert list(theorem1.minima_table(record)["network"]) == ["lenet, untrained"] * 2 + ["small-cnn, trained"] * 2
    assert len(theorem1.alternatives_table(record)) == 4
    assert "test accuracy" in theorem1.training_line(record)
    weight = torch.randn(5, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    label = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)
    error = (weight @ hidden).softmax(dim=0) - label
    path = label_path(error[:, None] * hidden, weight)
    truth = float(1 / error[path.row[0]])
    interval = next(pair for pair in nonnegative_intervals(path)[0] if pair[0] * truth > 0)
    drawn = [
        theorem1.figure_intervals(record),
        theorem1.figure_two(record),
        theorem1.figure_landscape(record),
        theorem1.figure_alternatives(record),
        theorem1.draw_two(path, truth, (interval[0], math.copysign(math.inf, truth))),
    ]
    for figure in drawn:
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
