"""What leaks, in one table: a row an attack, every number of it from the recorded results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gradleak import defenses, studies
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show.tables import MISSING, duration

# Below these an attack counts as stopped: a tenth of the labels (over guessing where that gets some), and 20 dB.
LABELS, PICTURES = 10.0, 20.0
# The records' words for defences, where they are not the package's: a variance, and a share of the gradient's norm.
WORDS = {"noise": "gaussian-variance", "clip": "clip-share"} | {
    "noise-coded": "gaussian",
    "dp-coded": "dp-tensors",
    "prune-coded": "prune-tensors",
}
NOTES = (
    "*Stopped by*: of the defences recorded on the page, the one that turns the gradient least (in brackets its cosine "
    "with the true one) against which every attacker tried there gets less than a tenth of the labels beyond guessing, "
    "or pictures below 20 dB. An attacker who was not tried may get more."
)


@dataclass(frozen=True)
class Leak:
    """What an attack takes, how exactly it gets its secret and how fast, and what stops it."""

    takes: str
    exactly: str
    time: str
    stopped: str = MISSING


Row = Callable[[], Leak]


def soft_label() -> Leak:
    """One sample's soft label, from its last layer's gradient."""
    frame = _frame("label-accuracy-intense")
    exact = frame[(frame["solver"] == "exact") & (frame["dtype"] == "float32")]
    share = (exact["accuracy"] * exact["count"]).sum() / exact["count"].sum()
    error = exact.loc[exact["labels"] != "onehot", "median_error"].median()
    return Leak(
        f"one sample; {_listed(exact['network'])}",
        f"{share:.1f} % of {exact['count'].sum():,} labels, L1 error {error:.0e}",
        duration(exact["milliseconds"].median() / 1000),
        _stopped("noise", "within_tenth", LABELS),
    )


def batch_labels() -> Leak:
    """The soft labels and features of a whole batch, from one averaged gradient."""
    frame = _frame("batch-soft-labels")
    clean = frame[(frame["noise"] == 0) & (frame["dtype"] == "float32") & (frame["classes"] > 0) & ~frame["repeated"]]
    size, classes = _largest(clean, "whole", 1.0)
    shown = clean[(clean["size"] == size) & (clean["classes"] == classes)]
    noisy = frame[frame["noise"] > 0].assign(defense="gaussian", level=lambda rows: rows["noise"])
    return Leak(
        f"batch of up to {size}, {classes:,} classes; {_listed(clean['network'])}",
        f"every batch of {size} whole, L1 error {shown['label_error'].median():.0e}",
        duration(shown["seconds"].median()),
        _least(noisy.assign(success=100.0 * noisy["whole"]), LABELS),
    )


def image_fully_connected() -> Leak:
    """An image from a fully connected network without biases."""
    frame = _frame("fcn-inversion")
    ours = frame[(frame["part"] == "closed") & (frame["variant"] == "ours") & (frame["dtype"] == "float32")]
    return Leak(
        "one image; fully connected, no biases",
        f"{ours['psnr'].median():.0f} dB (median of {len(ours)})",
        duration(ours["seconds"].median()),
        _stopped("fcn-inversion", "psnr", PICTURES),
    )


def images_of_a_batch() -> Leak:
    """All images of a batch from a fully connected network without biases."""
    frame = _frame("exact-batch")
    closed = frame[(frame["part"] == "closed") & (frame["attack"] == "closed form") & (frame["dtype"] == "float32")]
    size, _ = _largest(closed, "over_40", 100.0)
    shown = closed[closed["size"] == size]
    return Leak(
        f"batch of up to {size}; fully connected, no biases",
        f"all {size} images, {shown['psnr'].median():.0f} dB (median of {len(shown)} batches)",
        duration(shown["seconds"].median()),
        _stopped("exact-batch", "psnr", PICTURES),
    )


def images_layer_by_layer() -> Leak:
    """All images of a batch from a residual network, layer by layer."""
    frame = _frame("peeling")
    peeled = frame[(frame["part"] == "peeled") & (frame["what"] == "batch")]
    size, _ = _largest(peeled.assign(back=peeled["back"].astype(float)), "back", 1.0)
    shown = peeled[peeled["size"] == size]
    noisy = frame[frame["part"] == "noise"].assign(defense="gaussian")
    return Leak(
        f"batch of {size}; ResNet18, untrained",
        f"all {size} images, {shown['psnr'].median():.0f} dB (median of {len(shown)} batches)",
        duration(shown["cpu_seconds"].median()),
        _least(noisy.assign(success=noisy["least"]), PICTURES),
    )


def image_convolutional() -> Leak:
    """An image from a convolutional network, layer by layer in closed form."""
    frame = _frame("cnn-inversion")
    closed = frame[(frame["part"] == "closed") & (frame["dtype"] == "float32") & (frame["layer"] == "image")]
    polished = frame[(frame["part"] == "polish") & (frame["attack"] == "polished")]
    return Leak(
        "one image; LeNet",
        f"{_by_stage(closed)}; polished {_by_stage(polished)}",
        duration(closed["seconds"].median()),
        _stopped("cnn-inversion", "psnr", PICTURES),
    )


def image_matched() -> Leak:
    """An image by matching gradients, with the recovered label."""
    frame = _frame("cnn-reconstruction")
    ours = frame[(frame["what"] == "image") & (frame["run"] == "Ours") & (frame["distance"] == "l2")]
    return Leak("one image; LeNet", _by_stage(ours), duration(ours["seconds"].median()))


def labels_by_sign() -> Leak:
    """How many samples of each class a batch has, from the sign and size of the gradient's rows."""
    frame = _frame("llg-attack")
    counts = frame[(frame["part"] == "count") & (frame["size"] == frame["size"].max())]
    alone, knowing = (counts[counts["attack"] == attack] for attack in ("LLG", "LLG+"))
    return Leak(
        f"batch of {counts['size'].max()}; untrained CNN, {counts['dataset'].nunique()} datasets",
        f"{alone['success'].mean():.0f} % of labels; {knowing['success'].mean():.0f} % with auxiliary data",
        duration(alone["seconds"].median()),
        _stopped("llg-defenses", "over_guess", LABELS),
    )


