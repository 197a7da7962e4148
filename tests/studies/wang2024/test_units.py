"""The page on units: most samples of small batches are shown, and no guarantee is wrong."""

from __future__ import annotations

import pytest
import torch

from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import units

STUDY = "units"
CHOSEN = units.Parameters.at("smallest") | {
    "defenses": ["gaussian/0.01", "prune/0.9"],
    "sources": ["wine", "digits"],
    "sizes": [2, 4],
    "clients": [{}, {"parts": 2}],
}


def test_samples_of_small_batches_are_shown_and_no_guarantee_is_wrong(record: Record) -> None:
    rows = record.rows(units.Shown)
    assert rows["wrong"].sum() == 0
    one = select(rows, client_trains=units.ONE_STEP)
    assert one["shown"].mean() > 60
    assert one["guaranteed"].max() == 100
    table = units.table_long(record)
    assert list(table.columns[3:]) == ["5 steps, rate 0.3"]
    assert len(table) == 4


def test_all_units_together_restore_an_image_behind_a_defence(record: Record) -> None:
    rows = record.rows(units.Defended)
    by_way = rows.groupby(["defense", "method"])["psnr"].mean()
    for defense in ("gaussian/0.01", "prune/0.9"):
        whole, median = (by_way[defense, way] for way in ("the same, as an image", "median of all units"))
        assert whole > median + 5
    assert len(units.table_defended(record)) == 2


def test_quotients_are_compared_with_the_nearest_sample() -> None:
    truth = torch.eye(3, dtype=torch.float64)
    found = torch.stack([truth[0], truth[0] * 1.001, truth[1] + truth[2]])
    sure = torch.tensor([True, False, True])
    compared = units.compared(found, sure, truth)
    assert compared == pytest.approx({"quotients": 3, "shown": 100 / 3, "guaranteed": 100 / 3, "wrong": 1})
