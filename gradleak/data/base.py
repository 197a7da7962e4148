"""What a dataset is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradleak.errors import InputError

Split = Literal["train", "test"]

# CIFAR-10's statistics to the reference code's last digit; wang2024 uses them for every data set.
NORMALISATION = (
    (0.4914672374725342, 0.4822617471218109, 0.4467701315879822),
    (0.24703224003314972, 0.24348513782024384, 0.26158785820007324),
)


@dataclass(frozen=True)
class Dataset:
    """Images (N, C, H, W) float32 in [0, 1], labels (N,), and one line that says where they came from."""

    name: str
    split: str
    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    source: str
    notes: str = ""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)


@dataclass(frozen=True)
class DatasetState:
    """Whether a dataset is at hand, for `gradleak data`."""

    name: str
    state: Literal["embedded", "file", "download", "damaged", "missing"]
    source: str
    images: int | None
    classes: int | None
    shape: str
    notes: str


def _statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    if images.ndim != 4:
        raise InputError(f"images must be (N, C, H, W); got {tuple(images.shape)}")
    mean, std = (torch.tensor(values).to(images).reshape(1, 3, 1, 1) for values in NORMALISATION)
    # A grey image takes the mean of the three channels' statistics.
    return (mean, std) if images.shape[1] == 3 else (mean.mean(), std.mean())


def normalise(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) from [0, 1], shifted and scaled as wang2024 does."""
    mean, std = _statistics(images)
    return (images - mean) / std


def denormalise(images: Tensor) -> Tensor:
    """Undo `normalise`; the result is not clipped."""
    mean, std = _statistics(images)
    return images * std + mean
