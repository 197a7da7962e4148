"""The loss landscape's study: minima are told right from wrong, and the figures find their own windows."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import torch

from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.labels import Minima
from gradleak.studies.wang2024 import loss_landscape

STUDY = "loss-landscape"
CHOSEN = loss_landscape.SMALLEST


def test_the_least_minimum_is_the_truth(record: Record) -> None:
    frame = record.frame()
    assert len(frame) == 2 * 2 * 12
    assert (~frame["best_wrong"]).mean() > 0.95
    assert (frame["minima"] >= 1).all()
    assert frame["truth"].abs().min() >= 1
    wrong = frame[~frame["first_wrong"] & frame["first_wrong"].notna()]
    assert ((wrong["first"] - wrong["truth"]).abs() / wrong["truth"].abs() < 1e-3).all()


def test_smoothed_labels_are_not_found_by_the_square_loss_and_mixed_ones_are(record: Record) -> None:
    frame = record.frame()
    assert frame[frame["labels"] == "smoothing"]["square_right"].mean() < 0.2
    assert frame[frame["labels"] == "mixup"]["square_right"].mean() > 0.9


def test_minima_are_judged_by_the_papers_thresholds() -> None:
    minima = Minima(torch.tensor([-3.0, 0.5, 2.0, 4.0]), torch.tensor([1e-3, 1e-3, 1e-13, 0.0]))
    assert loss_landscape.first_minimum(minima, 4.0, 1.0) == 2.0
    assert loss_landscape.first_minimum(minima, 4.0, 0.25) == 0.5
    assert loss_landscape.first_minimum(minima, -1.0, 1.0) == -3.0
    assert math.isnan(loss_landscape.first_minimum(minima, 4.0, 5.0))
    assert loss_landscape._accepted_wrong(minima, 4.0)
    assert not loss_landscape._accepted_wrong(Minima(minima.scalars, torch.ones(4)), 4.0)
    assert loss_landscape._found(4.0024, 4.0)
    assert not loss_landscape._found(4.01, 4.0)
    assert loss_landscape._found(400.3, 400.0)


def test_tables_and_figures(record: Record) -> None:
    table = loss_landscape.table(record)
    assert list(table["stage"]) == ["untrained", "untrained", "trained", "trained"]
    assert "test accuracy" in loss_landscape.training_line(record)
    cases = {stage: loss_landscape.example(record, stage) for stage in ("untrained", "trained")}
    drawn = [
        loss_landscape.figure_landscape(cases),
        loss_landscape.figure_alternatives(cases),
        loss_landscape.figure_minima(record),
    ]
    for figure in drawn:
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
