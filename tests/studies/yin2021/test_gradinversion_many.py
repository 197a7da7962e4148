"""The study of many images and many steps: features help in batches of every size, and images that are peeled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak import data, studies
from gradleak.data import Dataset
from gradleak.runs.records import Record
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.last_layers import MEAN, STD
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion_many as study
from tests.images.peeling.test_attack import joined

STUDY = "gradinversion-many"
CHOSEN = {"small_steps": 15, "steps": 8, "singles": 2}


def test_features_are_found_and_help(record: Record) -> None:
    images = rows_of(record, "image", "batches")
    assert images["known_feature"].all()
    assert (images["identified"] != images["identified_by_own"]).any(), "another network identifies images"
    means = images[images["kind"] == "random"].groupby("run")["psnr"].mean()
    for size in (2, 4):
        alone, features = (means[study.named("random", size, attack)] for attack in study.ATTACKS)
        assert features > max(alone, means["noise"] + 1)


def test_large_pictures_are_normalised_as_the_network_expects_them() -> None:
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(study.as_imagenet(data.normalise(images)) * STD + MEAN, images, rtol=1e-5, atol=1e-5)


def test_an_image_that_is_not_peeled_is_matched(record: Record) -> None:
    psnr = rows_of(record, "image", "one").pivot(index="image", columns="run", values="psnr").astype(float)
    assert np.isneginf(psnr[study.PEELED]).all(), "the small network's last map is not recovered"
    np.testing.assert_array_equal(psnr[study.EITHER], psnr[study.MATCHED])
    assert psnr[study.MATCHED].mean() > psnr["noise"].mean()


def test_a_network_whose_last_map_is_recovered_is_peeled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restored_batches, "made", lambda *_: joined(0))
    monkeypatch.setattr(restored_batches.data, "load", _few)
    parameters = studies.parameters(STUDY, "quick", {"singles": 1, "steps": 2, "front": 50, "device": "cpu", "seed": 1})
    (single,) = (one for one in parameters.experiments() if isinstance(one, study.SingleImages))
    rows = single.run()
    psnr = {row["run"]: row["psnr"] for row in rows if row["what"] == "image"}
    assert psnr[study.EITHER] == psnr[study.PEELED] > 60
    assert psnr[study.MATCHED] < 40
    (peeled,) = (row for row in rows if row["what"] == "peeled")
    assert (peeled["status"], peeled["layers"], peeled["opened"]) == ("unique", 4, True)
    assert all(row["honest"] for row in rows if row["what"] == "layer")


def _few(name: str, split: str) -> Dataset:
    images = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    return Dataset(name, split, images, torch.arange(12), [str(n) for n in range(20)], "made up")
