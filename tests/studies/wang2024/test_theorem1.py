"""The page on Theorem 1: sums stay under a bound that can fail, and right minima differ from wrong minima."""

from __future__ import annotations

import math

import torch

from gradleak.labels import Minima
from gradleak.runs.records import Record
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


def test_the_first_wrong_sample_is_shown_or_else_the_one_with_the_most_minima() -> None:
    rows = [{"sample": n, "first_wrong": n in (1, 2), "minima": n} for n in range(4)]
    assert theorem1._example(rows) == 1
    assert theorem1._example([row | {"first_wrong": False} for row in rows]) == 3
