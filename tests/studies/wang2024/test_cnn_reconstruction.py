"""Table 3's study: paired runs from the same starts, second order, and what is counted."""

from __future__ import annotations

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
    assert (paired["low"] <= paired["difference"]).all()
    assert (paired["difference"] <= paired["high"]).all()


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


def test_tables_and_figures(record: Record) -> None:
    assert list(cnn_reconstruction.table(record).columns)[3:8] == list(cnn_reconstruction.NAMES.values())
    assert cnn_reconstruction.table(record)["true label (GT)"].str.endswith(" / 28.27").any()
    assert len(cnn_reconstruction.detail_table(record)) == 30
    assert len(cnn_reconstruction.paired_table(record)) == 20
    assert list(cnn_reconstruction.second_order_table(record)["start"]) == ["random"]
    for draw in (
        cnn_reconstruction.figure_sources,
        cnn_reconstruction.figure_images,
        cnn_reconstruction.figure_curves,
        cnn_reconstruction.figure_losses,
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
        own = rows[(rows["labels"] == labels) & (rows["distance"] == "l2") & (rows["run"] == "GT")]
        shown = [text.get_text() for text in axis.texts]
        assert len(shown) == len(own) * len(cnn_reconstruction.MODES)
        assert shown[: len(own)] == [f"{psnr:.1f}" for psnr in own.sort_values("image")["psnr"]]
    plt.close(figure)


def test_intervals_hold_the_mean_and_say_where_the_papers_lies(record: Record) -> None:
    whole = cnn_reconstruction.whole_table(record)
    assert len(whole) == 2 * 5
    assert set(whole["label"]) == set(cnn_reconstruction.NAMES.values())
    assert set(whole["images × starts"]) == {"2 × 1"}
    for line in whole.to_dict("records"):
        low, high = map(float, line["95 % interval (dB)"].split(" … "))
        assert low <= float(line["mean PSNR (dB)"]) <= high
        stated = float(line["paper (dB)"])
        wanted = "below" if stated < low else "above" if stated > high else "within"
        assert line["paper's value"] == wanted
    assert len(cnn_reconstruction.all_table(record)) == 2 * 2 * 5


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
    rows = [matched_runs.MatchedImage.model_construct(run=run, image=n, psnr=psnr) for run, n, psnr in images]
    (found,) = matched_runs.paired(rows, [("a", "b")], 0)
    assert found.difference == pytest.approx((7 * 1 + (21 / 2 - 20)) / 8)
    assert found.low < found.difference < found.high == pytest.approx(1.0)


def test_a_start_may_be_of_fewer_images() -> None:
    starts = ["untrained/random", "trained/random/2"]
    chosen = cnn_reconstruction.Parameters(images=3, second_order=3, second_order_starts=starts)
    second = [one for one in chosen.experiments() if isinstance(one, cnn_reconstruction.SecondOrder)]
    assert [(one.stage, one.place) for one in second] == [
        *(("untrained", n) for n in range(3)),
        *(("trained", n) for n in range(2)),
    ]
