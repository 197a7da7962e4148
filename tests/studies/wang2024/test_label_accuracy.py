"""The page on Tables 1 and 2: what is not recovered is open or zero, and solvers are judged on the label itself."""

from __future__ import annotations

import pytest
import torch

from gradleak import claims, metrics
from gradleak.claims.judging import DECIDED
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.studies.shared.outcomes import wilson
from gradleak.studies.shared.searched import judged
from gradleak.studies.wang2024 import label_accuracy as study

STUDY = "label-accuracy"
CHOSEN = study.Parameters.at("smallest")


def test_what_is_not_recovered_is_ambiguous_or_has_a_zero_gradient(record: Record) -> None:
    frame = record.rows(study.RandomNetwork).set_index("labels")
    assert (frame["silent"] == 0).all()
    assert frame["accuracy"].between(60, 100, inclusive="left").all(), "a certain network guesses some images rightly"
    assert (frame["accuracy"] + frame["ambiguous"] + frame["failed"] >= 100 - 1e-9).all()
    assert frame.loc["onehot", "failed"] == frame.loc["onehot", "zero"] > 0
    assert frame.loc["onehot", "counted_zero"] == 100
    assert frame.loc["onehot", "idlg"] == frame.loc["onehot", "accuracy"]


def test_the_search_stops_early_where_classes_are_many() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 1280, generator=generator).relu() * 0.6
    found = {}
    for classes in (20, 1000):
        targets = torch.full((4, classes), 0.3 / classes, dtype=torch.float64)
        targets[:, 0] += 0.7
        layer = study.random_head(1280, classes, "torch", 0)
        exact, search = study.under_random_head(layer, features, targets, "smoothing", 4, "cpu")
        assert exact["accuracy"] == search["ended"] == search["counted"] == 100
        assert exact["largest_error"] < 1e-5
        found[classes] = search["median_error"]
    assert found[20] < 1e-4
    assert found[1000] > 5e-4


def test_a_zero_gradient_counts_as_in_the_code() -> None:
    features, targets = torch.ones(3, 8), torch.eye(4, dtype=torch.float64)[[0, 1, 0]]
    layer = torch.nn.Linear(8, 4, bias=False)
    with torch.no_grad():
        layer.weight.zero_()[0] += 100
    exact, _ = study.under_random_head(layer, features, targets, "onehot", 3, "cpu")
    shares = [exact[name] for name in ("zero", "accuracy", "counted_zero")]
    assert shares == pytest.approx([200 / 3, 100 / 3, 100])


def test_a_wrong_label_counts_as_one() -> None:
    truth = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [1.0, 0.0]], dtype=torch.float64)
    labels = truth.clone()
    labels[1:3] = torch.tensor([[0.5, 0.5], [torch.nan, torch.nan]])
    row = judged(labels, ("unique", "unique", "failed", "ambiguous"), truth)
    assert (row["accuracy"], row["silent"], row["unique"], row["failed"]) == (50, 1, 50, 25)
    assert row["largest_error"] == pytest.approx(0.6)
    success = metrics.oracle_success(torch.tensor([1.0, 1.1, torch.nan]), torch.tensor([1.002, 1.0, 1.0]), 4.0)
    assert success.tolist() == [True, False, False]


def test_a_part_of_the_test_set_counts_as_the_papers_data_and_another_stem_as_a_stand_in() -> None:
    judged_claims = claims.judgements(records.recorded(STUDY))
    assert [judged.differs for judged in judged_claims.values() if judged.claim.stand_in] == [("row",)] * 6
    of_part = [judged for name, judged in judged_claims.items() if name.endswith("-cifar-100")]
    assert len(of_part) == 4
    assert all("test_images" in judged.claim.immaterial and judged.verdict in DECIDED for judged in of_part)
    assert judged_claims["label-accuracy-subsets"].agrees


def test_a_part_of_a_test_set_is_compared_with_the_whole(record: Record) -> None:
    for row in record.rows(study.Subsets).to_dict("records"):
        low, high = wilson(round(row["drawn_known"] * row["images"] / 100), row["images"])
        inside = 100 * low <= row["drawn_whole"] <= 100 * high
        assert (row["drawn_beyond"] <= 0) is inside
