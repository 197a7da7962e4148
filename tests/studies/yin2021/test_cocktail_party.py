"""Independent components, where they are the features and where they are not, beside exact recovery."""

from __future__ import annotations

import pytest
import torch

from gradleak.images import unmix_features
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.yin2021 import cocktail_party
from gradleak.studies.yin2021.cocktail_party import CONSTANT, EXACT, PARTY

STUDY = "cocktail-party"
CHOSEN = {
    "cells": [
        {"dataset": "photos", "network": "lenet", "classes": 20},
        {"dataset": "photos", "network": "small-cnn"},
    ],
    "sizes": [2, 6],
    "exact_to": 2,
    "batches": 1,
}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sparse_features_are_unmixed_whatever_mixes_them(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    features = torch.randn(size, 2000, generator=generator).sub(0.5).relu() ** 2
    mixing = torch.randn(20, size, generator=generator)
    found = cocktail_party.nearness(unmix_features(mixing @ features, size), features)
    assert found["least"] > 0.98
    # Normal components have no direction of their own.
    normal = torch.randn(size, 2000, generator=generator)
    if size > 1:
        assert cocktail_party.nearness(unmix_features(mixing @ normal, size), normal)["least"] < 0.98


def test_features_are_compared_in_the_best_order_and_a_missing_one_has_the_cosine_zero() -> None:
    truth = torch.eye(3, 5)
    assert cocktail_party.nearness(truth[[2, 0, 1]], truth) == {"cosine": 1.0, "least": 1.0, "near": 100.0}
    assert cocktail_party.nearness(truth[:1], truth)["cosine"] == pytest.approx(1 / 3)


def test_exact_recovery_finds_untrained_features_and_independent_components_do_not(record: Record) -> None:
    own = select(record.frame(), network="lenet", size=2).groupby("attack")["cosine"].mean()
    # Untrained features are alike, and not independent.
    assert own[EXACT] > 0.9999 > own[CONSTANT] > 0.9 > own[PARTY]
