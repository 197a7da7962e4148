"""Table 3's study: paired runs from the same starts, second order, and what is counted."""

from __future__ import annotations

import pytest

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
# Golden rows hold these as well.
MORE = {"stages": ["untrained", "trained"]}


def test_known_and_recovered_labels_walk_together(record: Record) -> None:
    frame = record.frame()
    paired = frame[(frame["what"] == "paired") & (frame["run"] == "Ours against GT")]
    assert len(paired) == 4
    assert paired["apart"].lt(0.2).all()
    assert (paired["lower"] <= paired["difference"]).all()
    assert (paired["difference"] <= paired["upper"]).all()


def test_a_paired_difference_is_told_from_none() -> None:
    images = [("a", n, 21.0 + n) for n in range(8)] + [("b", n, 20.0 + n) for n in range(8)]
    images.append(("a", 0, -float("inf")))
    rows = [{"what": "image", "run": run, "image": n, "psnr": psnr} for run, n, psnr in images]
    (found,) = matched_runs.paired(rows, [("a", "b")], 0)
    assert found["difference"] == pytest.approx((7 * 1 + (21 / 2 - 20)) / 8)
    assert found["lower"] < found["difference"] < found["upper"] == pytest.approx(1.0)
