"""Datasets by name: the embedded ones as promised, files in both layouts, clear errors for the rest."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from gradleak import data
from gradleak.data import embedded, files
from gradleak.errors import InputError, MissingData, StorageError


@pytest.mark.parametrize("name", embedded.PHOTOGRAPHS)
def test_train_and_test_crops_share_no_pixel(name: str) -> None:
    photograph = embedded.resized(name, 32)
    covered = np.zeros((2, *photograph.shape[:2]), dtype=bool)
    for mask, split in zip(covered, ("train", "test"), strict=True):
        for top, left in embedded.corners_of(photograph, split, 32):  # type: ignore[arg-type]
            mask[top : top + 32, left : left + 32] = True
        assert mask.any()
    assert not covered.all(axis=0).any()


def test_normalisation_is_undone() -> None:
    images = data.load("photos", "test").images[:50]
    torch.testing.assert_close(data.denormalise(data.normalise(images)), images)
    grey = torch.rand(2, 1, 4, 4)
    torch.testing.assert_close(data.denormalise(data.normalise(grey)), grey)


def jpeg(value: int, side: int = 6) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (side, side), (value, 0, 255 - value)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def packed(path: Path, splits: list[int], **changes: object) -> None:
    pictures = [jpeg(40 * n) for n in range(len(splits))]
    content = {
        "jpeg": np.frombuffer(b"".join(pictures), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, pictures)]),
        "labels": np.arange(len(splits)) % 2,
        "split": np.array(splits),
        "class_names": np.array(["a", "b"]),
    }
    np.savez(path, **(content | changes))


def raw(path: Path, **changes: object) -> None:
    content = {
        "train_images": np.arange(4 * 28 * 28, dtype=np.int64).reshape(4, 28, 28).astype(np.uint8),
        "train_labels": np.array([0, 1, 0, 1]),
        "test_images": np.zeros((2, 28, 28), dtype=np.uint8),
        "test_labels": np.array([1, 0]),
        "class_names": np.array(["a", "b"]),
    }
    np.savez(path, **(content | changes))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADLEAK_DATA", str(tmp_path))
    return tmp_path


def test_raw_files(folder: Path) -> None:
    raw(folder / "mnist.npz")
    train = data.load("mnist", "train")
    assert train.labels.tolist() == [0, 1, 0, 1]
    assert train.source == "file mnist.npz in $GRADLEAK_DATA"
    torch.testing.assert_close(train.images[0, 0, 0, :4] * 255, torch.arange(4.0))
    assert data.load("mnist", "test", size=14).images.shape == (2, 1, 14, 14)


def test_packed_files(folder: Path) -> None:
    packed(folder / "cifar10_jpeg.npz", [0, 0, 1])
    train, test = data.load("cifar10-jpeg", "train"), data.load("cifar10-jpeg", "test", size=6)
    assert train.images.shape == (2, 3, 32, 32)
    assert test.images.shape == (1, 3, 6, 6)
    assert float(test.images[0, 0].mean()) == pytest.approx(80 / 255, abs=0.02)
    packed(folder / "flowers17.npz", [0, 0, 0])
    assert len(data.load("flowers17", "test", size=8)) == len(data.load("flowers17", "train", size=8)) == 3


def grouped(path: Path, groups: list[str]) -> None:
    images = np.stack([np.full((32, 32, 3), 10 * n, dtype=np.uint8) for n in range(3)])
    np.savez(path, images=images, labels=np.arange(3), group=np.array(groups), class_names=np.array(["a", "b", "c"]))


def test_grouped_files(folder: Path) -> None:
    grouped(folder / "cifar100_subset.npz", ["eval", "test", "train"])
    train, test = data.load("cifar100", "train"), data.load("cifar100", "test")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 2], [1])
    assert float(test.images.mean()) == pytest.approx(10 / 255)
    assert data.load("cifar100", "test", size=8).images.shape == (1, 3, 8, 8)


def test_states_need_no_image(folder: Path) -> None:
    raw(folder / "mnist.npz")
    packed(folder / "flowers17.npz", [0] * 5)
    (folder / "cifar10.npz").write_bytes(b"PK")
    states = {state.name: state for state in data.states()}
    assert set(states) == set(data.names())
    assert (states["mnist"].state, states["mnist"].images, states["mnist"].classes) == ("file", 6, 2)
    assert (states["flowers17"].images, states["flowers17"].shape) == (5, "224×224×3")
    assert states["cifar10"].state == "damaged"
    others = [states[name].state for name in ("cifar100", "imagenet-sample", "photos")]
    assert others == ["download", "missing", "embedded"]
    assert data.source("mnist").startswith("mnist: $GRADLEAK_DATA/mnist.npz")


def half(folder: Path) -> None:
    raw(folder / "mnist.npz")
    (folder / "mnist.npz").write_bytes((folder / "mnist.npz").read_bytes()[:2000])


DAMAGED: list[tuple[type[Exception], str, Callable[[Path], object]]] = [
    (StorageError, r"mnist.npz in \$GRADLEAK_DATA is damaged", half),
    (InputError, r"mnist.npz lacks train_labels, test_images, test_labels, class_names",
     lambda folder: np.savez(folder / "mnist.npz", train_images=np.zeros(1))),
    (InputError, "offsets must be one longer",
     lambda folder: packed(folder / "flowers17.npz", [0, 0], offsets=np.array([0, 5]))),
    (InputError, "group must have the same length", lambda folder: grouped(folder / "cifar100_subset.npz", ["test"])),
    (MissingData, r"mnist.npz holds no train images",
     lambda folder: raw(folder / "mnist.npz", train_images=np.zeros((0, 28, 28), np.uint8), train_labels=np.zeros(0))),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "damage"), DAMAGED)
def test_damaged_files_are_said_in_one_clear_line(
    folder: Path, error: type[Exception], message: str, damage: Callable[[Path], object]
) -> None:
    damage(folder)
    (name,) = (name for name in ("mnist", "flowers17", "cifar100") if files.location(name))
    with pytest.raises(error, match=message) as caught:
        data.load(name)
    assert str(folder) not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [("cifar10", "CIFAR10", (5, 32, 32, 3)), ("mnist", "MNIST", (5, 28, 28)), ("svhn", "SVHN", (5, 3, 32, 32))],
)
def test_torchvision_is_asked_when_there_is_no_file(
    name: str, kind: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(folder: str, *, download: bool, split: str = "", train: bool = True) -> SimpleNamespace:
        assert download
        assert split == "test" or not train
        return SimpleNamespace(data=np.full(shape, 51, dtype=np.uint8), targets=[*range(5)], labels=[*range(5)])

    monkeypatch.delenv("GRADLEAK_DATA", raising=False)
    monkeypatch.setattr(torchvision.datasets, kind, fetched)
    dataset = data.load(name, "test")
    assert dataset.images.shape == (5, 1 if name == "mnist" else 3, shape[2], shape[2])
    assert float(dataset.images.mean()) == pytest.approx(0.2)
    with pytest.raises(InputError, match="come at"):
        data.load(name, "test", size=7)


@pytest.mark.skipif(
    "GRADLEAK_DATA" not in os.environ, reason="the papers' data are in $GRADLEAK_DATA, which is not set"
)
def test_the_papers_data_are_as_their_papers_say() -> None:
    states = {state.name: state for state in data.states()}
    assert states["cifar10-jpeg"].images == 60_000
    assert states["flowers17"].classes == 17
    cifar = data.load("cifar10", "test")
    assert cifar.images.shape == (1017, 3, 32, 32)
    assert cifar.classes == 10
    hundred = data.load("cifar100", "test")
    assert torch.bincount(hundred.labels).tolist() == [5] * hundred.classes == [5] * 100
    # The first ten labels of the original test set.
    assert cifar.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
