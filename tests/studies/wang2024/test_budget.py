"""The page on budgets: what is compared, and on which images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak import data
from gradleak.images.matching.budget import LINE, expected
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.show.tables import MISSING
from gradleak.studies.wang2024 import budget
from tests.recorded import record_of

STUDY = "budget"
CHOSEN = budget.Parameters.at("smallest")


def test_every_run_attacks_every_batch_and_breaching_only_its_own_clients(record: Record) -> None:
    rows = record.rows(budget.Matched)
    plain, pruned = select(rows, defense="none", labels="onehot", side=32), select(rows, defense="prune/0.9")
    assert plain["run"].value_counts()[budget.OURS] == 2
    assert budget.PUBLISHED not in set(pruned["run"])
    assert budget.BREACHING not in set(rows["run"])
    ours = select(plain, run=budget.OURS)
    assert ours["agreement"].notna().all()
    gain = select(plain, run=f"{budget.OURS} against {budget.PUBLISHED}")["difference"]
    means = plain.groupby("run")["psnr"].mean()
    assert float(gain.iloc[0]) == pytest.approx(means[budget.OURS] - means[budget.PUBLISHED])
    assert len(budget.table(record)) == len(budget.perceptual(record)) + 1 == 3
    (behind,) = budget.defended(record).to_dict("records")
    assert list(behind) == ["network", "batch size", "steps", "prune 90% of all"]
    assert budget.table(record)["network"].str.contains("8 pixels").sum() == 1
    assert set(budget.perceptual(record)[budget.OURS]) == {MISSING}, "the smallest run has no network for LPIPS"


def test_the_best_weight_is_chosen_for_a_whole_setting(record: Record) -> None:
    rows = record.rows(budget.Matched)
    best = select(rows, run=budget.HINDSIGHT, side=32)
    assert set(best["defense"]) == {"none"}
    assert set(best["labels"]) == {"onehot"}
    assert len(best) == 2
    assert best["variation"].nunique() == 1
    assert len(budget.hindsight(record)) == 2


def test_second_order_finishes_small_images_and_is_left_out_of_estimates(record: Record) -> None:
    rows = select(record.rows(budget.Matched), data="digits")
    psnr = rows.set_index("run")["psnr"]
    assert psnr[budget.OURS] > 100 > psnr[budget.FIRST_ORDER]
    assert select(rows, run=budget.OURS)["settled"].all()
    assert "digits" not in set(budget.estimated(record)["data"])
    (line,) = budget.second_order(record).to_dict("records")
    assert line["finished by second order"] == "100\u00a0%"


def test_both_measures_put_the_search_first_on_untrained_networks_and_hindsight_does_not_help_on_lenet() -> None:
    rows = select(record_of(STUDY).rows(budget.Matched), defense="none", labels="onehot")
    untrained = rows[rows["network"].isin(["lenet", "small-cnn"]) & rows["run"].isin(budget.RUNS)]
    for _, setting in untrained.dropna(subset="lpips").groupby(["network", "size", "steps"]):
        means = setting.groupby("run")[["psnr", "lpips"]].mean().drop(index=budget.HINDSIGHT, errors="ignore")
        assert means["psnr"].idxmax() == means["lpips"].idxmin() == budget.OURS
    assert (select(rows, network="lenet", run=f"{budget.OURS} against {budget.HINDSIGHT}")["lower"] > 0).all()


def test_mixed_labels_belong_to_mixed_images() -> None:
    mixed = budget.Matched(
        data="photos",
        network="lenet",
        side=32,
        size=2,
        steps=4,
        defense="none",
        labels="mixup",
        batches=2,
        seed=0,
        device="cpu",
    )
    test = data.load("photos", "test")
    images, labels = mixed._private(test)
    assert not torch.equal(images, test.images[:4])
    assert ((labels > 0).sum(dim=1) == 2).all()
    assert torch.allclose(labels.sum(dim=1), torch.ones(4))


def test_the_range_that_audits_state_holds_nine_of_ten_recorded_batches(record: Record) -> None:
    rows = budget.estimated(record_of(STUDY))
    assert np.polyfit(rows["loss"], rows["psnr"], 1) == pytest.approx([LINE[1], LINE[0]], abs=0.01)
    ranges = [expected(loss) for loss in rows["loss"]]
    within = [low <= psnr <= high for (low, high), psnr in zip(ranges, rows["psnr"], strict=True)]
    assert 0.89 < np.mean(within) < 0.91
    assert len(budget.calibration(record_of(STUDY))) == rows["network"].nunique()
    assert set(budget.calibration(record)["mean error (dB)"]) == {MISSING}, "one network has no others"


def test_breaching_was_run_on_settings_of_this_page() -> None:
    runs = [tuple(row[name] for name in budget.PLAIN) for row in budget.breaching()["rows"]]
    settings = [budget.Cell(**cell) for cell in budget.Parameters.at("paper")["cells"]]
    for cell in settings:
        if (cell.defense, cell.labels) == ("none", "onehot"):
            if data.shape(cell.data or "cifar10")[0] != 3:
                continue
            setting = (cell.network, cell.data or "cifar10", cell.side, cell.size, cell.steps)
            assert runs.count(setting) == cell.batches
