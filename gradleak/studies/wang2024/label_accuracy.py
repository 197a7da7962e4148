"""Soft labels from a deep network

wang2024, section 4.1, Table 1: a ResNet50 with all weights at random, and why a few of its labels cannot be had.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import data, metrics, studies
from gradleak.labels import idlg, recover_soft_labels
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.samples import LABELS, private_samples
from gradleak.studies.shared.searched import KNOWN, Judged, judged, percentage, search_both

PLACE = "Table 1"
# Last-layer gradients held at a time: those of a ResNet50 on 1000 classes have two million entries each.
CHUNK_ELEMENTS = 2**25
VARIED = "varied"


class Varied(Form):
    """A dataset whose networks differ much, how many of them are drawn, and the images that each is shown."""

    dataset: str
    networks: Whole = Field(ge=1, le=1000)
    images: Whole = Field(ge=2, le=100_000)


class Parameters(studies.Parameters):
    """Which images are private, how many, and how many random networks see them."""

    samples: int = setting(20, paper=1000, ge=2, le=100_000, about="single images a dataset and kind of label")
    searches: int = setting(2, paper=100, ge=1, le=100_000, about="of these, how many the published search is run on")
    datasets: list[str] = setting(
        ["photos"], paper=["tinyimagenet32", "flowers17", "imagenet-sample"], about="private images, test split"
    )
    network: str = setting("resnet50", about="the network, all its parameters random")
    draws: int = setting(2, paper=10, ge=0, le=1000, about="further networks, their parameters and images drawn anew")
    drawn: int = setting(5, paper=25, ge=2, le=100_000, about="images that each of these is shown, a kind of label")
    varied: list[Varied] = setting(
        ["photos/2/3"],
        paper=["flowers17/30/34"],
        validate_default=True,
        about="more networks, as dataset/networks/images",
    )

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees(self.network, dataset) for dataset in (*self.datasets, *(one.dataset for one in self.varied))]

    def experiments(self) -> Iterator[Experiment]:
        """Give each dataset and kind of label with the first network, then with further ones, then the varied ones."""
        for dataset, labels in product(self.datasets, LABELS):
            yield RandomNetwork.of(self, dataset=dataset, labels=labels)
        fewer = {"samples": self.drawn, "searches": 0}
        for draw, dataset, labels in product(range(1, self.draws + 1), self.datasets, LABELS):
            if labels != "onehot":
                yield RandomNetwork.of(self, dataset=dataset, labels=labels, draw=draw, **fewer)
        for one in self.varied:
            fewer = {"samples": one.images, "searches": 0}
            for draw, labels in product(range(1, one.networks + 1), LABELS):
                yield VariedNetwork.of(self, dataset=one.dataset, labels=labels, draw=draw, **fewer)

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return f"{self.samples} images a dataset and kind of label, {', '.join(map(data.title, self.datasets))}"


class FirstNetwork(Judged):
    """What comes out with the first network, in percent.

    `zero`: gradients that are zero; `counted_zero`: labels that are recovered or whose gradient is zero, which count as
    recovered in the published code; `searched`: the same of the published search on the first few samples.
    """

    classes: int
    zero: float
    counted_zero: float
    class_right: float
    idlg: float
    milliseconds: float
    searches: int
    searched: float


class FurtherNetwork(Row):
    """What comes out with a further network, in percent; `drawn`: counted as in the published code."""

    drawn: float
    drawn_known: float = math.nan
    drawn_idlg: float = math.nan
    count: int


@dataclass(frozen=True)
class Solved:
    """Private images on one network, and what became of their labels."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    labels: Tensor
    status: list[str]
    zero: Tensor
    class_by_idlg: Tensor
    seconds: float

    @property
    def right(self) -> Tensor:
        """Which labels are recovered, (N,)."""
        return metrics.label_error(self.labels, self.targets) < KNOWN

    @property
    def top(self) -> Tensor:
        """The class that has the largest share of each true label, (N,)."""
        return self.targets.argmax(dim=1)

    @property
    def counted(self) -> float:
        """Successes in percent: the published code returns 0 for a zero gradient, and 0 counts as a success there."""
        return percentage(self.right | self.zero)

    @property
    def idlg(self) -> float:
        """How often iDLG names the top class, in percent."""
        return percentage(self.class_by_idlg == self.top)


class OnNetwork(Experiment):
    """Single images on a network whose parameters are random; networks and images differ from one `draw` to another."""

    dataset: str
    labels: str
    samples: int
    searches: int
    network: str
    draw: int = 0

    def solved(self) -> Solved:
        """Recover the labels of all samples."""
        seed = self.seed + self.draw
        private = data.load(self.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, seed)
        model = built(self.network, private, seed, self.device, bias=False)
        size = max(1, CHUNK_ELEMENTS // model.get_parameter("head.weight").numel())
        found, zero, classes, seconds = [], [], [], 0.0
        status: list[str] = []
        for some, own in zip(inputs.split(size), targets.split(size), strict=True):
            leaks = observe_heads(model, some.to(self.device), own.to(self.device))
            started = time.perf_counter()
            labelled = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=self.labels)
            seconds += time.perf_counter() - started
            found.append(labelled.labels.cpu())
            status += labelled.status
            zero.append(_is_zero(leaks.weight_gradients).cpu())
            classes.append(idlg(leaks.weight_gradients).cpu())
        return Solved(model, inputs, targets, torch.cat(found), status, torch.cat(zero), torch.cat(classes), seconds)


class RandomNetwork(OnNetwork):
    """The first network, or a further draw of it, of which only a share is told."""

    def run(self) -> list[FirstNetwork | FurtherNetwork]:
        """Recover the labels, with the first network by the published search as well."""
        solved = self.solved()
        if self.draw:
            return [FurtherNetwork(drawn=solved.counted, count=self.samples)]
        labels = solved.labels
        class_right = labels.nan_to_num(-1).argmax(dim=1).eq(solved.top) & ~labels[:, 0].isnan()
        few = solved.targets[: self.searches]
        leaks = observe_heads(solved.model, solved.inputs[: self.searches].to(self.device), few.to(self.device))
        gradients = leaks.weight_gradients.cpu()
        _, searched = search_both(gradients, leaks.weight.cpu(), self.labels)
        right = metrics.label_error(searched.labels, few) < KNOWN
        return [
            FirstNetwork.of(
                judged(labels, solved.status, solved.targets),
                classes=solved.targets.shape[1],
                zero=percentage(solved.zero),
                counted_zero=solved.counted,
                class_right=percentage(class_right),
                idlg=solved.idlg,
                milliseconds=1e3 * solved.seconds / self.samples,
                searches=len(gradients),
                searched=percentage(right | _is_zero(gradients)),
            )
        ]


class VariedNetwork(OnNetwork):
    """One of many networks on a dataset whose networks differ much."""

    part: ClassVar[str] = VARIED

    def run(self) -> list[FurtherNetwork]:
        """Recover the labels, and tell the shares that are right."""
        solved = self.solved()
        known = percentage(solved.right)
        return [FurtherNetwork(drawn=solved.counted, drawn_known=known, drawn_idlg=solved.idlg, count=self.samples)]


def _is_zero(gradients: Tensor) -> Tensor:
    return gradients.flatten(1).abs().amax(dim=1) == 0


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
    lines = []
    for dataset, group in record.frame().groupby("dataset", sort=False):
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
