"""What a page found, stated once: its sentence and key number, its row in the book's first table, and its outcomes.

The page's box, the cards of its chapter, the first table, the explorer and the page on federations are drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from gradleak.errors import InputError
from gradleak.runs.records import Record

if TYPE_CHECKING:
    from gradleak.studies.shared.outcomes import Outcome

NAMES = {
    "lenet": "LeNet", "lenet5": "LeNet-5", "resnet18": "ResNet18", "resnet20": "ResNet20", "resnet50": "ResNet50",
    "resnet50-cifar": "ResNet50", "alexnet": "AlexNet", "vgg16": "VGG16", "efficientnet-b0": "EfficientNet-B0",
    "efficientnet-lite0": "EfficientNet-Lite0", "resnet18-cifar": "ResNet18, CIFAR form", "small-cnn": "small CNN",
    "cifar10-resnet20": "ResNet20", "cifar10-resnet20+head": "ResNet20, new head",
    "cifar10-resnet56+head": "ResNet56, new head", "fcn4": "fully connected, 4 layers",
    "torchvision.models:resnet18": "ResNet18", "llg-cnn": "CNN of LLG", "llg-lenet": "LeNet of LLG",
    "llg-lenet-3x3": "LeNet of LLG, 3 × 3 kernels", "llg-resnet20": "ResNet20 of LLG",
    "llg-resnet20-batch": "ResNet20 of LLG, train mode", "lstm": "LSTM", "gru": "GRU",
    "vit": "small ViT", "vit_b_16": "ViT-B/16", "cifar10-vit-8": "ViT with patches of 8 pixels",
    "cifar10-vit-16": "ViT with patches of 16 pixels",
}  # fmt: skip


@dataclass(frozen=True)
class Leaks:
    """A page's row in the book's first table: what leaks, from what, how exactly, and how fast.

    Each number of a row stands on the page as well, in a table or a sentence.

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


@dataclass(frozen=True)
class Summary:
    """What a page found.

    Attributes:
        sentence: The finding in one sentence, in which every number is read from the record.
        true: Whether the record supports the sentence; the tests fail if it does not.
        claim: The id of the claim that measures the key number.
        what: What the key number is, with the network, the data and the unit where these are not obvious.
        figure: The function that draws the page's best figure from a record.
        of: The cases that the claim counts, such as "batches" or "images".
        leaks: The page's row in the book's first table; None if it has none.
        outcomes: What each attack of the page reached in each setting.
    """

    sentence: str
    true: bool
    claim: str
    what: str
    figure: Callable[[Record], Figure]
    of: str = "samples"
    leaks: Leaks | None = None
    outcomes: Sequence[Outcome] = ()


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
