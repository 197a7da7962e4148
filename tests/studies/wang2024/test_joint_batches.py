"""The study of joint batches: which batches are found, and which are ambiguous."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.errors import InputError
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wang2024 import joint_batches

STUDY = "joint-batches"
CHOSEN = {
    "cells": ["8/5/distinct/told", "8/6/distinct/told", "8/4/repeated/untold", "8/4/mixed/told"],
    "networks": ["photos/lenet/untrained/5"],
    "batches": 2,
    "starts": 48,
}


def test_all_batches_with_more_equations_than_unknowns_are_found(record: Record) -> None:
    frame = record.frame()
    found = frame[frame["cell"] != "8/6/distinct/told"]
    assert (found["status"] == "found").all()
    assert found["right"].all()


def test_with_as_many_equations_as_unknowns_no_batch_is_called_found(record: Record) -> None:
    assert "found" not in set(select(record.frame(), cell="8/6/distinct/told")["status"])


def test_table_and_figure(record: Record) -> None:
    assert list(joint_batches.table(record)["B"]) == ["5", "6", "4", "4", "5"]
    figure = joint_batches.figure_sizes(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)


def test_mixed_labels_of_unknown_classes_are_refused() -> None:
    with pytest.raises(InputError, match="the two classes of every sample"):
        joint_batches.Cell.of("10/6/mixed/untold")
