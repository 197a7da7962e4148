"""The batches' study: whole batches come back, none is silently wrong, and every frontier has an end."""

from __future__ import annotations

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak.errors import InputError
from gradleak.labels import BatchLabels
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wang2024 import batches

STUDY = "batches"
CHOSEN = {
    "repeats_alone": 2,
    "cells": ["resnet18/20/3/distinct/smoothing", "resnet18/20/6/repeated/mixup", "resnet18/10/8/distinct/onehot"],
    "noises": [1e-8, 1e-2],
    "repeats": 1,
    "joint_cells": [
        "layer/8/5/distinct/smoothing/known",
        "layer/8/6/distinct/smoothing/known",
        "layer/8/4/repeated/smoothing/unknown",
        "layer/8/4/distinct/mixup/known",
    ],
    "joint_networks": ["photos/lenet/untrained/5"],
    "starts": 48,
    "sizes": [4],
    "shown": 4,
    "classes": 100,
    "defenses": list(batches.DEFENSES),
}
# Golden rows hold these as well.
MORE = {"networks": ["photos/lenet/trained/2"], "precisions": ["float32", "float64"]}


def test_batches_are_whole_until_equations_run_out(record: Record) -> None:
    alone, together = record.rows(batches.OneByOne), record.rows(batches.Together)
    assert not alone["silent"].any()
    assert select(alone, noise=0).groupby("size")["whole"].mean().to_dict() == {3: 1, 6: 1, 8: 0}
    assert select(alone, attacker="aware").groupby("noise")["found"].min().to_dict() == {1e-8: 3, 1e-2: 0}
    assert select(alone, attacker="unaware", noise=1e-2)["flagged"].all()
    many = together["size"].eq(6)
    assert (together[~many]["status"] == "found").all()
    assert together[~many]["right"].all()
    assert "found" not in set(together[many]["status"]), "as many equations as unknowns"


def test_the_images_come_back(record: Record) -> None:
    closed = select(batches.inverted(record), attack=batches.CLOSED_FORM)
    assert closed["certified"].all()
    assert closed["lowest_psnr"].min() > 80
    # The weakest noise is as small as rounding errors: an attacker who expects none is exact, or notices the noise.
    behind = record.rows(batches.DefendedBatch)
    unaware = select(behind, attacker="unaware")
    assert (select(unaware, status="exact")["lowest_psnr"] > 80).all()
    changed = unaware[unaware["utility"] < 1 - 1e-11]
    assert len(changed) == 6, "all but clipping, which keeps the direction, and the weakest noise"
    assert (changed["status"] != "exact").all()
    assert (select(behind, defense="clip")["status"] == "failed").all()


def test_a_wrong_label_counts_as_wrong() -> None:
    hidden, labels = torch.rand(2, 4).double(), torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double()
    right = BatchLabels(labels, hidden, torch.zeros(2), torch.zeros(2), 0.0, "unique")
    wrong = replace(right, labels=labels.flip(0))
    failed = replace(right, labels=labels * math.nan, features=hidden * math.nan, status="failed")
    verdicts = [batches.judge(found, hidden, labels) for found in (right, wrong, failed)]
    assert [row["whole"] for row in verdicts] == [True, False, False]
    assert [row["silent"] for row in verdicts] == [False, True, False]
    assert [row["flagged"] for row in verdicts] == [False, False, True]
    assert [row["found"] for row in verdicts] == [2, 2, 0]


def test_units_are_chosen_for_the_bias_attack() -> None:
    units = torch.tensor([[1.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]]).double()
    truth = torch.tensor([[0.1, 0.9], [0.8, 0.0]]).double()
    assert batches.nearest(units, truth).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_mixed_labels_of_unknown_classes_are_refused() -> None:
    with pytest.raises(InputError, match="the two classes of every sample"):
        batches.JointCell.of("layer/10/6/distinct/mixup/unknown")


def test_tables_and_figures(record: Record) -> None:
    labels, images = batches.labels_table(record), batches.images_table(record)
    assert list(labels["noise"]) == ["0", "0", "0", "1e-08", "0.01", *["0"] * 5]
    assert list(images["defence"]) == ["none", *["gaussian"] * 5, "clip", "quantize", "float16 numbers"]
    for draw in (batches.figure_limits, batches.figure_certificate, batches.figure_batch, batches.figure_images):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
