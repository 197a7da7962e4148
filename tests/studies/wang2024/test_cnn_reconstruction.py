"""Table 3's study: paired runs from the same starts, second order, and what is counted."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak import data
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import matched_runs
from gradleak.studies.wang2024 import cnn_reconstruction

STUDY = "cnn-reconstruction"
CHOSEN = {
    "l2_steps": 2,
    "cosine_steps": 30,
    "again": 2,
    "again_restarts": 2,
    "whole": 2,
    "second_order": 1,
    "second_order_steps": 1,
}
# Golden rows hold these as well.
MORE = {"stages": ["untrained", "trained"]}


def test_every_row_has_every_label(record: Record) -> None:
    frame = record.frame()
    images = frame[frame["what"] == "image"]
    # Two kinds of label: two distances of five labels, five labels with full steps.
    assert len(images) == 2 * (2 * 5 * 2) + 2 * (5 * 2)
    assert images["psnr"].gt(0).all()
    assert not images["status"].eq("diverged").any()
    errors = images.groupby("run")["label_error"].mean()
    assert errors["GT"] < 1e-6
    assert errors["Ours"] < 1e-5
    assert errors["iDLG"] > 0.1


def test_known_and_recovered_labels_walk_together(record: Record) -> None:
    frame = record.frame()
    paired = frame[(frame["what"] == "paired") & (frame["run"] == "Ours against GT")]
    assert len(paired) == 4
    assert paired["apart"].lt(0.2).all()
    assert (paired["lower"] <= paired["difference"]).all()
    assert (paired["difference"] <= paired["upper"]).all()


def test_the_loss_falls_along_the_curves(record: Record) -> None:
    frame = record.frame()
    for _, curve in frame[frame["what"] == "curve"].groupby(["labels", "distance", "run"]):
        losses = curve.sort_values("step")["loss"]
        assert losses.diff().dropna().le(0).all()


def test_restarts_differ_and_the_attackers_choice_is_one_of_them(record: Record) -> None:
    frame = record.frame()
    again = frame[frame["what"] == "restart"]
    assert again.groupby(["labels", "distance", "image"])["psnr"].nunique().eq(2).all()
    assert len(again) == 2 * 2 * 2 * 2
    columns = ("mean PSNR (dB)", "start of least loss (dB)", "best start (dB)")
    table = cnn_reconstruction.restart_table(record).astype(dict.fromkeys(columns, float))
    assert (table["best start (dB)"] >= table["mean PSNR (dB)"]).all()
    assert (table["best start (dB)"] >= table["start of least loss (dB)"]).all()


def test_figures(record: Record) -> None:
    for draw in (
        cnn_reconstruction.figure_means,
        cnn_reconstruction.figure_losses,
        cnn_reconstruction.draw_paired,
        cnn_reconstruction.figure_second_order,
    ):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_every_restored_image_of_a_strip_has_its_psnr(record: Record) -> None:
    figure = cnn_reconstruction.figure_sources(record)
    rows = matched_runs.rows_of(record, "image")
    assert len(figure.axes) == 2
    for axis, labels in zip(figure.axes, ("mixup", "smoothing"), strict=True):
        own = rows[(rows["labels"] == labels) & (rows["distance"] == "L2") & (rows["run"] == "GT")]
        shown = [text.get_text() for text in axis.texts]
        assert len(shown) == len(own) * len(cnn_reconstruction.RUNS)
        assert shown[: len(own)] == [f"{psnr:.1f}" for psnr in own.sort_values("image")["psnr"]]
    plt.close(figure)


def test_the_table_has_the_papers_mean_and_intervals_that_hold_ours(record: Record) -> None:
    table = cnn_reconstruction.table(record)
    assert len(table) == 2 * 2 * 5
    assert table.iloc[0]["paper: mean PSNR (dB)"] == "28.27"
    for line in table.to_dict("records"):
        ways = {"L2": ("as published", "with line search"), "cosine": ("as published",)}[line["distance"]]
        for way in ways:
            mean, low, high = map(float, re.findall(r"[\d.]+", line[f"{way}: mean PSNR (dB)"]))
            assert low <= mean <= high
            assert line[f"{way}: recognisable (20 dB)"].endswith(" of 2")
        assert (line["with line search: mean PSNR (dB)"] == "–") == (line["distance"] == "cosine")


def test_samples_are_the_papers() -> None:
    photos = data.load("photos", "test")
    pairs = photos.classes * (photos.classes - 1) // 2
    _, mixed = matched_runs.table_samples(photos, "mixup", pairs, 1)
    assert (mixed > 0).sum(dim=1).eq(2).all()
    assert len((mixed > 0).unique(dim=0)) == pairs
    inputs, smooth = matched_runs.table_samples(photos, "smoothing", 3 * photos.classes, 1)
    assert smooth.argmax(dim=1).bincount().tolist() == [3] * photos.classes
    assert len(inputs.flatten(1).unique(dim=0)) == len(inputs)
    torch.testing.assert_close(smooth.sum(dim=1), torch.ones(len(smooth)).double())
    assert smooth.amax(dim=1).min() > 0.5


def test_a_paired_difference_is_told_from_none() -> None:
    images = [("a", n, 21.0 + n) for n in range(8)] + [("b", n, 20.0 + n) for n in range(8)]
    images.append(("a", 0, -float("inf")))
    rows = [{"what": "image", "run": run, "image": n, "psnr": psnr} for run, n, psnr in images]
    (found,) = matched_runs.paired(rows, [("a", "b")], 0)
    assert found["difference"] == pytest.approx((7 * 1 + (21 / 2 - 20)) / 8)
    assert found["lower"] < found["difference"] < found["upper"] == pytest.approx(1.0)


def test_a_start_may_be_of_fewer_images() -> None:
    starts = ["untrained/random", "trained/random/2"]
    chosen = cnn_reconstruction.Parameters(images=3, second_order=3, second_order_starts=starts)
    second = [one for one in chosen.experiments() if isinstance(one, cnn_reconstruction.SecondOrder)]
    assert [(one.stage, one.place) for one in second] == [
        *(("untrained", n) for n in range(3)),
        *(("trained", n) for n in range(2)),
    ]