def labels_by_posterior() -> Leak:
    """How many samples of each class a batch has, from the bias gradient and the model's confidence."""
    frame = _frame("posterior-attack")
    table = frame[(frame["part"] == "table 2") & (frame["attack"] == "posterior")]
    return Leak(
        f"batch of {_range(table['size'])}, auxiliary data; {_listed(table['network'])}",
        f"{_range(100 * table.groupby('network')['instances'].mean(), '.1f')} % of labels",
        duration(table["seconds"].median()),
        _stopped("llg-defenses", "over_guess", LABELS, attack="posterior"),
    )


def labels_by_factors() -> Leak:
    """Which classes a batch has, for features of any sign, from the factors of the gradient."""
    frame = _frame("reveal-labels")
    rlg = frame[frame["attack"] == "RLG"]
    plain = rlg[(rlg["defense"] == "none") & (rlg["size"] == rlg["size"].max())]
    defended = rlg[rlg["defense"] != "none"]
    return Leak(
        f"batch of up to {plain['size'].max()}; {_listed(plain['network'])}",
        f"{100 * plain['exact'].mean():.0f} % of sets exact",
        duration(plain["seconds"].median()),
        _least(defended.assign(success=100.0 * defended["f1"]), LABELS),
    )


def labels_by_minimum() -> Leak:
    """Which classes a batch has, from the least entry of each row of the gradient."""
    frame = _frame("batch-restoration")
    rule = frame[(frame["rule"] == "GradInversion") & (frame["size"] == frame["size"].max())]
    distinct, repeated = (rule.loc[rule["repeats"] == repeats, "accuracy"].mean() for repeats in (False, True))
    return Leak(
        f"batch of {rule['size'].max()}; {_listed(rule['network'])}",
        f"{distinct:.1f} % of labels, {repeated:.1f} % where they repeat",
        duration(rule["seconds"].median()) if "seconds" in rule else MISSING,
    )


def sentences_in_order() -> Leak:
    """Whole sentences, word by word, from a language model's gradient."""
    frame = _frame("sentences")
    read = frame[(frame["part"] == "read") & (frame["words"] == "all")]
    largest = read[read["size"] == read["size"].max()]
    return Leak(
        f"batch of up to {read['size'].max()} sentences; LSTM, GRU, transformer",
        f"{read['exact'].sum():,} of {len(read):,} batches whole, each word in its place",
        duration(largest["seconds"].median()),
        _stopped("sentences", "right", LABELS / 100),
    )


def transcript() -> Leak:
    """What was said, word by word, from a speech recogniser's gradient."""
    frame = _frame("transcripts")
    alone = frame[(frame["part"] == "alone") & (frame["size"] == "paper")]
    return Leak(
        "one utterance; a speech recogniser",
        f"{alone['exact'].sum()} of {len(alone)} transcripts, each word in its place",
        duration(alone["seconds"].median()),
    )


