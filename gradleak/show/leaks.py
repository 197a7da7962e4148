"""A page's row in the book's first table: what leaks, from what, how exactly, how fast, and what stops the attack."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from gradleak import defenses
from gradleak.runs import records
from gradleak.show.tables import MISSING, duration

# Below these an attack counts as stopped: a tenth of the labels (beyond guessing where that gets some), and 20 dB.
LABELS_STOPPED, PICTURES_STOPPED = 10.0, 20.0
# The records' words for defences, where they are not the package's: a variance, and a share of the gradient's norm.
WORDS = {"noise": "gaussian-variance", "clip": "clip-share"} | {
    "noise-coded": "gaussian",
    "dp-coded": "dp-tensors",
    "prune-coded": "prune-tensors",
}
NAMES = {
    "lenet": "LeNet", "lenet5": "LeNet-5", "resnet18": "ResNet18", "resnet20": "ResNet20", "resnet50": "ResNet50",
    "resnet50-cifar": "ResNet50", "alexnet": "AlexNet", "vgg16": "VGG16", "efficientnet-b0": "EfficientNet-B0",
    "efficientnet-lite0": "EfficientNet-Lite0",
}  # fmt: skip


@dataclass(frozen=True)
class Leaks:
    """What an attack gets, from what, how exactly and in how many seconds, and which defence stops it."""

    what: str
    source: str
    exactness: str
    seconds: float = math.nan
    stopped: str = MISSING

    @property
    def time(self) -> str:
        """The seconds, as the table shows them."""
        return duration(self.seconds)


def stopped_on(study: str, success: str, threshold: float, attack: str = "") -> str:
    """Return which defence stops an attack, from the record of the page that tries defences on it."""
    kept = records.recorded(study)
    return MISSING if kept is None else stopped(kept.frame(), success, threshold, attack)


def stopped(rows: pd.DataFrame, success: str, threshold: float, attack: str = "") -> str:
    """Return which of the defences in some rows stops an attack, by the column that tells its success."""
    if attack:
        rows = rows[rows["attack"] == attack]
    defended = rows[rows["defense"].notna() & (rows["defense"] != "none") & rows[success].notna()]
    return least_stopping(defended.assign(success=defended[success].astype(float)), threshold)


def least_stopping(rows: pd.DataFrame, threshold: float) -> str:
    """Return the defence that stops the best attacker and changes the gradient's direction least.

    `rows`: the columns defense, level, success and, where known, utility: the cosine with the true gradient.
    """
    attackers = [
        name for name in ("attacker", "attack", "reading", "place") if name in rows and rows[name].notna().any()
    ]
    if "utility" not in rows:
        rows = rows.assign(utility=float("nan"))
    # The PSNR of a picture that failed is −∞ dB, of which there is no mean.
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
    """Return the largest batch size, with its number of classes, of which every batch was recovered in full.

    Both are 0 where there is none.
    """
    shares = rows.groupby(["size", "classes"])[column].mean().reset_index()
    whole = shares[shares[column] >= full].sort_values(["size", "classes"])
    return (0, 0) if whole.empty else (int(whole["size"].iloc[-1]), int(whole["classes"].iloc[-1]))


def by_stage(rows: pd.DataFrame) -> str:
    """Return the median PSNR for each stage of training."""
    medians = rows.groupby("stage")["psnr"].median()
    return ", ".join(f"{value:.0f} dB {stage}" for stage, value in medians.items())


def span(values: pd.Series[float], form: str = "g") -> str:
    """Return the least and the greatest of some values: "1 to 8"."""
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"


def listed(names: pd.Series[str]) -> str:
    """Return the networks that occur, by the names that papers give them."""
    return ", ".join(dict.fromkeys(NAMES.get(name, name) for name in names))
