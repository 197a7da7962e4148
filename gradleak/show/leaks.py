"""A page's row in the book's first table: what leaks, from what, how exactly, how fast, and the defence against it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from gradleak import defenses
from gradleak.runs import records
from gradleak.show.tables import MISSING, duration

# An attack counts as stopped below these: 10 % of the labels (above guessing, where guessing gets some), and 20 dB.
LABELS_STOPPED, PICTURES_STOPPED = 10.0, 20.0
# The records' names of defences, where they differ from the names in `gradleak.defenses`.
WORDS = {"noise": "gaussian-variance", "clip": "clip-share"} | {
    "noise-coded": "gaussian",
    "dp-coded": "dp-tensors",
    "prune-coded": "prune-tensors",
}
NAMES = {
    "lenet": "LeNet", "lenet5": "LeNet-5", "resnet18": "ResNet18", "resnet20": "ResNet20", "resnet50": "ResNet50",
    "resnet50-cifar": "ResNet50", "alexnet": "AlexNet", "vgg16": "VGG16", "efficientnet-b0": "EfficientNet-B0",
    "efficientnet-lite0": "EfficientNet-Lite0", "resnet18-cifar": "ResNet18", "small-cnn": "small CNN",
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
        seconds: The run time (s); NaN if it is not recorded.
        stopped: The defence that stops the attack.
    """

    what: str
    source: str
    exactness: str
    seconds: float = math.nan
    stopped: str = MISSING

    @property
    def time(self) -> str:
        """The run time as a text with its unit."""
        return duration(self.seconds)


def stopped_on(study: str, success: str, threshold: float, attack: str = "") -> str:
    """Return the defence that stops an attack, from the record of the page that measures defences.

    Args:
        study: The study whose page measures defences.
        success: The column that measures the attack's success.
        threshold: The success below which the attack counts as stopped.
        attack: Use only the rows of this attack.
    """
    record = records.recorded(study)
    return MISSING if record is None else stopped(record.frame(), success, threshold, attack)


def stopped(rows: pd.DataFrame, success: str, threshold: float, attack: str = "") -> str:
    """Return the defence in some rows that stops an attack; arguments as in `stopped_on`."""
    if attack:
        rows = rows[rows["attack"] == attack]
    defended = rows[rows["defense"].notna() & (rows["defense"] != "none") & rows[success].notna()]
    return least_stopping(defended.assign(success=defended[success].astype(float)), threshold)


def least_stopping(rows: pd.DataFrame, threshold: float) -> str:
    """Return the defence that changes the gradient's direction least among those that stop even the best attacker.

    Args:
        rows: Columns defense, level, success and, if known, utility, which is the cosine with the true gradient.
        threshold: The success below which an attacker counts as stopped.
    """
    attackers = [
        name for name in ("attacker", "attack", "reading", "place") if name in rows and rows[name].notna().any()
    ]
    if "utility" not in rows:
        rows = rows.assign(utility=float("nan"))
    # The PSNR of a failed picture is −∞ dB, which would make the mean −∞. So pictures are summarised by the median.
    tried = rows.groupby(["defense", "level", *attackers])[["success", "utility"]].agg(
        "median" if threshold == PICTURES_STOPPED else "mean"
    )
    best = tried.groupby(level=["defense", "level"]).agg({"success": "max", "utility": "median"})
    stopping = best[best["success"] < threshold].sort_values("utility", ascending=False)
    if stopping.empty:
        return f"none of {len(best)} recorded"
    (name, level), cosine = stopping.index[0], stopping["utility"].iloc[0]
    shown = defenses.shown(f"{WORDS.get(name, name)}/{level}")
    return shown if math.isnan(cosine) else f"{shown} ({cosine:.2f})"


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
