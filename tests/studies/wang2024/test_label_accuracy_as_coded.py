"""The networks of the published code: last layers drawn under a trained trunk, and networks trained whole."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import claims, models, studies
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import label_accuracy_as_coded as study

STUDY = "label-accuracy-as-coded"
CHOSEN = {"drawn": 6, "searched": 2, "samples": 20, "searches": 2, "networks": ["small-cnn/1"]}


def test_the_exact_solver_reads_every_label_under_a_trained_trunk(record: Record) -> None:
    exact = record.frame().query("solver == 'exact'")
    assert len(exact) == 2 * 2 * 3 + 3
    assert (exact["accuracy"] == 100).all()
    assert (exact["counted_zero"] == 100).all()
    assert (exact["zero"] == 0).all()
    assert (exact["silent"] == 0).all()
    assert (exact["idlg"].dropna() == 100).all()


def test_a_wider_last_layer_is_more_certain(record: Record) -> None:
    heads = record.part("heads")
    certain = heads[heads["solver"] == "exact"].groupby("head")["certain"].mean()
    assert certain["uniform"] > certain["torch"] + 20


def test_the_search_stops_early_where_classes_are_many() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 1280, generator=generator).relu() * 0.6
    found = {}
    for classes in (20, 1000):
        targets = torch.full((4, classes), 0.3 / classes, dtype=torch.float64)
        targets[:, 0] += 0.7
        layer = study.random_head(1280, classes, "torch", 0)
        exact, search = study.attacked(layer, features, targets, "smoothing", 4, "cpu")
        assert exact.accuracy == search.ended == search.counted == 100
        assert exact.largest_error < 1e-5
        found[classes] = search.median_error
    assert found[20] < 1e-4
    assert found[1000] > 5e-4


def test_a_zero_gradient_counts_as_in_the_code() -> None:
    features, targets = torch.ones(3, 8), torch.eye(4, dtype=torch.float64)[[0, 1, 0]]
    layer = torch.nn.Linear(8, 4, bias=False)
    with torch.no_grad():
        layer.weight.zero_()[0] += 100
    exact, search = study.attacked(layer, features, targets, "onehot", 3, "cpu")
    assert exact.zero == pytest.approx(200 / 3)
    assert exact.accuracy == pytest.approx(100 / 3)
    assert exact.counted_zero == 100
    assert search.counted >= 200 / 3 - 1e-9


def test_the_two_stems() -> None:
    wide, small = (models.build(name) for name in ("resnet18", "resnet18-cifar"))
    assert wide.body.conv1.kernel_size == (7, 7)
    assert small.body.conv1.kernel_size == (3, 3)
    assert isinstance(small.body.maxpool, torch.nn.Identity)
    for text in ("small-cnn", "small-cnn/0", "small-cnn/x"):
        with pytest.raises(InputError):
            studies.parameters(STUDY, "quick", {"networks": [text]})


def test_tables_and_figure(record: Record) -> None:
    heads = study.heads_table(record)
    assert list(heads["labels"]) == 2 * ["smoothing", "mixup", "onehot"]
    assert set(heads["last layer"]) == set(study.HEADS.values())
    assert set(heads["published"]) == {"–"}
    assert study._cifar100() == {"smoothing": 99.2, "mixup": 100, "onehot": 100}
    trained = study.trained_table(record)
    assert list(trained["network"]) == 3 * ["small-cnn, 1 epoch"]
    figure = study.figure_found(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_what_is_measured_in_a_stead_is_a_stand_in() -> None:
    parameters = studies.parameters(STUDY, "paper")
    assert studies.load(STUDY).datasets(parameters) == ["tinyimagenet32", "flowers17", "imagenet-sample", "cifar10"]
    cells = [claim for claim in claims.load(STUDY) if claim.place == "Table 1" and not claim.ours]
    assert len(cells) == 21
    for claim in cells:
        assert claim.stand_in
        assert claims.judge(claim, records.recorded(STUDY)).differs[-1:] in (("dataset",), ("trunk",))
