"""LLG's study: what sign and size of row sums say, and every attack on every batch, against the guess."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak import data
from gradleak.data import Dataset
from gradleak.errors import UnknownName
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


def test_correlations_and_slopes_are_those_of_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 5, (6, 10), generator=generator)
    counts[2] = 1  # nothing to correlate with
    values = torch.randn(6, 10, generator=generator, dtype=torch.float64) - counts
    expected = [abs(np.corrcoef(counts[n], values[n])[0, 1]) for n in (0, 1, 3, 4, 5)]
    assert np.allclose(llg_attack._correlations(counts, values), expected)
    slopes = [np.polyfit(counts[:, n], values[:, n], 1)[0] for n in range(10)]
    assert np.allclose(llg_attack._slopes(counts, values), slopes)


def test_attacks_are_as_good_as_what_they_know(record: Record) -> None:
    counted = record.part("count")
    assert set(counted["attack"]) == set(tally.ATTACKS)
    assert len(counted) == 2 * 6 * 3
    means = counted.groupby("attack")["success"].mean()
    assert means["LLG+"] > 98
    assert means["LLG+"] >= means["LLG*"] > means["LLG"] > means["guess"]
    single = counted[(counted["size"] == 1) & counted["attack"].isin(["LLG", "LLG*", "LLG+"])]
    assert single["success"].eq(100).all()
    over = counted.groupby("attack")["over_guess"].agg(["min", "max"])
    assert over.loc["guess"].eq(0).all()
    assert over["min"]["LLG+"] > 10


@pytest.mark.parametrize(("name", "classes", "each"), [("flowers17", 5, (64, 16)), ("tinyimagenet32", 100, (8, 4))])
def test_stand_ins_have_the_papers_classes_and_share_no_image(
    name: str, classes: int, each: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(asked: str, split: str = "train", *, size: int | None = None) -> Dataset:
        assert asked == name
        # Flowers-17 is served whole under both names.
        count = 17 if name == "flowers17" else 200
        numbers = torch.arange(count * (80 if name == "flowers17" else 12))
        if name != "flowers17":
            numbers = numbers[8 * count :] if split == "test" else numbers[: 8 * count]
        images = numbers[:, None, None, None].float().expand(-1, 3, 1, 1)
        return Dataset(name, split, images, numbers % count, tuple(map(str, range(count))), "made up")

    monkeypatch.setattr(data, "load", made)
    private, public = (llg_attack.images(name, split, classes) for split in ("train", "test"))
    for own, count in zip((private, public), each, strict=True):
        assert own.classes == classes
        assert own.labels.bincount().tolist() == [count] * classes
    assert not set(private.images[:, 0, 0, 0].tolist()) & set(public.images[:, 0, 0, 0].tolist())


def test_batches_are_drawn_as_the_paper_says() -> None:
    labels = torch.arange(10).repeat(30)
    generator = torch.Generator().manual_seed(0)
    counts = labels[tally.drawn(labels, 32, "unbalanced", generator)].bincount().sort(descending=True).values
    assert counts[0] >= 16
    assert counts[1] >= 8
    chosen = tally.drawn(labels, 64, "balanced", generator)
    assert len(chosen.unique()) == 64
    with pytest.raises(UnknownName, match="way to draw"):
        tally.drawn(labels, 4, "even", generator)
