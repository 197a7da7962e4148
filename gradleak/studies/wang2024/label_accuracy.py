"""Soft labels from a deep network

wang2024, section 4.1, Table 1: a ResNet50 with all weights at random, and why a few of its labels cannot be had.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor

from gradleak import data, metrics, studies
from gradleak.labels import idlg, recover_soft_labels
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import LABELS, private_samples
from gradleak.studies.shared.searched import KNOWN, judged, search_both

PLACE = "Table 1"
SMALLEST: dict[str, Any] = {}
# Last-layer gradients held at a time: those of a ResNet50 on 1000 classes have two million entries each.
CHUNK_ELEMENTS = 2**25
VARIED = "varied"


class Varied(Form):
    """A dataset whose networks differ much, how many of them are drawn, and the images that each is shown."""

    dataset: str
    networks: Whole = Field(ge=1, le=1000)
    images: Whole = Field(ge=2, le=100_000)


class Parameters(studies.Parameters):
    """What a rerun may change."""

    samples: int = Field(20, ge=2, le=100_000, description="single images a dataset and kind of label")
    searches: int = Field(2, ge=1, le=100_000, description="of these, how many the published search is run on")
    datasets: list[str] = Field(["photos"], description="private images, test split")
    network: str = Field("resnet50", description="the network, all its parameters random")
    draws: int = Field(2, ge=0, le=1000, description="further networks, their parameters and images drawn anew")
    drawn: int = Field(5, ge=2, le=100_000, description="images that each of these is shown, a kind of label")
    varied: list[Varied] = Field(
        ["photos/2/3"],
        validate_default=True,
        description="more networks, as dataset/networks/images",
    )

    paper: ClassVar[dict[str, Any]] = {
        "samples": 1000,
        "searches": 100,
        "datasets": ["tinyimagenet32", "flowers17", "imagenet-sample"],
        "draws": 10,
        "drawn": 25,
        "varied": ["flowers17/30/34"],
    }

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees(self.network, dataset) for dataset in datasets(self)]


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    names = ", ".join(map(data.title, parameters.datasets))
    return f"{parameters.samples} images a dataset and kind of label, {names}"


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys([*parameters.datasets, *(one.dataset for one in parameters.varied)]))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: a dataset and a kind of label each, and each of them with other networks."""
    names = ("samples", "searches", "network", "seed")
    common = {name: getattr(parameters, name) for name in names}
    device = studies.resolve_device(parameters.device)
    cells = [
        {"dataset": dataset, "labels": labels, "device": device, **common}
        for dataset in parameters.datasets
        for labels in LABELS
    ]
    fewer = {"samples": parameters.drawn, "searches": 0}
    soft = [cell | fewer for cell in cells if cell["labels"] != "onehot"]
    drawn = [cell | {"draw": draw} for draw in range(1, parameters.draws + 1) for cell in soft]
    varied = [
        {"part": VARIED, "dataset": one.dataset, "labels": labels, "device": device, **common}
        | {"samples": one.images, "searches": 0, "draw": draw}
        for one in parameters.varied
        for draw in range(1, one.networks + 1)
        for labels in LABELS
    ]
    return cells + drawn + varied


def trial(
    *,
    dataset: str,
    labels: str,
    samples: int,
    searches: int,
    network: str,
    seed: int,
    device: str,
    draw: int = 0,
    part: str = "",
) -> list[dict[str, Any]]:
    """Recover the labels of all samples; one row. Of a further `draw` of the network only shares are told."""
    seed += draw
    private = data.load(dataset, "test")
    inputs, targets = private_samples(private, labels, samples, seed)
    model = built(network, private, seed, device, bias=False)
    size = max(1, CHUNK_ELEMENTS // model.get_parameter("head.weight").numel())
    found, zero, rows, seconds = [], [], [], 0.0
    status: list[str] = []
    for some, own in zip(inputs.split(size), targets.split(size), strict=True):
        leaks = observe_heads(model, some.to(device), own.to(device))
        started = time.perf_counter()
        labelled = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=labels)
        seconds += time.perf_counter() - started
        found.append(labelled.labels.cpu())
        status += labelled.status
        zero.append((leaks.weight_gradients.flatten(1).abs().amax(dim=1) == 0).cpu())
        rows.append(idlg(leaks.weight_gradients).cpu())
    label, none = torch.cat(found), torch.cat(zero)
    right = metrics.label_error(label, targets) < KNOWN
    # The published code returns 0 for a zero gradient, and 0 counts as a success there.
    counted = 100 * float((right | none).double().mean())
    top = targets.argmax(dim=1)
    by_class = 100 * float((torch.cat(rows) == top).double().mean())
    if draw:
        known = {"drawn_known": 100 * float(right.double().mean()), "drawn_idlg": by_class} if part else {}
        return [{"drawn": counted, **known, "count": samples}]
    few = observe_heads(model, inputs[:searches].to(device), targets[:searches].to(device))
    published = searched(few.weight_gradients.cpu(), few.weight.cpu(), targets[:searches], labels)
    return [
        {
            "classes": private.classes,
            **judged(label, status, targets),
            "zero": 100 * float(none.double().mean()),
            "counted_zero": counted,
            "class_right": 100
            * float((label.nan_to_num(-1).argmax(dim=1).eq(top) & ~label[:, 0].isnan()).double().mean()),
            "idlg": by_class,
            "milliseconds": 1e3 * seconds / samples,
            **published,
        }
    ]


