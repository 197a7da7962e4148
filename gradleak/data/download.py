"""Load datasets that torchvision downloads, which needs a network the first time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gradleak import paths
from gradleak.data.base import KNOWN, Dataset, Split
from gradleak.errors import MissingData


def load(name: str, split: Split) -> Dataset:
    """Return a dataset at its original image size from torchvision's cache, or download it."""
    from torchvision import datasets

    part: dict[str, Any] = {"split": split} if name == "svhn" else {"train": split == "train"}
    try:
        raw = getattr(datasets, KNOWN[name].torchvision)(str(paths.cache() / "torchvision"), download=True, **part)
    except Exception as error:  # torchvision raises errors of its own, of urllib and of the system
        raise MissingData(
            f"dataset '{name}' is not at hand and could not be downloaded: put {KNOWN[name].file} into a folder and "
            f"set $GRADLEAK_DATA to it, or run once with a network, so that torchvision can fetch it"
        ) from error
    images = np.asarray(raw.data)
    if images.ndim == 3:
        images = images[..., None]
    if name == "svhn":
        images = images.transpose(0, 2, 3, 1)
    labels = np.asarray(raw.labels if name == "svhn" else raw.targets)
    names = getattr(raw, "classes", None) or [str(label) for label in range(10)]
    return Dataset(
        name,
        split,
        torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div(255).contiguous(),
        torch.from_numpy(labels.astype(np.int64)),
        tuple(names),
        "torchvision's copy of the original",
    )
