"""The page on Tables 1 and 2: what is not recovered is open or zero, and solvers are judged on the label itself."""

from __future__ import annotations

import math

import pytest
import torch

from gradleak import claims, data, metrics, models
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.columns import Column, Columns
from gradleak.runs.records import Record
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.searched import judged
from gradleak.studies.wang2024 import label_accuracy as study

STUDY = "label-accuracy"
CHOSEN = study.Parameters.at("smallest")


def test_what_is_not_recovered_is_said_to_be_open(record: Record) -> None:
    frame = study._first(record).set_index("labels")
    assert (frame["silent"] == 0).all()
    assert (frame["accuracy"] > 60).all()
    assert (frame["accuracy"] < 100).all(), "a saturated network guesses some images rightly"
    assert (frame["accuracy"] + frame["ambiguous"] + frame["failed"] >= 100 - 1e-9).all()
    assert frame.loc["onehot", "failed"] == frame.loc["onehot", "zero"] > 0
    assert frame.loc["onehot", "counted_zero"] == 100
    assert frame.loc["smoothing", "class_right"] > 95
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
    exact, search = study.under_random_head(layer, features, targets, "onehot", 3, "cpu")
    assert exact["zero"] == pytest.approx(200 / 3)
    assert exact["accuracy"] == pytest.approx(100 / 3)
    assert exact["counted_zero"] == 100
    assert search["counted"] >= 200 / 3 - 1e-9


def test_a_wrong_label_counts_as_one() -> None:
    """The judgement can fail: a label that is off and said to be known is silent, a NaN is a miss."""
    truth = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [1.0, 0.0]], dtype=torch.float64)
    labels = truth.clone()
    labels[1] = torch.tensor([0.5, 0.5])
    labels[2] = torch.nan
    row = judged(labels, ("unique", "unique", "failed", "ambiguous"), truth)
    assert (row["accuracy"], row["silent"], row["unique"], row["failed"]) == (50, 1, 50, 25)
    assert row["largest_error"] == pytest.approx(0.6)
    empty = judged(labels[2:3], ("failed",), truth[2:3])
    assert math.isnan(empty["mean_error"])
    success = metrics.oracle_success(torch.tensor([1.0, 1.1, torch.nan]), torch.tensor([1.002, 1.0, 1.0]), 4.0)
    assert success.tolist() == [True, False, False]


def test_claims_on_data_that_is_not_at_hand_are_stand_ins() -> None:
    stand_ins = [claim for claim in claims.load(STUDY) if claim.stand_in]
    assert len(stand_ins) == 4
    for claim in stand_ins:
        assert claims.judge(claim, records.recorded(STUDY)).differs == ("dataset",)


def test_a_trained_row_names_its_training_data() -> None:
    assert attacked_networks.AttackedNetwork.of("cifar10/lenet/trained").training == "cifar10-jpeg"
    private, row = data.load("photos", "test"), attacked_networks.AttackedNetwork.of("photos/lenet/untrained")
    model, accuracy = attacked_networks.network(row, "mixup", private, 0, "cpu")
    assert accuracy is None
    assert model.head.bias is None


def test_the_two_stems() -> None:
    wide, small = (models.build(name) for name in ("resnet18", "resnet18-cifar"))
    assert wide.body.conv1.kernel_size == (7, 7)
    assert small.body.conv1.kernel_size == (3, 3)


def test_an_undeclared_column_is_refused() -> None:
    with pytest.raises(InputError, match="columns nothing, which are not declared"):
        Columns(count=Column("samples")).check({"count": 1, "nothing": 2})
