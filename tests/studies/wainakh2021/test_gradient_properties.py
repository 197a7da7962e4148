"""Figure 1's study: what sign and size say, and what calibration takes away."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wainakh2021 import gradient_properties

STUDY = "gradient-properties"
CHOSEN = {"repeats": 30, "sizes": [2, 8, 32]}


def test_a_negative_row_is_always_a_class_of_the_batch(record: Record) -> None:
    frame = record.frame()
    sign = frame[frame["what"] == "sign"]
    assert sign["absent_negative"].eq(0).all()
    assert sign[sign["size"] == 32]["present_positive"].iloc[0] > 5
    assert sign["count"].eq(300).all()


def test_calibration_brings_out_the_counts(record: Record) -> None:
    frame = record.frame()
    correlation = frame[frame["what"] == "correlation"].pivot(index="size", columns="kind", values="correlation")
    assert (correlation["calibrated"] > correlation["row sums"]).all()
    assert correlation["calibrated"].gt(0.95).all()


def test_within_a_network_the_correlation_is_higher(record: Record) -> None:
    frame = record.frame()
    own = frame[(frame["what"] == "correlation") & (frame["kind"] == "calibrated")]
    assert (own["within"] > own["correlation"]).all()
    assert own["within"].between(0.985, 1).all()


def test_correlations_and_slopes_are_those_of_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 5, (6, 10), generator=generator)
    counts[2] = 1  # nothing to correlate with
    values = torch.randn(6, 10, generator=generator, dtype=torch.float64) - counts
    expected = [abs(np.corrcoef(counts[n], values[n])[0, 1]) for n in (0, 1, 3, 4, 5)]
    assert np.allclose(gradient_properties._correlations(counts, values), expected)
    slopes = [np.polyfit(counts[:, n], values[:, n], 1)[0] for n in range(10)]
    assert np.allclose(gradient_properties._slopes(counts, values), slopes)


def test_a_sample_lowers_every_label_alike(record: Record) -> None:
    frame = record.frame()
    labels = frame[frame["what"] == "labels"].set_index("size")
    assert labels["variation"].lt(0.2).all()
    assert (labels["most"] <= labels["least"]).all()
    assert labels["least"].lt(0).all()


def test_impact_falls_with_the_batch_size(record: Record) -> None:
    frame = record.frame()
    impact = frame[frame["what"] == "sign"].set_index("size")["impact"]
    assert impact[2] / impact[8] > 3.5
    assert (impact < 0).all()


def test_medians_fall_with_every_sample(record: Record) -> None:
    frame = record.frame()
    own = frame[(frame["what"] == "spread") & (frame["kind"] == "calibrated") & (frame["size"] == 8)]
    assert own.sort_values("occurs")["q50"].diff().dropna().lt(0).all()
    assert (own["q05"] <= own["q95"]).all()


def test_tables_and_figures(record: Record) -> None:
    assert list(gradient_properties.table(record)["batch size"]) == ["2", "8", "32"]
    assert gradient_properties.correlation_table(record).shape == (3, 8)
    assert records.about(record) == "30 networks and digits"
    figure = figures.titled(gradient_properties.figure_properties(record), " Recorded: all. ")
    assert figure.get_suptitle() == "Recorded: all."
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
