"""The study of many images and many steps: what batches of every size reveal, what is peeled, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak import data, studies
from gradleak.data import Dataset
from gradleak.errors import InputError
from gradleak.models import build
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.last_layers import MEAN, STD
from gradleak.studies.shared.restored_batches import FLOORS, KINDS
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion_many as study
from tests.images.peeling.test_attack import joined

STUDY = "gradinversion-many"
CHOSEN = {"small_steps": 40, "steps": 8, "singles": 2}


def test_every_size_has_the_same_images_and_floors_are_told_once(record: Record) -> None:
    images = rows_of(record, "image", "batches")
    for kind in KINDS:
        part = images[images["kind"] == kind]
        runs = {study.named(kind, size, attack) for size in (2, 4) for attack in study.ATTACKS}
        assert set(part["run"]) == {*FLOORS, *runs}
        assert part.groupby("run")["image"].apply(sorted).tolist() == [[0, 1, 2, 3]] * 7


def test_features_are_found_and_help(record: Record) -> None:
    images = rows_of(record, "image", "batches")
    assert images["known_feature"].all()
    means = images[images["kind"] == "random"].groupby("run")["psnr"].mean()
    for size in (2, 4):
        alone, features = (means[study.named("random", size, attack)] for attack in study.ATTACKS)
        assert features > max(alone, means["noise"] + 1)


def test_who_tells_images_apart_is_not_the_attacked_network(record: Record) -> None:
    images = rows_of(record, "image", "batches")
    assert (images["identified"] != images["identified_by_own"]).any()


def test_large_pictures_are_shown_as_each_network_wants_them() -> None:
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    small = build("small-cnn", classes=10, seed=1).eval()
    inputs = data.normalise(images)
    halved = data.normalise(torch.nn.functional.avg_pool2d(images, 2))
    with torch.no_grad():
        torch.testing.assert_close(study.Adapted(study.reduced, small)(inputs), small(halved), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(study.as_imagenet(inputs) * STD + MEAN, images, rtol=1e-5, atol=1e-5)


def test_what_is_not_peeled_is_matched(record: Record) -> None:
    images = rows_of(record, "image", "one")
    assert set(images["run"]) == {*FLOORS, study.MATCHED, study.PEELED, study.EITHER}
    by = {run: group.sort_values("image")["psnr"].astype(float).to_numpy() for run, group in images.groupby("run")}
    assert np.isneginf(by[study.PEELED]).all(), "the small network's last map does not open"
    np.testing.assert_array_equal(by[study.EITHER], by[study.MATCHED])
    assert by[study.MATCHED].mean() > by["noise"].mean()
    frame = record.frame()
    assert frame[frame["what"] == "peeled"]["reason"].str.contains("its patches overlap too little").all()


def test_a_network_that_opens_is_peeled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = joined(0)
    head = model[-1]
    assert isinstance(head, torch.nn.Linear)
    monkeypatch.setattr(restored_batches, "made", lambda *_: model)
    monkeypatch.setattr(restored_batches.data, "load", _few)
    images = study.SingleImages(
        network="small-cnn",
        judge="small-cnn",
        dataset="photos",
        first=0,
        batches=1,
        steps=2,
        front=50,
        seed=1,
        device="cpu",
    )
    rows = images.run()
    by = {row["run"]: row["psnr"] for row in rows if row["what"] == "image"}
    assert by[study.PEELED] > 60
    assert by[study.EITHER] == by[study.PEELED]
    assert by[study.MATCHED] < 40
    (peeled,) = (row for row in rows if row["what"] == "peeled")
    assert (peeled["status"], peeled["layers"], peeled["opened"]) == ("unique", 4, True)
    assert all(row["honest"] for row in rows if row["what"] == "layer")


def _few(name: str, split: str) -> Dataset:
    images = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    return Dataset(name, split, images, torch.arange(12), [str(n) for n in range(20)], "made up")


def test_tables(record: Record) -> None:
    table = study.table(record)
    assert table["images"].tolist() == ["photos"] * 14 + ["single images"] * 6 + ["batches of 2"] * 4
    assert table["features found"].tolist() == (["–"] * 3 + ["100%"] * 4) * 2 + ["–"] * 3 + ["100%"] * 3 + ["–"] * 3 + [
        "100%"
    ]
    assert study.peeled_table(record)["images"].tolist() == ["3"]
    assert study.peeled_table(record)["last map recovered"].tolist() == ["0"]
    assert study.layer_table(record).empty
    assert records.about(record) == (
        "4 random and as many vulnerable images in batches of 2, 4, 40 steps, photos; "
        "2 images alone and 1 batches of 2, 8 steps, photos, small-cnn"
    )


def test_trials_are_of_a_few_images_each() -> None:
    parameters = studies.parameters(STUDY, "quick", {"singles": 5, "together": 2, "batches": 0, "also": []})
    trials = [one for one in parameters.experiments() if isinstance(one, study.SingleImages)]
    assert [(one.first, one.batches) for one in trials] == [(0, 2), (2, 2), (4, 1)]


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InputError, match="every batch size must divide the 3 images"):
        studies.parameters(STUDY, "quick", {"small_sizes": [2, 3]})
    with pytest.raises(InputError, match="every batch size must divide the 4 images"):
        studies.parameters(STUDY, "quick", {"picture_sizes": [3]})
    chosen = studies.parameters(STUDY, "quick", {"picture_sizes": [1, 4], "also": []})
    assert [one.part for one in chosen.experiments()] == ["batches", "pictures", "one", "many"]
    assert studies.load(STUDY).datasets(chosen) == ["photos", study.PICTURES, study.SHRUNK]
    assert "; 4 ImageNet pictures of 96 pixels, 6 steps; " in chosen.about()
