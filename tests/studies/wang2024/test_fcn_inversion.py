"""The fully connected network's study: variants in their order, what eight bits make of them, defences that work."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.studies.wang2024 import fcn_inversion

STUDY = "fcn-inversion"
CHOSEN = {"samples": 2, "compared": 1, "l2_steps": 1, "cosine_steps": 2, "defenses": list(fcn_inversion.DEFENSES)}


def test_images_come_back_and_eight_bits_hide_how_well(record: Record) -> None:
    frame = record.frame()
    closed = frame[(frame["part"] == "closed") & (frame["variant"] != "picture")]
    single = closed[closed["dtype"] == "float32"].groupby("variant")["psnr"]
    assert single.min()["ours"] > 100
    assert single.mean()["ours"] > single.mean()["as published"] > 60
    assert closed[closed["dtype"] == "float64"]["psnr"].min() > 150
    smoothed = closed[(closed["labels"] == "smoothing") & (closed["dtype"] == "float32")]
    assert smoothed["eight_bit"].between(45, 62).all(), "truncation, whatever restored the image"
    assert (closed["ssim"] > 0.999).all()


def test_defences_are_noticed_and_cost_digits(record: Record) -> None:
    frame = record.frame()
    defended = frame[frame["part"] == "defense"]
    noisy = defended[(defended["defense"] == "gaussian")].set_index(["attacker", "level"])["psnr"]
    assert (noisy["unaware"] == -float("inf")).all()
    aware = noisy["aware"].sort_index()
    assert aware.is_monotonic_decreasing
    assert aware.iloc[0] > 80
    assert aware.iloc[-1] < 30


def test_the_judge_counts_what_is_lost() -> None:
    truth = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert fcn_inversion.judge(torch.full_like(truth, torch.nan), truth)["psnr"] == -float("inf")
    assert fcn_inversion.judge(truth, truth)["eight_bit"] == float("inf")


def test_tables_and_figures(record: Record) -> None:
    assert len(fcn_inversion.table(record)) == 2 * (3 + 1)
    assert list(fcn_inversion.comparison_table(record)["attack"])[-1] == "closed form"
    assert len(fcn_inversion.defense_table(record)) == 5 + 1 + 2 + 1
    drawn = [
        fcn_inversion.figure_digits(record),
        *(fcn_inversion.figure_mosaic(record, kind) for kind in fcn_inversion.LABELS),
    ]
    for figure in drawn:
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
