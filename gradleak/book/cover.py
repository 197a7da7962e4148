"""Draw the book's first picture: private images, the gradients that were shared, and the recovered images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradleak import augment, data, studies
from gradleak.leak import Leak, observe
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared import mosaics

# The studies whose records are shown: a whole batch, and images from a convolutional network.
SHOWN = ("exact-batch", "cnn-inversion")
Picture = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Exposure:
    """A private image, the gradient that the server received, and the recovered image and label.

    Attributes:
        private: The private image (3, H, W).
        private_label: The private label (C,).
        gradient: The row of the first layer's gradient from which the image was recovered (3, H, W).
        recovered: The recovered image (3, H, W).
        recovered_label: The recovered label (C,).
    """

    private: Tensor
    private_label: Tensor
    gradient: Tensor
    recovered: Tensor
    recovered_label: Tensor


def expose(samples: int = 6, seed: int = 7) -> list[Exposure]:
    """Recover single photographs from gradients of a fully connected network with biases in closed form (aono2017).

    Args:
        samples: The number of photographs, each of another class.
        seed: The seed of the classes, the labels' smoothing and the network.
    """
    photos = data.load("photos", "test", size=64)
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randperm(photos.classes, generator=generator)[:samples]
    # For each class, take the crop with the highest contrast, which is the easiest to recognise.
    contrast = photos.images.flatten(1).std(dim=1)
    chosen = torch.stack([contrast.where(photos.labels == label, contrast.new_zeros(())).argmax() for label in classes])
    epsilon = torch.rand(samples, generator=generator) / 2
    labels = augment.smooth(photos.labels[chosen], photos.classes, epsilon)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 64), nn.ReLU(), nn.Linear(64, photos.classes))
    return [
        _attack(photos.images[index], label, observe(model, photos.images[index : index + 1], label[None]))
        for index, label in zip(chosen.tolist(), labels, strict=True)
    ]


def _attack(private: Tensor, label: Tensor, leak: Leak) -> Exposure:
    """Recover the image from the first layer and the label from the last; the private data are only stored."""
    weight, bias = leak.gradients["1.weight"], leak.gradients["1.bias"]
    row = bias.abs().argmax()
    image = (weight[row] / bias[row]).reshape(private.shape)
    error, final_bias = leak.bias_gradient, leak.bias
    assert error is not None
    assert final_bias is not None
    feature = leak.weight_gradient.T @ error / error.square().sum()
    guess = (leak.weight @ feature + final_bias).softmax(dim=0) - error
    return Exposure(private, label, weight[row].reshape(private.shape), image, guess)


def quality(exposure: Exposure) -> tuple[float, float]:
    """Return the PSNR (dB) of the recovered image and the L1 error of the recovered label."""
    from gradleak import metrics

    psnr = float(metrics.psnr(exposure.recovered[None].clamp(0, 1), exposure.private[None])[0])
    return psnr, float((exposure.recovered_label - exposure.private_label).abs().sum())


@dataclass(frozen=True)
class Panel:
    """A grid of pictures with a title.

    Attributes:
        title: The title.
        names: The name of each row.
        rows: The pictures, by row and column.
        notes: The note under each column; empty for no notes.
    """

    title: str
    names: tuple[str, ...]
    rows: list[list[Picture]]
    notes: tuple[str, ...] = ()


def bias_panel(samples: int) -> Panel:
    """Return a panel of photographs, their gradients and the recovered images, which are computed here."""
    shown = expose(samples)
    rows = [
        [_pixels(exposure.private) for exposure in shown],
        # A gradient has values of both signs, so scale it to [0, 1] with zero as grey.
        [_pixels(exposure.gradient / exposure.gradient.abs().max() * 0.5 + 0.5) for exposure in shown],
        [_pixels(exposure.recovered.clamp(0, 1)) for exposure in shown],
    ]
    return Panel(
        "With biases: one division",
        ("private", "shared\ngradient", "recovered"),
        rows,
        tuple(f"{quality(exposure)[0]:.0f} dB" for exposure in shown),
    )


def batch_panel(record: Record) -> Panel:
    """Return a panel of a whole batch that was recovered from one averaged gradient, from the record of exact-batch."""
    frame = record.frame()
    row = frame[frame["picture"].notna()].iloc[0]
    size = int(row["size"])
    private, _, closed = _cut(mosaics.unpacked(row["picture"]), 3, size)
    return Panel(
        f"No biases: all {size} images, from one averaged gradient", ("private", "recovered"), [private, closed]
    )


def convolutional_panel(record: Record, samples: int) -> Panel:
    """Return a panel of images recovered from a trained convolutional network, from the record of cnn-inversion."""
    frame = record.frame()
    trained = frame[frame["stage"] == "trained"]
    strips = [
        _cut(mosaics.unpacked(text), 1, 4)[0]
        for text in trained.loc[trained["attack"] == "picture", "picture"][:samples]
    ]
    closed = trained[(trained["part"] == "polish") & (trained["attack"] == "closed form")]
    notes = tuple(f"{psnr:.0f} dB" for psnr in closed["psnr"][: len(strips)])
    names = ("private", "matched", "closed form")
    return Panel("A trained convolutional network", names, [list(row) for row in zip(*strips, strict=True)][:3], notes)


def make_cover(path: Path) -> None:
    """Draw the picture into a file: the panels of recorded images if there are records, and the simplest case."""
    batch, convolutional = (records.recorded(study) if study in studies.names() else None for study in SHOWN)
    lower = [bias_panel(5)] + ([convolutional_panel(convolutional, 5)] if convolutional else [])
    figures.style()
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(12, 5.4 if batch else 3.8), layout="constrained")
    rest: Any = figure
    if batch:
        above, rest = rest.subfigures(2, 1, height_ratios=[1, 2.05])
        _draw(above, batch_panel(batch))
    for part, panel in zip(rest.subfigures(1, len(lower), squeeze=False)[0], lower, strict=True):
        _draw(part, panel)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(part: Any, panel: Panel) -> None:
    part.suptitle(panel.title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    axes = part.subplots(len(panel.rows), len(panel.rows[0]), squeeze=False)
    for line, name, pictures in zip(axes, panel.names, panel.rows, strict=True):
        line[0].set_ylabel(name, fontsize=11, rotation=0, ha="right", va="center", labelpad=6)
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            for spine in axis.spines.values():
                spine.set_visible(False)
    for axis, note in zip(axes[-1], panel.notes, strict=False):
        axis.set_xlabel(note, fontsize=10)


def _pixels(image: Tensor) -> Picture:
    pixels: Picture = image.permute(1, 2, 0).numpy()
    return pixels


def _cut(mosaic: Picture, rows: int, columns: int) -> list[list[Picture]]:
    return [np.split(line, columns, axis=1) for line in np.split(mosaic, rows, axis=0)]
