"""The study of single images and batches at length: what is peeled, what is matched, and what is drawn of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak import studies
from gradleak.runs.records import Record
from gradleak.studies.shared import restored_batches
from gradleak.studies.shared.restored_batches import FLOORS
from gradleak.studies.shared.shown_batches import rows_of
from gradleak.studies.yin2021 import gradinversion_long as study
from tests.images.peeling.test_attack import joined

STUDY = "gradinversion-long"
CHOSEN = {"steps": 8, "singles": 2}


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


def _few(name: str, split: str) -> object:
    from gradleak.data import Dataset

    generator = torch.Generator().manual_seed(3)
    images = torch.rand(12, 3, 8, 8, generator=generator)
    return Dataset(name, split, images, torch.arange(12), [str(n) for n in range(20)], "made up")


def test_tables(record: Record) -> None:
    table = study.table(record)
    assert table["images"].tolist() == ["single images"] * 6 + ["batches of 2"] * 4
    assert study.peeled_table(record)["images"].tolist() == ["3"]
    assert study.peeled_table(record)["last map recovered"].tolist() == ["0"]
    assert study.layer_table(record).empty


def test_trials_are_of_a_few_images_each() -> None:
    parameters = studies.parameters(STUDY, "quick", {"singles": 5, "together": 2, "batches": 0, "also": []})
    assert [(one.first, one.batches) for one in parameters.experiments()] == [(0, 2), (2, 2), (4, 1)]
