"""A page's row in the book's first table: what leaks, from what, how exactly, and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from gradleak.show.tables import duration

NAMES = {
    "lenet": "LeNet", "lenet5": "LeNet-5", "resnet18": "ResNet18", "resnet20": "ResNet20", "resnet50": "ResNet50",
    "resnet50-cifar": "ResNet50", "alexnet": "AlexNet", "vgg16": "VGG16", "efficientnet-b0": "EfficientNet-B0",
    "efficientnet-lite0": "EfficientNet-Lite0", "resnet18-cifar": "ResNet18, CIFAR form", "small-cnn": "small CNN",
    "cifar10-resnet20": "ResNet20", "cifar10-resnet20+head": "ResNet20, new head",
    "cifar10-resnet56+head": "ResNet56, new head", "fcn4": "fully connected, 4 layers",
    "torchvision.models:resnet18": "ResNet18", "llg-cnn": "CNN of LLG", "llg-lenet": "LeNet of LLG",
    "llg-lenet-3x3": "LeNet of LLG, 3 × 3 kernels", "llg-resnet20": "ResNet20 of LLG",
    "llg-resnet20-batch": "ResNet20 of LLG, batch norm", "lstm": "LSTM", "gru": "GRU",
}  # fmt: skip


@dataclass(frozen=True)
class Leaks:
    """A row of the table.

    Attributes:
        what: What the attack recovers.
        source: From what: the network, the data and the batch size.
        exactness: How exactly.
        kind: The kind of leak, by which the defence that stops it is looked up.
        seconds: The median time (s) of one attack, over the cases of `exactness`; NaN if it is not recorded.
        elapsed: Whether `seconds` is elapsed time; otherwise it is CPU time.
    """

    what: str
    source: str
    exactness: str
    kind: str
    seconds: float = math.nan
    elapsed: bool = False

    @property
    def time(self) -> str:
        """The time as a text with its unit."""
        return duration(self.seconds) + " elapsed" * (self.elapsed and not math.isnan(self.seconds))


def largest_recovered(rows: pd.DataFrame, column: str, full: float) -> tuple[int, int]:
    """Return the largest batch size at which every batch was recovered completely, with its number of classes.

    Args:
        rows: Columns size, classes and `column`.
        column: The column that measures the recovery of a batch.
        full: The value of a complete recovery.

    Returns:
        The batch size and the number of classes; both are 0 if there is no such batch size.
    """
    shares = rows.groupby(["size", "classes"])[column].mean().reset_index()
    complete = shares[shares[column] >= full].sort_values(["size", "classes"])
    return (0, 0) if complete.empty else (int(complete["size"].iloc[-1]), int(complete["classes"].iloc[-1]))


def by_stage(rows: pd.DataFrame) -> str:
    """Return the median PSNR (dB) for each stage of training as a text."""
    medians = rows.groupby("stage")["psnr"].median()
    return ", ".join(f"{value:.0f} dB {stage}" for stage, value in medians.items())


def span(values: pd.Series[float], form: str = "g") -> str:
    """Return the minimum and the maximum of some values as a text: "1 to 8"."""
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"


def listed(names: pd.Series[str]) -> str:
    """Return a list of the networks that occur, with their names as papers write them."""
    return ", ".join(dict.fromkeys(NAMES.get(name, name) for name in names))
