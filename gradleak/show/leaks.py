"""A page's row in the book's first table: what leaks, from what, how exactly, and how fast.

Each number of a row is a cell of a table of the page, or a judgement that the page's box shows, so that a reader finds
on the page what the first table says.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from gradleak.errors import InputError

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
        source: From what: the batch size, the network and the data.
        exactness: How exactly, and in how many cases.
        time: The time of one attack, with the unit; "" where no time is recorded.
        kind: The kind of leak, as in the studies' outcomes.
        attack: The attack's name in the studies' outcomes.
        network: The network whose outcomes count, as papers write its name; "" for all networks.
        batch: The batch size.
    """

    what: str
    source: str
    exactness: str
    time: str
    kind: str
    attack: str
    network: str = ""
    batch: int = 1


def line(table: pd.DataFrame, *first: str) -> dict[str, str]:
    """Return the line of a page's table that begins with these cells, by the heads of the table."""
    heads = [str(head) for head in table.columns]
    lines = [cells for cells in table.astype(str).to_numpy().tolist() if cells[: len(first)] == list(first)]
    if len(lines) != 1:
        raise InputError(f"{len(lines)} lines of the table begin with {', '.join(first)}; expected one")
    return dict(zip(heads, lines[0], strict=True))


def listed(names: pd.Series[str]) -> str:
    """Return a list of the networks that occur, with their names as papers write them."""
    return ", ".join(dict.fromkeys(NAMES.get(name, name) for name in names))
