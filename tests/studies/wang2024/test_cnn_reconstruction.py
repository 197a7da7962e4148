"""Table 3's study: paired runs from the same starts, second order, and what is counted."""

from __future__ import annotations

import pytest

from gradleak import data
from gradleak.runs.records import Record
from gradleak.studies.shared import matched_runs

STUDY = "cnn-reconstruction"
CHOSEN = {
    "l2_steps": 2,
    "cosine_steps": 8,
    "whole": 1,
    "second_order_steps": 1,
    "second_order_starts": [{"stage": "untrained", "start": "random", "images": 1}],
}


def test_known_and_recovered_labels_walk_together(record: Record) -> None:
    frame = record.frame()
    paired = frame[(frame["what"] == "paired") & (frame["run"] == "Ours against GT")]
    assert len(paired) == 4
    assert paired["apart"].lt(0.2).all()
    assert (paired["lower"] <= paired["difference"]).all()
    assert (paired["difference"] <= paired["upper"]).all()


def test_the_loss_falls_along_the_curves(record: Record) -> None:
    frame = record.frame()
    for _, curve in frame[frame["what"] == "curve"].groupby(["labels", "distance", "run"]):
        losses = curve.sort_values("step")["loss"]
        assert losses.diff().dropna().le(0).all()


def test_samples_are_the_papers() -> None:
    photos = data.load("photos", "test")
    pairs = photos.classes * (photos.classes - 1) // 2
    _, mixed = matched_runs.table_samples(photos, "mixup", pairs, 1)
    assert (mixed > 0).sum(dim=1).eq(2).all()
    assert len((mixed > 0).unique(dim=0)) == pairs
    inputs, smooth = matched_runs.table_samples(photos, "smoothing", 3 * photos.classes, 1)
    assert smooth.argmax(dim=1).bincount().tolist() == [3] * photos.classes
    assert len(inputs.flatten(1).unique(dim=0)) == len(inputs)


def test_a_paired_difference_is_told_from_none() -> None:
    images = [("a", n, 21.0 + n) for n in range(8)] + [("b", n, 20.0 + n) for n in range(8)]
    images.append(("a", 0, -float("inf")))
    rows = [{"what": "image", "run": run, "image": n, "psnr": psnr} for run, n, psnr in images]
    (found,) = matched_runs.paired(rows, [("a", "b")], 0)
    assert found["difference"] == pytest.approx((7 * 1 + (21 / 2 - 20)) / 8)
    assert found["lower"] < found["difference"] < found["upper"] == pytest.approx(1.0)
