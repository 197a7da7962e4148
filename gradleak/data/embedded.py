"""Load datasets that are part of installed libraries, without files or network."""

from __future__ import annotations

import functools

import numpy as np
import torch
from PIL import Image

from gradleak.data.base import Dataset, Split

PHOTOGRAPHS = (
    "astronaut", "chelsea", "china", "coffee", "flower", "hubble deep field", "immunohistochemistry",
    "motorcycle", "retina", "rocket",
)  # fmt: skip
SIZES = (32, 64)
TRAIN_CROPS, TEST_CROPS = 250, 60  # for each photograph
# In units of the crop's side: the height to which photographs are resized, the distance between crops, and the side of
# the blocks that are divided between training and test.
HEIGHT, STRIDE, BLOCK = 14, 1 / 8, 3 / 2
PLAIN = 0.045  # standard deviation of the brightness below which a crop is uniform, such as sky


def digits(split: Split, size: int = 8) -> Dataset:
    """Return a split of scikit-learn's 1,797 handwritten digits, 8×8; every fifth of each class is a test image."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    rank = np.zeros(len(raw.target), dtype=int)
    for label in range(10):
        members = raw.target == label
        rank[members] = np.arange(members.sum())
    keep = (rank % 5 == 4) if split == "test" else (rank % 5 != 4)
    return Dataset(
        "digits",
        split,
        torch.tensor(raw.images[keep] / 16, dtype=torch.float32).unsqueeze(1),
        torch.tensor(raw.target[keep], dtype=torch.long),
        tuple(str(label) for label in range(10)),
        "embedded: 1,797 handwritten digits shipped with scikit-learn",
    )


def photos(split: Split, size: int = 32) -> Dataset:
    """Return square colour crops of ten photographs, whose class is the photograph.

    Each photograph is divided into blocks with 1.5 times the crop's side. One block in five is for test, and the rest
    are for training. Test blocks lie a knight's move apart, so both splits cover the whole photograph and share no
    pixel.
    """
    images, labels = _crops(split, size)
    return Dataset(
        "photos",
        split,
        images.clone(),
        labels.clone(),
        PHOTOGRAPHS,
        f"embedded: {size}×{size} crops of ten photographs shipped with scikit-image and scikit-learn",
    )


@functools.cache
def _crops(split: Split, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = TRAIN_CROPS if split == "train" else TEST_CROPS
    images, labels = [], []
    for label, name in enumerate(PHOTOGRAPHS):
        photograph = resized(name, size)
        corners = corners_of(photograph, split, size)
        # Crops that are evenly spaced in the list are spread over the whole photograph.
        chosen = corners[np.linspace(0, len(corners) - 1, count).round().astype(int)]
        images += [photograph[top : top + size, left : left + size] for top, left in chosen]
        labels += [label] * count
    stacked = np.stack(images).astype(np.float32) / 255
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def resized(name: str, size: int) -> np.ndarray:
    """Return a photograph (H, W, 3), uint8, resized to the height of `HEIGHT` crops of side `size`."""
    image = Image.fromarray(_photograph(name))
    height = HEIGHT * size
    return np.asarray(image.resize((round(image.width * height / image.height), height), Image.Resampling.LANCZOS))


def corners_of(photograph: np.ndarray, split: Split, size: int) -> np.ndarray:
    """Return the top left corners (K, 2) of all crops of a split that are not uniform."""
    block, stride = int(BLOCK * size), int(STRIDE * size)
    rows, columns = photograph.shape[0] // block, photograph.shape[1] // block
    inner = np.arange(0, block - size + 1, stride)
    blocks = [
        (row * block, column * block)
        for row in range(rows)
        for column in range(columns)
        if ((row + 2 * column) % 5 == 0) == (split == "test")
    ]
    corners = np.array([(top + down, left + right) for top, left in blocks for down in inner for right in inner])
    grey = photograph.mean(axis=2) / 255
    contrast = np.array([grey[top : top + size, left : left + size].std() for top, left in corners])
    return corners[contrast >= PLAIN]


def _photograph(name: str) -> np.ndarray:
    from skimage import data
    from sklearn.datasets import load_sample_image

    if name in ("china", "flower"):
        return np.asarray(load_sample_image(f"{name}.jpg"))
    if name == "motorcycle":
        return np.asarray(data.stereo_motorcycle()[0])
    return np.asarray(getattr(data, name.replace(" ", "_"))())