def searched(gradients: Tensor, weight: Tensor, targets: Tensor, prior: str) -> dict[str, Any]:
    """Return what Algorithm 1, and Algorithm 2 where it fails, make of a few samples; a zero gradient is a success."""
    zero = gradients.flatten(1).abs().amax(dim=1) == 0
    _, found = search_both(gradients, weight, prior)
    right = metrics.label_error(found.labels, targets) < KNOWN
    return {"searches": len(gradients), "searched": 100 * float((right | zero).double().mean())}


def table(record: Record) -> pd.DataFrame:
    """Return Table 1, a line a dataset and kind of label."""
    frame = _frame(record)
    return pd.DataFrame(
        {
            "images": frame["dataset"].map(data.title),
            "C": frame["classes"].astype(int),
            "labels": frame["labels"],
            "recovered": _percent(frame["accuracy"]),
            "ambiguous": _percent(frame["ambiguous"]),
            "zero gradient": _percent(frame["zero"]),
            "silently wrong": frame["silent"].astype(int),
            "counted as in the code": _percent(frame["counted_zero"]),
        }
    )


def draws_table(record: Record) -> pd.DataFrame:
    """Return what comes out when the network is drawn again, counted as in the code, a line a dataset."""
    frame = record.frame()
    lines = []
    for dataset, group in frame.groupby("dataset", sort=False):
        if "part" in group and (group["part"] == VARIED).any():
            group = group[group["part"] == VARIED]
        line = {"images": data.title(str(dataset))}
        for labels, own in group.groupby("labels", sort=False):
            drawn = own["drawn"].dropna()
            if len(drawn):
                line["networks"] = str(len(drawn))
                line[str(labels)] = f"{drawn.mean():.1f} ± {drawn.std():.1f} ({drawn.min():.0f} … {drawn.max():.0f}) %"
        lines.append(line)
    return pd.DataFrame(lines)


def _frame(record: Record) -> pd.DataFrame:
    """Return the rows of the first network."""
    frame = record.frame()
    return frame[frame["drawn"].isna()] if "drawn" in frame else frame


def rival_table(record: Record) -> pd.DataFrame:
    """Return what the exact solver and others make of the same gradients, a line a dataset and kind of label."""
    frame = _frame(record)
    return pd.DataFrame(
        {
            "images": frame["dataset"].map(data.title),
            "labels": frame["labels"],
            "class right": _percent(frame["class_right"]),
            "iDLG, class right": [_text(row) for row in frame.to_dict("records")],
            "published search": [
                f"{v:.0f} % of {n}" for v, n in zip(frame["searched"], frame["searches"], strict=True)
            ],
            "ms": frame["milliseconds"].map("{:.2g}".format),
        }
    )


def _percent(values: pd.Series[float]) -> pd.Series[str]:
    return values.map("{:.1f} %".format)


def _text(row: dict[Any, Any]) -> str:
    return f"{row['idlg']:.1f} %" if row["labels"] == "onehot" else "–"


def figure_statuses(record: Record) -> Figure:
    """Draw how the samples of each dataset and kind of label divide."""
    frame = _frame(record)
    figure, axes = figures.panels(1, 1, height=0.38 * len(frame) + 1.1)
    axis = axes[0][0]
    names = frame["dataset"].map(data.title) + ", " + frame["labels"]
    parts = {
        "recovered": frame["accuracy"],
        "ambiguous": frame["ambiguous"],
        "zero gradient": frame["zero"],
        "no label found": frame["failed"] - frame["zero"],
    }
    start = pd.Series(0.0, index=frame.index)
    for index, (name, values) in enumerate(parts.items()):
        axis.barh(range(len(frame)), values, left=start, color=figures.COLOURS[index], label=name, height=0.6)
        start = start + values
    axis.set_yticks(range(len(frame)), names)
    axis.set(xlabel="percent of samples", xlim=(0, 100))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1.0), fontsize=9.5)
    return figure
