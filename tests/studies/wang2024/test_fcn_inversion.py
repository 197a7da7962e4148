"""The fully connected network's study: variants in their order, what eight bits make of them, defences that work."""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import fcn_inversion

STUDY = "fcn-inversion"
CHOSEN = {
    "samples": 1,
    "doubles": 1,
    "compared": 1,
    "l2_steps": 1,
    "cosine_steps": 2,
    "defenses": ["gaussian/1e-6", "gaussian/1e-4", "gaussian/1e-2"],
}


def test_images_come_back_and_eight_bits_hide_how_well(record: Record) -> None:
    closed = record.rows(fcn_inversion.ClosedForm)
    closed = closed[closed["variant"] != "picture"]
    single = select(closed, dtype="float32")
    psnr = single.groupby("variant")["psnr"]
    assert psnr.min()["ours"] > 100
    assert psnr.mean()["ours"] > psnr.mean()["as published"] > 60
    assert select(closed, dtype="float64")["psnr"].min() > 150
    assert select(single, labels="smoothing")["eight_bit"].between(45, 62).all(), "truncation, whatever restored it"


def test_defences_are_noticed_and_cost_digits(record: Record) -> None:
    defended = select(record.rows(fcn_inversion.DefendedImages), defense="gaussian")
    noisy = defended.set_index(["attacker", "level"])["psnr"]
    assert (noisy["unaware"] == -float("inf")).all()
    aware = noisy["aware"].sort_index()
    assert aware.is_monotonic_decreasing
    assert aware.iloc[0] > 80
    assert aware.iloc[-1] < 30
