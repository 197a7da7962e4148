"""The page on Theorem 1: sums stay under a bound that can fail, and right minima differ from wrong minima."""

from __future__ import annotations

import math

import torch

from gradleak.labels import Minima
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import theorem1

STUDY = "theorem1"
CHOSEN = theorem1.Parameters.at("smallest")


def test_sums_stay_under_their_bound_which_can_fail(record: Record) -> None:
    frame = record.frame()
    sums = frame[frame["part"].isin(["layers", "network"])]
    assert sums["bound_share"].between(0, 1, inclusive="neither").all()
    assert (sums[sums["dtype"] == "float64"]["sum_error"] < 1e-12).all()
    wrong = torch.tensor([[[0.5, 0.5 + 1e-3]]])
    assert theorem1.measured_sums(wrong, torch.ones(1, 1), torch.float32)["bound_share"] > 1


def test_intervals_hold_the_truth(record: Record) -> None:
    intervals = select(record.rows(theorem1.Intervals), labels="smoothing")
    truth, low, high, least = (intervals[name].abs() for name in ("truth", "low", "high", "least"))
    assert intervals["interval"].all()
    assert ((low <= truth) & (truth <= high) & (least <= low * (1 + 1e-6))).all()
    assert intervals["label_distance"].between(0, 2).all()


def test_the_least_minimum_is_the_truth(record: Record) -> None:
    frame = theorem1.samples(record)
    assert len(frame) == 2 * 2 * 12
    assert (~frame["best_wrong"]).mean() > 0.95
    assert frame["truth"].abs().min() >= 1
    right = frame[~frame["first_wrong"]]
    assert ((right["first"] - right["truth"]).abs() / right["truth"].abs() < 1e-3).all()


def test_a_first_minimum_may_be_wrong_and_accepted() -> None:
    minima = Minima(torch.tensor([-3.0, 0.5, 2.0, 4.0]), torch.tensor([1e-3, 1e-3, 1e-13, 0.0]))
    starts = [(4.0, 1.0), (4.0, 0.25), (-1.0, 1.0)]
    assert [theorem1.first_minimum(minima, *start) for start in starts] == [2.0, 0.5, -3.0]
    assert math.isnan(theorem1.first_minimum(minima, 4.0, 5.0))
    assert theorem1._accepted_wrong(minima, 4.0)
    assert not theorem1._accepted_wrong(Minima(minima.scalars, torch.ones(4)), 4.0)
