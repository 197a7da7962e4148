"""The batches' study: whole batches are right, none is silently wrong, and the frontier has an end."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import torch

from gradleak.labels import BatchLabels
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import batch_soft_labels

STUDY = "batch-soft-labels"
CHOSEN = {
    "batches": 2,
    "cells": ["resnet18/20/3/distinct/smoothing", "resnet18/20/6/repeated/mixup", "resnet18/10/8/distinct/onehot"],
    "noises": [1e-8, 1e-2],
}
# Golden rows hold these as well.
MORE = {"trained": ["photos/lenet/2"], "precisions": ["float32", "float64"]}


def test_batches_are_whole_until_equations_run_out(record: Record) -> None:
    frame = record.frame()
    assert not frame["silent"].any()
    clean = frame[frame["noise"] == 0].groupby("size")["whole"].mean()
    assert clean.to_dict() == {3: 1, 6: 1, 8: 0}
    aware = frame[(frame["noise"] > 0) & (frame["attacker"] == "aware")].groupby("noise")["found"].min()
    assert aware.to_dict() == {1e-8: 3, 1e-2: 0}
    assert frame[(frame["noise"] == 1e-2) & (frame["attacker"] == "unaware")]["flagged"].all()


def test_a_wrong_label_counts_as_one() -> None:
    hidden, labels = torch.rand(2, 4).double(), torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double()
    found = BatchLabels(labels, hidden, torch.zeros(2), torch.zeros(2), 0.0, "unique")
    assert batch_soft_labels.judge(found, hidden, labels).whole
    off = BatchLabels(labels.flip(0), hidden, torch.zeros(2), torch.zeros(2), 0.0, "unique")
    row = batch_soft_labels.judge(off, hidden, labels)
    assert (row.whole, row.silent, row.flagged) == (False, True, False)
    lost = BatchLabels(labels * math.nan, hidden * math.nan, torch.zeros(2), torch.zeros(2), math.inf, "failed", "lost")
    row = batch_soft_labels.judge(lost, hidden, labels)
    assert (row.whole, row.silent, row.flagged, row.found) == (False, False, True, 0)


def test_tables_and_figures(record: Record) -> None:
    assert len(batch_soft_labels.table(record)) == 3
    assert len(batch_soft_labels.noise_table(record)) == 2
    for figure in (batch_soft_labels.figure_frontier(record), batch_soft_labels.figure_certificate(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
