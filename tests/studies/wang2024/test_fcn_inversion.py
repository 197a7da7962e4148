"""The fully connected network's study: variants in their order, what eight bits make of them, defences that work."""

from __future__ import annotations

import torch

from gradleak import models
from gradleak.leak import observe
from gradleak.runs.records import Record
from gradleak.studies.wang2024 import fcn_inversion

STUDY = "fcn-inversion"
CHOSEN = {"samples": 2, "compared": 1, "l2_steps": 1, "cosine_steps": 2, "defenses": list(fcn_inversion.DEFENSES)}


def test_images_come_back_and_eight_bits_hide_how_well(record: Record) -> None:
    closed = record.rows(fcn_inversion.ClosedForm)
    closed = closed[closed["variant"] != "picture"]
    single = closed[closed["dtype"] == "float32"].groupby("variant")["psnr"]
    assert single.min()["ours"] > 100
    assert single.mean()["ours"] > single.mean()["as published"] > 60
    assert closed[closed["dtype"] == "float64"]["psnr"].min() > 150
    smoothed = closed[(closed["labels"] == "smoothing") & (closed["dtype"] == "float32")]
    assert smoothed["eight_bit"].between(45, 62).all(), "truncation, whatever restored the image"
    assert (closed["ssim"] > 0.999).all()


def test_defences_are_noticed_and_cost_digits(record: Record) -> None:
    defended = record.rows(fcn_inversion.DefendedImages)
    noisy = defended[(defended["defense"] == "gaussian")].set_index(["attacker", "level"])["psnr"]
    assert (noisy["unaware"] == -float("inf")).all()
    aware = noisy["aware"].sort_index()
    assert aware.is_monotonic_decreasing
    assert aware.iloc[0] > 80
    assert aware.iloc[-1] < 30


def test_the_judge_counts_what_is_lost() -> None:
    truth = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert fcn_inversion.judged(torch.full_like(truth, torch.nan), truth)["psnr"] == -float("inf")
    assert fcn_inversion.judged(truth, truth)["eight_bit"] == float("inf")


def test_an_image_of_another_length_has_the_same_gradient_with_another_label() -> None:
    model = models.build("fcn4", classes=5, image_size=4, seed=0).double()
    image = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    label = torch.full((1, 5), 0.1, dtype=torch.float64).index_fill_(1, torch.tensor([2]), 0.6)
    sent = observe(model, image, label).gradients
    for length in (0.8, 1.25, 2.0):
        with torch.no_grad():
            before, after = (model(scale * image).softmax(dim=1) for scale in (1, length))
        other = after - (before - label) / length
        assert other.min() >= 0, "a label that a search may come to"
        twin = observe(model, length * image, other).gradients
        for name, value in sent.items():
            torch.testing.assert_close(twin[name], value, rtol=1e-10, atol=1e-14)
