"""The batches' study: whole batches are right, none is silently wrong, and the frontier has an end."""

from __future__ import annotations

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

from gradleak.labels import BatchLabels
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
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
    assert select(frame, noise=0).groupby("size")["whole"].mean().to_dict() == {3: 1, 6: 1, 8: 0}
    assert select(frame, attacker="aware").groupby("noise")["found"].min().to_dict() == {1e-8: 3, 1e-2: 0}
    assert select(frame, attacker="unaware", noise=1e-2)["flagged"].all()


def test_a_wrong_label_counts_as_wrong() -> None:
    hidden, labels = torch.rand(2, 4).double(), torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double()
    right = BatchLabels(labels, hidden, torch.zeros(2), torch.zeros(2), 0.0, "unique")
    wrong = replace(right, labels=labels.flip(0))
    failed = replace(right, labels=labels * math.nan, features=hidden * math.nan, status="failed")
    verdicts = [batch_soft_labels.judge(found, hidden, labels) for found in (right, wrong, failed)]
    assert [row["whole"] for row in verdicts] == [True, False, False]
    assert [row["silent"] for row in verdicts] == [False, True, False]
    assert [row["flagged"] for row in verdicts] == [False, False, True]
    assert [row["found"] for row in verdicts] == [2, 2, 0]


def test_table_and_figures(record: Record) -> None:
    assert list(batch_soft_labels.table(record)["noise"]) == ["0", "0", "0", "1e-08", "0.01"]
    for figure in (batch_soft_labels.figure_frontier(record), batch_soft_labels.figure_certificate(record)):
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
