"""Load datasets from numpy archives, in three layouts, in the folder that $GRADLEAK_DATA names."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gradleak import paths
from gradleak.data.base import KNOWN, Dataset, DatasetState, Split
from gradleak.errors import InputError, MissingData, StorageError

RAW = ("train_images", "train_labels", "test_images", "test_labels", "class_names")
PACKED = ("jpeg", "offsets", "labels", "split", "class_names")
# All images in one array; those of the group "test" are the test split, all others the training split.
GROUPED = ("images", "labels", "group", "class_names")

FILES = {name: known for name, known in KNOWN.items() if known.file}


def location(name: str) -> Path | None:
    """Return the path of a dataset's file, or None if there is no such file."""
    folder = paths.data_folder()
    if folder is None or name not in FILES:
        return None
    path = folder / FILES[name].file
    return path if path.is_file() else None


def load(name: str, split: Split, size: int | None = None) -> Dataset:
    """Return a split of a dataset from its file, with images resized to `size` × `size` if a size is given."""
    path, known = location(name), FILES[name]
    if path is None:
        raise MissingData(f"{known.file} is not in $GRADLEAK_DATA")
    archive = _read(path)
    names = tuple(str(value) for value in archive["class_names"])
    if "jpeg" in archive:
        images, labels = _packed(path, archive, split, size or known.size)
    else:
        if "group" in archive:
            if not len(archive["group"]) == len(archive["images"]) == len(archive["labels"]):
                raise InputError(f"{path.name}: images, labels and group must have the same length")
            keep = (archive["group"] == "test") == (split == "test")
            images, labels = archive["images"][keep], archive["labels"][keep]
        else:
            images, labels = archive[f"{split}_images"], archive[f"{split}_labels"]
        if images.ndim not in (3, 4) or images.dtype != np.uint8 or len(images) != len(labels):
            raise InputError(
                f"{path.name}: the {split} images must be uint8 (N, H, W[, 3]), one for each label; got {images.shape}"
            )
        images = images[..., None] if images.ndim == 3 else images
        if size not in (None, images.shape[1]):
            images = np.stack([_resize(Image.fromarray(image.squeeze()), size) for image in images])
            images = images[..., None] if images.ndim == 3 else images
    if len(labels) == 0:
        raise MissingData(f"{path.name} holds no {split} images")
    return Dataset(
        name,
        split,
        torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div(255).contiguous(),
        torch.from_numpy(np.asarray(labels).astype(np.int64)),
        names,
        f"file {path.name} in $GRADLEAK_DATA",
        known.notes,
    )


def state(name: str) -> DatasetState | None:
    """Return the state of a dataset's file without its images, or None if there is no file."""
    path = location(name)
    if path is None:
        return None
    known, source = FILES[name], f"$GRADLEAK_DATA/{path.name}"
    try:
        # numpy reads an array of an archive only when it is looked up, so no image is read.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            count = sum(len(stored[key]) for key in ("train_labels", "test_labels", "labels") if key in stored)
            classes = len(stored["class_names"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return DatasetState(name, "damaged", source, None, None, "", "cannot be read; copy it again")
    shape = f"{known.size}×{known.size}" + ("" if known.channels == 1 else "×3")
    return DatasetState(name, "file", source, count, classes, shape, known.notes)


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        # Open the file here, so that it is closed even if numpy finds it damaged.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            archive = {key: stored[key] for key in stored.files}
    except PermissionError as error:
        raise StorageError(f"{path.name} in $GRADLEAK_DATA cannot be read: permission denied") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.error) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StorageError(f"{path.name} in $GRADLEAK_DATA is damaged ({reason}): copy it again") from error
    needed = PACKED if "jpeg" in archive else GROUPED if "group" in archive else RAW
    missing = [key for key in needed if key not in archive]
    if missing:
        raise InputError(f"{path.name} lacks {', '.join(missing)}; it must hold {', '.join(needed)}")
    return archive


def _packed(
    path: Path, archive: dict[str, np.ndarray[Any, Any]], split: Split, size: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    splits = archive["split"]
    # The only split of a file is used for both training and test; the remarks on the dataset say so.
    keep = np.arange(len(splits)) if len(np.unique(splits)) == 1 else np.flatnonzero(splits == (split == "test"))
    jpeg, offsets = archive["jpeg"], archive["offsets"]
    if len(offsets) != len(splits) + 1 or len(archive["labels"]) != len(splits):
        raise InputError(f"{path.name}: offsets must be one longer than labels and split")
    try:
        images = [
            _resize(Image.open(io.BytesIO(jpeg[offsets[index] : offsets[index + 1]].tobytes())).convert("RGB"), size)
            for index in keep
        ]
    except OSError as error:
        raise StorageError(f"{path.name} in $GRADLEAK_DATA holds an image that cannot be decoded") from error
    return np.stack(images), archive["labels"][keep]


def _resize(image: Image.Image, size: int) -> np.ndarray[Any, Any]:
    # Resize with PIL's default filter, as the papers' code does.
    return np.asarray(image if image.size == (size, size) else image.resize((size, size)))
