"""The loss landscape's study: minima are told right from wrong, and the figures find their own windows."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import torch

from gradleak.labels import Minima
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.samples import read
from gradleak.studies.wang2024 import loss_landscape

STUDY = "loss-landscape"
CHOSEN = loss_landscape.Parameters.at("smallest")


def test_the_least_minimum_is_the_truth(record: Record) -> None:
    frame = loss_landscape._samples(record)
    assert len(frame) == 2 * 2 * 12
    assert (~frame["best_wrong"]).mean() > 0.95
    assert (frame["minima"] >= 1).all()
    assert frame["truth"].abs().min() >= 1
    wrong = frame[~frame["first_wrong"] & frame["first_wrong"].notna()]
    assert ((wrong["first"] - wrong["truth"]).abs() / wrong["truth"].abs() < 1e-3).all()


def test_smoothed_labels_are_not_found_by_the_square_loss_and_mixed_ones_are(record: Record) -> None:
    frame = loss_landscape._samples(record)
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


def test_the_sample_that_figures_show_is_in_the_record(record: Record) -> None:
    cases, frame = loss_landscape._examples(record), loss_landscape._samples(record)
    assert list(cases) == ["untrained", "trained"]
    for stage, case in cases.items():
        own = frame[(frame["stage"] == stage) & (frame["labels"] == "smoothing")].set_index("sample")
        assert own["truth"][case.sample] == case.truth
        label = read(case.logits, case.ratios).labels(torch.tensor([[case.truth]], dtype=torch.float64))[0, 0]
        # Smoothed: all entries but the largest are equal.
        assert label.sort().values[:-1].std() < 1e-5
        assert abs(float(label.sum()) - 1) < 1e-5


def test_the_first_wrong_sample_is_shown_or_else_the_one_with_the_most_minima() -> None:
    row = loss_landscape.SampleMinima.model_construct
    rows = [row(sample=n, first_wrong=wrong, minima=n) for n, wrong in enumerate([False, True, True, False])]
    assert loss_landscape._example(rows) == 1
    assert loss_landscape._example([row(sample=n, first_wrong=False, minima=n) for n in range(4)]) == 3


def test_tables_and_figures(record: Record) -> None:
    table = loss_landscape.table(record)
    assert list(table["network"]) == ["lenet, untrained"] * 2 + ["small-cnn, trained"] * 2
    assert len(loss_landscape.alternatives_table(record)) == 4
    assert "test accuracy" in loss_landscape.training_line(record)
    drawn = [
        loss_landscape.figure_landscape(record),
        loss_landscape.figure_alternatives(record),
        loss_landscape.figure_minima(record),
    ]
    for figure in drawn:
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
