"""The losses' study: slopes agree with autograd where Theorem 1 holds, counts where weights are in their place, and
posteriors of positive and negative samples along a training.
"""

from __future__ import annotations

from gradleak.runs.records import Record
from gradleak.studies.posterior2023 import loss_gradients

STUDY = "loss-gradients"
CHOSEN = loss_gradients.Parameters.at("smallest") | {
    "rows": loss_gradients.Trained.listed(("digits", "small-cnn", "", 60)),
    "stops": 3,
    "samples": 300,
}


def test_table_one_holds_and_the_printed_sum_does_not(record: Record) -> None:
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
