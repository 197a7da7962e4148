"""The baselines' study: its rows and controls, what is told apart, and what it draws."""

from __future__ import annotations

import pytest

from gradleak import studies
from gradleak.errors import InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.studies.shared.restored_batches import LATENT, OF_ANOTHER
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion_baselines as study

STUDY = "gradinversion-baselines"
CHOSEN = {"steps": 24}


def test_every_row_has_every_image(record: Record) -> None:
    images = rows_of(record, "image", "rows")
    names = {"unrelated", *(run for pair in study.PAIRS for run in pair)}
    assert set(images["run"]) == names
    assert images.groupby("run")["image"].apply(sorted).tolist() == [[0, 1, 2, 3]] * len(names)


def test_attacks_see_something_and_a_control_is_another_batch(record: Record) -> None:
    """More than noise does, more than no gradient gives; and what another batch gave is the attack's own, moved."""
    images = rows_of(record, "image", "rows")
    means = images.groupby("run")["psnr"].mean()
    for name in (study.EXACT, study.DENOISED, study.COARSE):
        assert means[name] > means["noise"] + 1
        assert means[name] > means[study.DEEP] + 1
    strips = {row["run"]: row["picture"] for row in rows_of(record, "picture", "rows").to_dict("records")}
    assert strips[LATENT] != strips[LATENT + OF_ANOTHER]
    assert len({*strips.values()}) == len(strips)


def test_gains_are_differences_image_by_image(record: Record) -> None:
    images = rows_of(record, "image", "rows")
    psnr = {run: group.sort_values("image")["psnr"].to_numpy() for run, group in images.groupby("run")}
    gains = {(row["run"], row["measure"]): row for row in record.trials[0].rows if row["what"] == "gain"}
    for first, second in study.PAIRS:
        row = gains[f"{first} against {second}", "psnr"]
        assert row["gain"] == pytest.approx((psnr[first] - psnr[second]).mean())
        assert row["low"] <= row["gain"] <= row["high"]
        assert row["count"] == 4
        assert row["batches"] == 2


def test_table(record: Record) -> None:
    table = study.table(record)
    assert len(table) == 3 + 1 + 8 + 3
    assert table["paper: FFT2D / PSNR / LPIPS"].ne("–").sum() == 7
    assert records.about(record) == "2 batches of 2, 24 steps, photos, small-cnn"


def test_more_batches_are_more_trials_of_as_many() -> None:
    parameters = studies.parameters(STUDY, "quick", {"batches": 6, "together": 2})
    assert [one.first for one in parameters.experiments()] == [0, 2, 4]
    assert {one.batches for one in parameters.experiments()} == {2}


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InputError, match=r"got 2 and 5: take together from .5., or batches a multiple of 2"):
        studies.parameters(STUDY, "quick", {"batches": 5})
