"""Draw the book's first picture: private images, the gradients that were shared, and the recovered images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import augment, data, metrics, studies
from gradleak.leak import observe
from gradleak.runs import records
from gradleak.show import figures
from gradleak.studies.shared import mosaics

# The studies whose records are shown: a whole batch, and images from a convolutional network.
SHOWN = ("batches", "cnn-inversion")
# The number of images in a lower panel.
IMAGES = 5


def expose(samples: int = IMAGES, seed: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Recover photographs from gradients of a fully connected network with biases in closed form (aono2017).

    Args:
        samples: The number of photographs, each of another class.
        seed: The seed of the classes and the network.

    Returns:
        The private photographs, the rows of the first layer's gradients from which they are recovered, and the
        recovered photographs; each (N, 3, 64, 64).
    """
    photos = data.load("photos", "test", size=64)
    classes = torch.randperm(photos.classes, generator=torch.Generator().manual_seed(seed))[:samples]
    # For each class, take the crop with the highest contrast, which is the easiest to recognise.
    contrast = photos.images.flatten(1).std(dim=1)
    chosen = [int(contrast.where(photos.labels == label, contrast.new_zeros(())).argmax()) for label in classes]
    private, labels = photos.images[chosen], augment.one_hot(photos.labels[chosen], photos.classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 64), nn.ReLU(), nn.Linear(64, photos.classes))
    rows, recovered = [], []
    for image, label in zip(private.split(1), labels.split(1), strict=True):
        leak = observe(model, image, label)
        weight, bias = leak.gradients["1.weight"], leak.gradients["1.bias"]
        row = bias.abs().argmax()
        rows.append(weight[row])
        recovered.append(weight[row] / bias[row])
    return private, torch.stack(rows).view_as(private), torch.stack(recovered).view_as(private)


def draw() -> Figure:
    """Draw the picture, or an empty one if a record is missing."""
    batch, convolutional = (records.recorded(study) if study in studies.names() else None for study in SHOWN)
    if batch is None or convolutional is None:
        return figures.nothing("the records of the pictures are missing")
    figures.style()
    figure = plt.figure(figsize=(12, 5.4), layout="constrained")
    grid: Any = figure
    above, lower = grid.subfigures(2, 1, height_ratios=[1, 2.05])
    left, right = lower.subfigures(1, 2)
    row = batch.frame().dropna(subset="picture").iloc[0]
    private, _, closed = np.split(mosaics.unpacked(row["picture"]), 3)
    title = f"No biases: all {row['size']:.0f} images, from one averaged gradient"
    _draw(above, title, ("private", "recovered"), np.concatenate([private, closed]), int(row["size"]))

    photos, rows, recovered = expose()
    # A gradient has values of both signs, so scale it to [0, 1] with zero as grey.
    grey = rows / rows.abs().amax(dim=(1, 2, 3), keepdim=True) * 0.5 + 0.5
    pixels = mosaics.mosaic(torch.cat([photos, grey, recovered]), len(photos)).permute(1, 2, 0).numpy()
    notes = [f"{psnr:.0f} dB".replace("inf", "∞") for psnr in metrics.psnr(recovered.clamp(0, 1), photos).tolist()]
    _draw(left, "With biases: one division", ("private", "shared\ngradient", "recovered"), pixels, len(photos), notes)

    frame = convolutional.frame()
    trained = frame[frame["stage"] == "trained"]
    strips = trained.loc[trained["attack"] == "picture", "picture"][:IMAGES]
    # A strip holds an image and its recoveries side by side; here they are below one another.
    columns = [np.concatenate(np.split(mosaics.unpacked(strip), 4, axis=1)[:3]) for strip in strips]
    of_strips = trained[(trained["part"] == "polish") & (trained["attack"] == "closed form")]
    notes = [f"{psnr:.0f} dB" for psnr in of_strips["psnr"][: len(columns)]]
    names, title = ("private", "matched", "closed form"), "A trained convolutional network"
    _draw(right, title, names, np.concatenate(columns, axis=1), len(columns), notes)
    return figure


def _draw(
    part: Any, title: str, names: Sequence[str], pixels: np.ndarray, columns: int, notes: Sequence[str] = ()
) -> None:
    """Draw pictures that lie in rows and columns of one image, with a name beside each row and a note below columns."""
    part.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    axis = part.subplots()
    axis.imshow(pixels, interpolation="nearest")
    high, wide = pixels.shape[0] / len(names), pixels.shape[1] / columns
    axis.set_yticks([(row + 0.5) * high for row in range(len(names))], names, fontsize=11)
    axis.set_xticks([(column + 0.5) * wide for column in range(len(notes))], notes, fontsize=10)
    axis.tick_params(length=0)
    axis.set_frame_on(False)
    axis.grid(visible=False)
    for row in range(1, len(names)):
        axis.axhline(row * high - 0.5, color="white", linewidth=4)
    for column in range(1, columns):
        axis.axvline(column * wide - 0.5, color="white", linewidth=4)
