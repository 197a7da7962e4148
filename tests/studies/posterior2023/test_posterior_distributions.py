"""Figure 2's study: posteriors of positive and negative samples along a training."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.posterior2023 import posterior_distributions

STUDY = "posterior-distributions"
CHOSEN = {"rows": ["digits/small-cnn//60"], "stops": 3, "samples": 300}


def test_untrained_posteriors_are_alike_and_part_with_training(record: Record) -> None:
    frame = record.rows(posterior_distributions.Posteriors)
    means = frame.groupby(["step", "side"])["mean"].mean()
    assert means[0, "positive"] == pytest.approx(0.1, abs=0.01)
    assert means[0, "negative"] == pytest.approx(0.1, abs=0.01)
    assert means[60, "positive"] > means[60, "negative"] + 0.3
    assert frame[frame["step"] == 0]["spread"].max() < frame[frame["step"] == 60]["spread"].max()
    assert sorted(frame["step"].unique()) == [0, 30, 60]


def test_tables_and_figures(record: Record) -> None:
    table = posterior_distributions.table(record)
    assert list(table["training steps"]) == ["0", "30", "60"]
    assert set(table["test samples"]) == {"300"}
    assert table["mean error of a count (samples)"].astype(float).is_monotonic_increasing
    assert records.about(record) == "small-cnn on digits; 300 test samples at each stop"
    for draw in (posterior_distributions.figure_posteriors, posterior_distributions.figure_errors):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
