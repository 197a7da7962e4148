"""The study of clients that compute in a coarse precision: certified answers are right, and losses are reported."""

from __future__ import annotations

import torch

from gradleak.runs.records import Record
from gradleak.studies.wang2024 import precision

STUDY = "precision"
CHOSEN = {"precisions": ["float32", "bfloat16"], "samples": 4, "images": ["connected", "matching"], "steps": 3}


def test_nothing_certified_is_wrong(record: Record) -> None:
    frame = record.frame()
    honest = frame[frame["attacker"].isin(["told", "not told"])]
    assert honest["wrong"].sum() == 0
    assert honest["cases"].sum() > 45


def test_a_wrong_certificate_is_counted() -> None:
    true = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    off = (1 + 1e-2) * true.double()
    assert precision.compared(off, true, "exact", 1e-3)["wrong"] == 1
    assert precision.compared(off, true, "exact", 5e-3)["wrong"] == 0
    assert precision.compared(off, true, "partial", 1e-3)["wrong"] == 0
    assert precision.compared(off * torch.nan, true, "unique", None)["wrong"] == 1
    counted = precision.summed([("unique", True, 0.5, 2e-3), ("failed", False, 0.0, 2.0)])
    assert [counted[name] for name in ("cases", "unique_count", "failed_count", "wrong")] == [2, 1, 1, 1]
