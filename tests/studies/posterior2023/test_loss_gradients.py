"""The losses' study: slopes agree with autograd where Theorem 1 holds, counts where weights are in their place, and
posteriors of positive and negative samples along a training.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.posterior2023 import loss_gradients

STUDY = "loss-gradients"
CHOSEN = loss_gradients.Parameters.at("smallest") | {"rows": ["digits/small-cnn//60"], "stops": 3, "samples": 300}


def test_table_one_holds_and_the_printed_sum_does_not(record: Record) -> None:
    assert len(loss_gradients.table(record)) == 5
    slopes = record.rows(loss_gradients.Slope)
    one_hot = slopes[(slopes["labels"] != "soft") | (slopes["loss"] == "cross-entropy")]
    assert one_hot.loc[one_hot["form"] == "Table 1", "worst"].max() < 1e-9
    assert slopes.loc[slopes["form"] == "by the label", "worst"].max() < 1e-6
    assert slopes.loc[slopes["form"] == "equation 2 as printed", "median"].min() > 0.01
    focused = slopes[(slopes["labels"] == "soft") & (slopes["gamma"] == 2)]
    assert focused.loc[focused["form"] == "Table 1", "worst"].min() > 0.01
    assert slopes["least_weight"].min() >= 0


def test_counts_need_every_samples_own_weight(record: Record) -> None:
    counts = record.rows(loss_gradients.Counts)
    assert (counts.loc[counts["form"] == "as a system", "exact"] == 100).all()
    theorem = counts[counts["form"] == "Theorem 2"].groupby("gamma")["found"].mean()
    assert theorem[2.0] < theorem[0.0] < 100


def test_the_figure_shows_what_each_formula_counts(record: Record) -> None:
    figure = loss_gradients.figure_counts(record)
    drawn = {str(line.get_label()): list(line.get_ydata()) for line in figure.axes[0].lines}
    plt.close(figure)
    counts = record.rows(loss_gradients.Counts)
    own = counts[(counts["form"] == "Theorem 2") & (counts["gamma"] == 2)].sort_values("confidence")
    assert drawn["Theorem 2, γ = 2"] == list(own["found"])
    assert drawn["linear system, every γ"] == [100.0] * len(loss_gradients.CONFIDENCES)


def test_untrained_posteriors_are_alike_and_part_with_training(record: Record) -> None:
    frame = record.rows(loss_gradients.Distributions)
    means = frame.groupby(["step", "side"])["mean"].mean()
    assert means[0, "positive"] == pytest.approx(0.1, abs=0.01)
    assert means[0, "negative"] == pytest.approx(0.1, abs=0.01)
    assert means[60, "positive"] > means[60, "negative"] + 0.3
    assert frame[frame["step"] == 0]["spread"].max() < frame[frame["step"] == 60]["spread"].max()
    assert sorted(frame["step"].unique()) == [0, 30, 60]


def test_the_figure_shows_errors_that_grow_with_training(record: Record) -> None:
    figure = loss_gradients.figure_posteriors(record)
    assert figures.gray_table(figure).std() > 0.02
    probabilities, errors = figure.axes
    assert probabilities.get_title(loc="left").startswith("digits, small-cnn, 60 steps (accuracy ")
    assert [label.get_text() for label in errors.get_xticklabels()] == ["0", "30", "60"]
    means = [float(dots.get_offsets()[:, 1].mean()) for dots in errors.collections]
    assert means == sorted(means)
    plt.close(figure)


def test_a_run_says_what_it_measures(record: Record) -> None:
    about = "20 vectors of random logits for each loss and number of classes; small-cnn on digits, 300 test samples"
    assert records.about(record) == about
