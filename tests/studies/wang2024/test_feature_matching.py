"""Table 4's study: weights of gradient and feature, on the same images and starts."""

from __future__ import annotations

from gradleak.runs.records import Record

STUDY = "feature-matching"
CHOSEN = {"l2_steps": 4, "cosine_steps": 6, "whole": 1}


def test_the_feature_helps_with_l2(record: Record) -> None:
    frame = record.frame()
    paired = frame[(frame["what"] == "paired") & (frame["distance"] == "l2")]
    assert paired[paired["run"] == "α=0 β=2 against α=1 β=0"]["difference"].gt(0).all()
