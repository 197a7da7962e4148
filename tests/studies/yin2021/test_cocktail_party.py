"""Independent components, where they are the features and where they are not, beside exact recovery."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak.errors import InputError
from gradleak.images import unmix_features
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.yin2021 import cocktail_party
from gradleak.studies.yin2021.cocktail_party import CONSTANT, EXACT, PARTY, Cell

STUDY = "cocktail-party"
CHOSEN = {"cells": ["photos/lenet/20", "photos/small-cnn"], "sizes": [2, 6], "exact_to": 4, "batches": 2}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sparse_features_are_unmixed_whatever_mixes_them(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    features = torch.randn(size, 2000, generator=generator).sub(0.5).relu() ** 2
    mixing = torch.randn(20, size, generator=generator)
    found = cocktail_party.nearness(unmix_features(mixing @ features, size), features)
    assert found.least > 0.98
    # Normal ones have no direction of their own.
    normal = torch.randn(size, 2000, generator=generator)
    if size > 1:
        assert cocktail_party.nearness(unmix_features(mixing @ normal, size), normal).least < 0.98


def test_more_samples_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"21 inputs cannot be unmixed from a gradient of shape \(20, 50\)"):
        unmix_features(torch.randn(20, 50), 21)


def test_the_order_is_told_by_nobody_and_what_is_missing_counts_as_nothing() -> None:
    truth = torch.eye(3, 5)
    in_order = cocktail_party.nearness(truth[[2, 0, 1]], truth)
    assert in_order.columns == {"cosine": 1.0, "least": 1.0, "near": 100.0}
    assert cocktail_party.nearness(truth[:1], truth).cosine == pytest.approx(1 / 3)


def test_who_needs_what(record: Record) -> None:
    frame = record.frame()
    assert set(frame["attack"]) == {CONSTANT, PARTY, EXACT}
    assert frame[frame["attack"] == EXACT]["size"].max() == 2
    own = frame[(frame["network"] == "lenet") & (frame["size"] == 2)].groupby("attack")["cosine"].mean()
    # Untrained features are alike, and not independent.
    assert own[EXACT] > 0.9999 > own[CONSTANT] > 0.9 > own[PARTY]


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(InputError, match="others need a number of classes"):
        Cell.of("photos/lenet")


def test_tables_and_figures(record: Record) -> None:
    table = cocktail_party.table(record)
    assert list(table["batch size"]) == ["2", "6"] * 2
    assert list(table["exact recovery: batches certified"])[1::2] == ["–"] * 2, (
        "exact recovery is not run on the larger ones"
    )
    assert records.about(record) == "2 networks, 2 batches of each size, photos"
    figure = cocktail_party.figure_cosines(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
