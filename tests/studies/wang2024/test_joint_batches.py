"""The study of batches beyond half the number of classes: what is found, what is ambiguous, and that neither lies."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.errors import InputError
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import joint_batches

STUDY = "joint-batches"
CHOSEN = {
    "cells": ["8/5/distinct/told", "8/6/distinct/told", "8/4/repeated/untold", "8/4/mixed/told"],
    "networks": ["photos/lenet/untrained/5"],
    "batches": 2,
    "starts": 48,
}


def test_more_than_half_of_the_classes_are_told_apart(record: Record) -> None:
    frame = record.frame()
    five = frame[frame["cell"] == "8/5/distinct/told"]
    assert five["right"].all()
    assert (five["status"] == "found").all()
    assert not frame["wrong"].any()


def test_mixed_labels_whose_pairs_are_told_are_found(record: Record) -> None:
    frame = record.frame()
    mixed = frame[frame["cell"] == "8/4/mixed/told"]
    assert mixed["right"].all()
    assert (mixed["status"] == "found").all()


def test_with_no_equation_to_spare_nothing_is_called_found(record: Record) -> None:
    frame = record.frame()
    six = frame[frame["cell"] == "8/6/distinct/told"]
    assert "found" not in set(six["status"])


def test_tables_and_figures(record: Record) -> None:
    table = joint_batches.table(record)
    assert len(table) == 9
    assert (table["found, but wrong"] == "0").all()
    figure = joint_batches.figure_sizes(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_pairs_that_are_not_told_are_refused() -> None:
    with pytest.raises(InputError, match="the two classes of every sample"):
        joint_batches.Cell.of("10/6/mixed/untold")


def test_a_network_without_a_recipe_is_refused() -> None:
    with pytest.raises(InputError, match="no training recipe"):
        joint_batches.Network.of("digits/resnet18/trained/4")
