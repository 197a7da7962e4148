"""Figure 1's study: what sign and size of row sums say, and what calibration takes away."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wainakh2021 import gradient_properties

STUDY = "gradient-properties"
CHOSEN = {"repeats": 30, "sizes": [2, 8, 32]}


def test_a_negative_row_sum_is_always_of_a_class_of_the_batch_and_its_impact_falls_with_the_size(
    record: Record,
) -> None:
    sign = select(record.frame(), what="sign").set_index("size")
    assert sign["absent_negative"].eq(0).all()
    assert sign["present_positive"][32] > 5
    assert sign["count"].eq(300).all()
    assert sign["impact"][2] / sign["impact"][8] > 3.5
    assert (sign["impact"] < 0).all()


def test_calibration_brings_out_the_counts_most_of_all_within_a_network(record: Record) -> None:
    correlation = select(record.frame(), what="correlation").set_index("size")
    raw, calibrated = (select(correlation, kind=kind) for kind in gradient_properties.KINDS)
    assert (calibrated["correlation"] > raw["correlation"]).all()
    assert calibrated["correlation"].gt(0.95).all()
    assert (calibrated["within"] > calibrated["correlation"]).all()
    assert calibrated["within"].between(0.985, 1).all()


def test_correlations_and_slopes_are_those_of_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 5, (6, 10), generator=generator)
    counts[2] = 1  # nothing to correlate with
    values = torch.randn(6, 10, generator=generator, dtype=torch.float64) - counts
    expected = [abs(np.corrcoef(counts[n], values[n])[0, 1]) for n in (0, 1, 3, 4, 5)]
    assert np.allclose(gradient_properties._correlations(counts, values), expected)
    slopes = [np.polyfit(counts[:, n], values[:, n], 1)[0] for n in range(10)]
    assert np.allclose(gradient_properties._slopes(counts, values), slopes)


def test_a_sample_lowers_the_row_sums_of_all_classes_alike(record: Record) -> None:
    labels = select(record.frame(), what="labels")
    assert labels["variation"].lt(0.2).all()
    assert (labels["most"] <= labels["least"]).all()
    assert labels["least"].lt(0).all()
    quantiles = select(record.frame(), what="spread", kind="calibrated", size=8)
    assert quantiles.sort_values("occurs")["q50"].diff().dropna().lt(0).all()
    assert (quantiles["q05"] <= quantiles["q95"]).all()


def test_table_and_figure(record: Record) -> None:
    table = gradient_properties.table(record)
    assert list(table["batch size"]) == ["2", "8", "32"]
    assert not table.eq("–").any(axis=None)
    assert records.about(record) == "30 networks and digits"
    figure = figures.titled(gradient_properties.figure_properties(record), " Recorded: all. ")
    assert figure.get_suptitle() == "Recorded: all."
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