# What leaks, the page that measures it, and how its row is read off the record.
ROWS: tuple[tuple[str, str, Row], ...] = (
    ("the soft label", "label-accuracy-intense", soft_label),
    ("all soft labels and features", "batch-soft-labels", batch_labels),
    ("the image, in closed form", "fcn-inversion", image_fully_connected),
    ("all images, in closed form", "exact-batch", images_of_a_batch),
    ("the image, layer by layer", "cnn-inversion", image_convolutional),
    ("all images, layer by layer", "peeling", images_layer_by_layer),
    ("the image, by matching", "cnn-reconstruction", image_matched),
    ("label counts, by sign and size", "llg-attack", labels_by_sign),
    ("label counts, by confidence", "posterior-attack", labels_by_posterior),
    ("the set of labels, by factors", "reveal-labels", labels_by_factors),
    ("labels, by the least entry", "batch-restoration", labels_by_minimum),
    ("whole sentences, in order", "sentences", sentences_in_order),
    ("what was said, in order", "transcripts", transcript),
)


def text() -> str:
    """Return the table, each row linked to its page."""
    known = set(studies.names())
    lines = ["| what leaks | from | how exactly | in | stopped by |", "| --- | --- | --- | --- | --- |"]
    for what, page, row in ROWS:
        try:
            leak = row()
            time = leak.time + " on a GPU" * _record(page).accelerated
        except _NotRecorded:
            leak, time = Leak(MISSING, MISSING, MISSING), MISSING
        name = f"{{doc}}`{what} <executed/{studies.paper_of(page)}/{page}>`" if page in known else what
        lines.append(f"| {name} | {leak.takes} | {leak.exactly} | {time} | {leak.stopped} |")
    caption = ":::{table} What leaks: medians and shares over the recorded runs.\n:name: tab-what-leaks\n"
    return f"{caption}:class: gradleak-table leaks\n\n" + "\n".join(lines) + f"\n:::\n\n{{.gradleak-notes}}\n{NOTES}\n"


class _NotRecorded(Exception):
    """A study without a record."""


def _record(study: str) -> Record:
    if study not in studies.names() or (record := records.recorded(study)) is None:
        raise _NotRecorded
    return record


def _frame(study: str) -> pd.DataFrame:
    return _record(study).frame()


def _stopped(study: str, success: str, threshold: float, attack: str = "") -> str:
    try:
        frame = _frame(study)
    except _NotRecorded:
        return MISSING
    if attack:
        frame = frame[frame["attack"] == attack]
    defended = frame[frame["defense"].notna() & (frame["defense"] != "none") & frame[success].notna()]
    return _least(defended.assign(success=defended[success].astype(float)), threshold)


def _least(frame: pd.DataFrame, threshold: float) -> str:
    """Say which defence stops the best of the attackers and turns the gradient least."""
    attackers = [
        name for name in ("attacker", "attack", "reading", "place") if name in frame and frame[name].notna().any()
    ]
    if "utility" not in frame:
        frame = frame.assign(utility=float("nan"))
    # A picture that failed has −∞ dB, of which there is no mean.
    tried = frame.groupby(["defense", "level", *attackers])[["success", "utility"]].agg(
        "median" if threshold == PICTURES else "mean"
    )
    best = tried.groupby(level=["defense", "level"]).agg({"success": "max", "utility": "median"})
    stopping = best[best["success"] < threshold].sort_values("utility", ascending=False)
    if stopping.empty:
        return f"none of {len(best)} recorded"
    (name, level), cosine = stopping.index[0], stopping["utility"].iloc[0]
    shown = defenses.shown(f"{WORDS.get(name, name)}/{level}")
    return shown if math.isnan(cosine) else f"{shown} ({cosine:.2f})"


def _largest(frame: pd.DataFrame, column: str, full: float) -> tuple[int, int]:
    """Return the largest batch size, and its number of classes, of which every batch was recovered in full."""
    shares = frame.groupby(["size", "classes"])[column].mean().reset_index()
    whole = shares[shares[column] >= full].sort_values(["size", "classes"])
    if whole.empty:
        raise _NotRecorded
    return int(whole["size"].iloc[-1]), int(whole["classes"].iloc[-1])


def _by_stage(frame: pd.DataFrame) -> str:
    medians = frame.groupby("stage")["psnr"].median()
    return ", ".join(f"{value:.0f} dB {stage}" for stage, value in medians.items())


def _range(values: pd.Series[float], form: str = "g") -> str:
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"


NAMES = {
    "lenet": "LeNet", "lenet5": "LeNet-5", "resnet18": "ResNet18", "resnet20": "ResNet20", "resnet50": "ResNet50",
    "resnet50-cifar": "ResNet50", "alexnet": "AlexNet", "vgg16": "VGG16", "efficientnet-b0": "EfficientNet-B0",
    "efficientnet-lite0": "EfficientNet-Lite0",
}  # fmt: skip


def _listed(names: pd.Series[str]) -> str:
    return ", ".join(dict.fromkeys(NAMES.get(name, name) for name in names))
