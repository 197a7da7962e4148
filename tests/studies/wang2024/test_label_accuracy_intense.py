"""Table 2's study: every solver is judged on the label, blind, and on the paper's own terms."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import data, metrics
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.searched import judged
from gradleak.studies.wang2024 import label_accuracy_intense

STUDY = "label-accuracy-intense"
CHOSEN = label_accuracy_intense.Parameters.at("smallest") | {"samples": 60, "doubles": 20, "searches": 4}


def test_every_label_is_recovered_and_none_wrongly(record: Record) -> None:
    frame = record.frame()
    exact = frame[frame["solver"] == "exact"]
    assert (exact["accuracy"] == 100).all()
    assert (exact["silent"] == 0).all()
    assert (exact["unique"] + exact["ambiguous"] + exact["failed"]).round(9).eq(100).all()
    assert (exact["mean_error"][exact["dtype"] == "float32"] < 1e-6).all()
    assert (exact["mean_error"][exact["dtype"] == "float64"] < 1e-12).all()
    published = frame[frame["solver"] == "lbfgs, then pso"]
    assert (published["accuracy"] >= 50).all()
    assert (published["oracle"] >= published["accuracy"] - 1e-9).all()


def test_a_wrong_label_counts_as_one() -> None:
    """The judgement can fail: a label that is off and said to be known is silent, a NaN is a miss."""
    truth = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [1.0, 0.0]], dtype=torch.float64)
    labels = truth.clone()
    labels[1] = torch.tensor([0.5, 0.5])
    labels[2] = torch.nan
    row = judged(labels, ("unique", "unique", "failed", "ambiguous"), truth)
    assert (row.accuracy, row.silent, row.unique, row.failed) == (50, 1, 50, 25)
    assert row.largest_error == pytest.approx(0.6)
    empty = judged(labels[2:3], ("failed",), truth[2:3])
    assert math.isnan(empty.mean_error)
    success = metrics.oracle_success(torch.tensor([1.0, 1.1, torch.nan]), torch.tensor([1.002, 1.0, 1.0]), 4.0)
    assert success.tolist() == [True, False, False]


def test_tables_and_figures(record: Record) -> None:
    table = label_accuracy_intense.table(record)
    assert list(table["labels"]) == ["smoothing", "mixup", "onehot"]
    assert set(table["labels recovered"]) == {"100.0 %"}
    solvers = label_accuracy_intense.solver_table(record)
    assert len(solvers) == 3 * 4
    assert set(solvers[solvers["solver"] == "exact solver"]["time relative to the exact solver, median"]) == {"1"}
    searched = label_accuracy_intense.search_table(record)
    assert list(searched["labels"]) == ["smoothing", "mixup", "onehot"]
    study = label_accuracy_intense
    for draw in (study.figure_errors, study.figure_times, study.figure_recovered):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_the_figure_shows_both_attacks_on_every_network(record: Record) -> None:
    figure = label_accuracy_intense.figure_recovered(record)
    for axis in figure.axes:
        exact, search = axis.get_lines()
        assert list(exact.get_xdata()) == [100] * len(exact.get_xdata())
        assert len(search.get_xdata()) == len(exact.get_xdata()) == len(axis.get_yticks())
    plt.close(figure)


def test_a_trained_row_names_its_training_data() -> None:
    assert attacked_networks.AttackedNetwork.of("cifar10/lenet/trained").training == "cifar10-jpeg"
    model, accuracy = attacked_networks.network(
        attacked_networks.AttackedNetwork.of("photos/lenet/untrained"), "mixup", data.load("photos", "test"), 0, "cpu"
    )
    assert accuracy is None
    assert model.head.bias is None
