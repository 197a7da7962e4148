"""Figure 1's study: what sign and size say, and what calibration takes away."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak import figures
from gradleak.records import Record
from gradleak.studies import gradient_properties

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
    assert list(gradient_properties.table(record)["B"]) == ["2", "8", "32"]
    figure = gradient_properties.figure_properties(record)
    assert figures.gray_table(figure).std() > 0.02
    plt.close(figure)
