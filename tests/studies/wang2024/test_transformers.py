"""The page on vision transformers: images are restored with learned and with frozen positions, and noise hides them."""

from __future__ import annotations

import pytest
import torch

from gradleak import data, models, paths
from gradleak.models.ready import TRANSFORMERS
from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import transformers

STUDY = "transformers"
CHOSEN = {"cells": [{"dataset": "photos", "network": "vit"}], "samples": 2, "noises": [1e-6, 1e-2]}


def test_images_are_restored_and_noise_hides_them(record: Record) -> None:
    rows = record.frame()
    assert rows["wrong"].sum() == 0
    quiet = select(rows, std=0)
    assert set(quiet["status"]) == {"exact"}
    assert quiet.groupby(["dtype", "learned"])["psnr"].min().min() > 60
    assert select(rows, std=1e-2)["psnr"].max() < 30
    assert len(transformers.table(record)) == 4


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(ValueError, match="networks are vit, vit_b_16, cifar10-vit-8, cifar10-vit-16; got 'lenet'"):
        transformers.Cell(dataset="photos", network="lenet")


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_trained_transformer_is_read_from_a_file_by_its_own_names(name: str) -> None:
    folder = paths.weights_folder()
    if folder is None or not (folder / TRANSFORMERS[name][0]).is_file():
        with pytest.raises(FileNotFoundError, match=r"\.npz is not at hand"):
            models.pretrained(name)
        return
    photos = data.load("photos", "test")
    with torch.no_grad():
        logits = models.pretrained(name)(data.normalise(photos.images[:2]))
    assert logits.shape == (2, 10)
    assert bool(logits.isfinite().all())
