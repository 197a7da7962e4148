"""Define what a dataset is, and how images are normalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradleak.errors import InputError

Split = Literal["train", "test"]

# CIFAR-10's channel means and standard deviations with all digits of wang2024's code, which uses them for all datasets.
NORMALISATION = (
    (0.4914672374725342, 0.4822617471218109, 0.4467701315879822),
    (0.24703224003314972, 0.24348513782024384, 0.26158785820007324),
)


@dataclass(frozen=True)
class Dataset:
    """The images and labels of one split of a dataset.

    Attributes:
        name: The dataset's name.
        split: "train" or "test".
        images: The images (N, C, H, W), float32 in [0, 1].
        labels: The class indices (N,).
        class_names: The names of the classes.
        source: Where the images come from, in one line.
        notes: Remarks on the images.
    """

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
class Known:
    """The facts about a dataset that are known before it is loaded.

    Attributes:
        title: Its usual name.
        size: The default side of its images in pixels.
        classes: The number of its classes, 0 if it depends on the file.
        file: The name of its file in $GRADLEAK_DATA, "" if it comes in none.
        torchvision: The name of torchvision's class that downloads it, "" if there is none.
        channels: The number of the images' channels.
        notes: Remarks on the file.
    """

    title: str
    size: int
    classes: int = 0
    file: str = ""
    torchvision: str = ""
    channels: int = 3
    notes: str = ""


KNOWN = {
    "digits": Known("digits", 8, 10, channels=1),
    "photos": Known("photos", 32, 10),
    "cifar10": Known(
        "CIFAR-10", 32, 10, "cifar10.npz", "CIFAR10",
        notes="lossless; part of the training set and the first of the test set",
    ),
    "cifar10-jpeg": Known(
        "CIFAR-10", 32, 10, "cifar10_jpeg.npz", notes="all images, JPEG quality 75: for training, not for measuring"
    ),
    "flowers17": Known(
        "Flowers-17", 224, file="flowers17.npz", notes="one split only, served as training and as test"
    ),
    "imagenet-sample": Known("ImageNet", 224, file="imagenet_sample.npz", notes="one image a class, one split only"),
    "tinyimagenet32": Known("Tiny ImageNet", 32, file="tinyimagenet32.npz", notes="200 classes; JPEG quality 75"),
    "mnist": Known("MNIST", 28, 10, "mnist.npz", "MNIST", channels=1, notes="lossless"),
    "cifar100": Known(
        "CIFAR-100", 32, 100, "cifar100_subset.npz", "CIFAR100",
        notes="lossless; 500 test images, five a class, and a part of the others; torchvision downloads all",
    ),
    "svhn": Known("SVHN", 32, 10, "svhn.npz", "SVHN"),
    "celeba": Known("CelebA", 197, 5, "celeba.npz", notes="five colours of hair"),
    "imagenet": Known("ImageNet", 224, file="imagenet.npz", notes="the validation images"),
}  # fmt: skip


@dataclass(frozen=True)
class DatasetState:
    """Whether a dataset is available, with its properties, for `gradleak data`."""

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
    # Grey images use the mean of the three channels' statistics.
    return (mean, std) if images.shape[1] == 3 else (mean.mean(), std.mean())


def normalise(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) in [0, 1] normalised by `NORMALISATION`, as in wang2024."""
    mean, std = _statistics(images)
    return (images - mean) / std


def denormalise(images: Tensor) -> Tensor:
    """Undo `normalise` for images (N, C, H, W), without clipping to [0, 1]."""
    mean, std = _statistics(images)
    return images * std + mean
