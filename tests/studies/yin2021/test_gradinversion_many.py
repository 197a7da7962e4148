"""The study of many classes: the same images at every size, with and without their features, and what it draws."""

from __future__ import annotations

import pytest
import torch

from gradleak import data, studies
from gradleak.errors import InputError
from gradleak.models import build
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.studies.shared.last_layers import MEAN, STD
from gradleak.studies.shared.restored_batches import FLOORS, KINDS
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion_many as study

STUDY = "gradinversion-many"
CHOSEN = {"steps": 40}


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


def test_tables(record: Record) -> None:
    table = study.table(record)
    assert len(table) == 2 * (3 + 4)
    assert table["features found"].tolist() == (["–"] * 3 + ["100%"] * 4) * 2
    assert records.about(record) == "4 random and as many vulnerable images in batches of 2, 4, 40 steps, photos"


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InputError, match="every batch size must divide the 3 images"):
        studies.parameters(STUDY, "quick", {"sizes": [2, 3]})
    with pytest.raises(InputError, match="every batch size must divide the 4 images"):
        studies.parameters(STUDY, "quick", {"picture_sizes": [3]})
    chosen = studies.parameters(STUDY, "quick", {"picture_sizes": [1, 4]})
    assert [one.part for one in chosen.experiments()] == ["batches", "pictures"]
    assert studies.load(STUDY).datasets(chosen) == ["photos", study.PICTURES, study.SHRUNK]
    assert chosen.about().endswith("; 4 ImageNet pictures of 96 pixels, 6 steps")
