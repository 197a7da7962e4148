"""LLG's study: what sign and size of row sums say, and every attack on every batch, against the guess."""

from __future__ import annotations

import pytest
import torch

from gradleak import data
from gradleak.data import Dataset
from gradleak.runs.records import Record
from gradleak.studies.shared import tally
from gradleak.studies.wainakh2021 import llg_attack

STUDY = "llg-attack"
CHOSEN = llg_attack.Parameters.at("smallest") | {
    "property_repeats": 30,
    "property_sizes": [2, 8, 32],
    "repeats": 6,
    "sizes": [1, 8, 32],
    "balances": ["unbalanced", "balanced"],
    "networks": ["llg-cnn", "llg-lenet"],
}


def test_attacks_are_as_good_as_what_they_know(record: Record) -> None:
    counted = record.part("count")
    assert set(counted["attack"]) == set(tally.ATTACKS)
    assert len(counted) == 2 * 6 * 3
    means = counted.groupby("attack")["success"].mean()
    assert means["LLG+"] > 98
    assert means["LLG+"] >= means["LLG*"] > means["LLG"] > means["guess"]
    single = counted[(counted["size"] == 1) & counted["attack"].isin(["LLG", "LLG*", "LLG+"])]
    assert single["success"].eq(100).all()


def test_private_and_auxiliary_images_of_flowers_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, split: str = "train", *, size: int | None = None) -> Dataset:
        # The dataset's two splits hold the same images.
        numbers = torch.arange(17 * 80)
        images = numbers[:, None, None, None].float().expand(-1, 3, 1, 1)
        return Dataset(name, split, images, numbers % 17, tuple(map(str, range(17))), "made up")

    monkeypatch.setattr(data, "load", made)
    private, public = (llg_attack.images("flowers17", split, 5) for split in ("train", "test"))
    assert private.labels.bincount().tolist() == [64] * 5
    assert public.labels.bincount().tolist() == [16] * 5
    assert not set(private.images[:, 0, 0, 0].tolist()) & set(public.images[:, 0, 0, 0].tolist())


def test_batches_are_drawn_as_the_paper_says() -> None:
    labels = torch.arange(10).repeat(30)
    generator = torch.Generator().manual_seed(0)
    counts = labels[tally.batch_of(labels, 32, "unbalanced", generator)].bincount().sort(descending=True).values
    assert counts[0] >= 16
    assert counts[1] >= 8
    chosen = tally.batch_of(labels, 64, "balanced", generator)
    assert len(chosen.unique()) == 64


def test_balanced_batches_hardly_differ_and_dlg_is_timed(record: Record) -> None:
    balances = record.rows(llg_attack.ComparedBalances)
    assert set(balances["attack"]) == set(tally.ATTACKS)
    assert balances.loc[balances["attack"] == "LLG+", "over_unbalanced"].abs().max() < 5
    assert len(record.rows(llg_attack.ComparedTimes)) == 1


def test_bounds_are_those_of_differences_on_the_same_batches() -> None:
    shares = {"LLG": (60.0, 100.0), "guess": (50.0, 70.0)}
    results = [
        {"attack": attack, "size": 8, "success": own[number], "classes": 0.0, "seconds": 0.0}
        for number in range(2)
        for attack, own in shares.items()
    ]
    llg, guess = tally.averaged(results)
    assert llg["over_guess"] == pytest.approx(20)
    assert (llg["over_guess_least"], llg["over_guess_most"]) == pytest.approx((20 - 16.45, 20 + 16.45))
    assert "over_guess_least" not in guess
    assert "over_guess" not in tally.averaged(results[::2])[0]
