"""LeNet's study: the closed form, its honest claims, the polish, defences, and what attacks reach in which time."""

from __future__ import annotations

import time

import pytest
import torch

from gradleak import data
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import cnn_inversion
from gradleak.studies.wang2024.cnn_inversion import CLOSED, MATCHED, POLISHED

STUDY = "cnn-inversion"
CHOSEN = {
    "dataset": "digits",
    "polishings": 1,
    "compared": 1,
    "defenses": cnn_inversion.DEFENSES,
}
CHOSEN |= {"raced": 2, "effort": 5e-3, "batches": [1, 2]}
# Golden rows hold these as well.
MORE = {"stages": ["untrained", "trained"], "second_order": 1}


def test_the_image_comes_back_and_claims_are_honest(record: Record) -> None:
    closed, polish = record.rows(cnn_inversion.ClosedForm), record.rows(cnn_inversion.Polish)
    images = select(closed, layer="image").set_index("dtype")["psnr"]
    assert images["float32"] > 100
    assert images["float64"] > 250
    layers = closed[closed["claimed"].notna() & closed["dtype"].eq("float32")]
    # A claim is a bound, and no more than a hundred times the error.
    assert (layers["claimed"] / layers["actual"]).between(1, 100).all()
    psnr = polish.dropna(subset="psnr").set_index("attack")["psnr"]
    # Both errors are rounding errors, and of one image either may be the larger by a factor of two.
    assert psnr[POLISHED] > psnr[CLOSED] - 6
    assert psnr[CLOSED] > psnr[MATCHED] + 30


def test_noise_takes_the_image_and_is_noticed(record: Record) -> None:
    noisy = select(record.rows(cnn_inversion.DefendedImages), defense="gaussian").set_index(["attacker", "level"])
    assert noisy["psnr"]["aware"].sort_index().is_monotonic_decreasing
    assert noisy["psnr"]["unaware"][1e-3] == -float("inf")


def test_a_level_is_reached_when_the_best_so_far_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(time, "process_time", lambda: next(now))
    timer = cnn_inversion.Timer(data.normalise(torch.zeros(2, 3, 8, 8, dtype=torch.float64)), "cpu")  # at second 0
    near = [torch.full((1, 1, 3, 8, 8), 10 ** (-level / 20), dtype=torch.float64) for level in (10, 28, 22, 50)]
    private = [data.normalise(image[0])[None] for image in near]
    both = torch.arange(2)
    timer.watch(both, 0, torch.cat([private[0], private[1]]))  # seconds 1 to 2: looking is not counted
    timer.watch(both, 5, torch.cat([private[1], private[2]]))
    rows = timer.rows(torch.cat([private[3], private[2]]).squeeze(1))
    seconds = {(row["image"], row["psnr_to_reach"]): row.get("seconds") for row in rows if row["what"] == "level"}
    # An image's seconds are half of what both took: 1, 2 and 3. What the second had first counts, though it gets worse.
    expected = {(0, 20): 1.0, (0, 25): 1.0, (0, 40): 1.5, (0, 60): None, (1, 25): 0.5, (1, 30): None}
    assert {key: seconds[key] for key in expected} == expected
    assert [row["psnr"] for row in rows if row["what"] == "image"] == pytest.approx([50, 28], abs=0.01)
