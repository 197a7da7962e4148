"""Label accuracy: soft labels from a deep network (Table 1)

wang2024, section 4.1, Table 1: a ResNet50 with random weights, and why a few of its labels cannot be recovered.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import claims, data, metrics, studies
from gradleak.labels import idlg, recover_soft_labels
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show.drawn import drawn, stacked
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, among, joined, only, percent, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.outcomes import Outcome, average_of, collected
from gradleak.studies.shared.samples import LABELS, private_samples
from gradleak.studies.shared.searched import KNOWN, Judged, judged, percentage, search_both

PLACE = "Table 1"
# Limit on gradient entries in memory; a ResNet50's last layer for 1000 classes has two million entries per sample.
CHUNK_ELEMENTS = 2**25
VARIED = "varied"


class Varied(Form):
    """A dataset on which the result depends much on the network: numbers of random networks and of images for each."""

    dataset: str
    networks: Whole = Field(ge=1, le=1000)
    images: Whole = Field(ge=2, le=100_000)


class Parameters(studies.Parameters):
    """Parameters of the page: private images, and random networks."""

    samples: int = setting(20, paper=1000, ge=2, le=100_000, about="single images per dataset and kind of label")
    searches: int = setting(
        2, paper=100, ge=1, le=100_000, about="number of these images on which the published search is run"
    )
    datasets: list[str] = setting(
        ["photos"], paper=["tinyimagenet32", "flowers17", "imagenet-sample"], about="private images, test split"
    )
    network: str = setting("resnet50", about="the network, with random parameters")
    draws: int = setting(2, paper=10, ge=0, le=1000, about="further networks, with new random parameters and images")
    drawn: int = setting(5, paper=25, ge=2, le=100_000, about="images per further network and kind of label")
    varied: list[Varied] = setting(
        ["photos/2/3"],
        paper=["flowers17/30/34"],
        validate_default=True,
        about="more random networks on single datasets, written dataset/networks/images per network",
    )

    def sees(self) -> list[Sees]:
        """Return the network and the images that it sees."""
        return [Sees(self.network, dataset) for dataset in (*self.datasets, *(one.dataset for one in self.varied))]

    def experiments(self) -> Iterator[Experiment]:
        """Yield each dataset and kind of label with the first network, then further ones, then those of `varied`."""
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
        """Return a short text on the size of a run."""
        return f"{self.samples} images for each dataset and kind of label, {', '.join(map(data.title, self.datasets))}"


class FirstNetwork(Judged):
    """The results on the first network; shares in percent.

    Attributes:
        classes: The number of classes.
        zero: Gradients that are zero.
        counted_zero: Labels that are recovered or whose gradient is zero; the published code counts both as recovered.
        class_right: Recovered labels whose largest class is right.
        idlg: Classes that iDLG names correctly.
        milliseconds: The time per sample.
        searches: The number of samples of the published search.
        searched: The share that the published search recovers, counted like `counted_zero`.
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
    """The results on a further network, in percent.

    Attributes:
        drawn: Labels that are recovered or whose gradient is zero, as the published code counts.
        drawn_known: Labels that are recovered.
        drawn_idlg: Classes that iDLG names correctly.
        count: The number of samples.
    """

    drawn: float
    drawn_known: float = math.nan
    drawn_idlg: float = math.nan
    count: int


@dataclass(frozen=True)
class Solved:
    """Private images in one network, and their recovered labels.

    Attributes:
        targets: The true labels (N, C).
        labels: The recovered labels (N, C).
        zero: Whether the gradient is zero (N,).
        class_by_idlg: The classes (N,) that iDLG names.
        seconds: The time of the exact solver (s).
    """

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
        """Whether each label is recovered, (N,)."""
        return metrics.label_error(self.labels, self.targets) < KNOWN

    @property
    def top(self) -> Tensor:
        """The class that has the largest share of each true label, (N,)."""
        return self.targets.argmax(dim=1)

    @property
    def counted(self) -> float:
        """The success rate in percent as the published code counts: a zero gradient is a success."""
        return percentage(self.right | self.zero)

    @property
    def idlg(self) -> float:
        """How often iDLG names the top class, in percent."""
        return percentage(self.class_by_idlg == self.top)


class OnNetwork(Experiment):
    """Recover the labels of single images in a random network; each `draw` has other parameters and images."""

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
    """Attack the first network or, if `draw` is not 0, a further one, for which only the success rate is measured."""

    def run(self) -> list[FirstNetwork | FurtherNetwork]:
        """Recover the labels, for the first network by the published search as well."""
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
    """Attack one of many random networks on a dataset of the parameter `varied`."""

    part: ClassVar[str] = VARIED

    def run(self) -> list[FurtherNetwork]:
        """Recover the labels, and return the success rates."""
        solved = self.solved()
        known = percentage(solved.right)
        return [FurtherNetwork(drawn=solved.counted, drawn_known=known, drawn_idlg=solved.idlg, count=self.samples)]


def _is_zero(gradients: Tensor) -> Tensor:
    return gradients.flatten(1).abs().amax(dim=1) == 0


def headline(record: Record) -> Headline:
    """Return the finding: the solver misses only labels that the gradient does not hold."""
    known = claims.judgements(record)
    imagenet, flowers = (known[f"label-accuracy-smoothing-{images}"] for images in ("imagenet", "flowers-17"))
    rows = _frame(record)
    solvable = (100 - rows["accuracy"] - rows["ambiguous"] - rows["zero"]).max()
    return Headline(
        f"From the gradient of one image in a ResNet50 with random weights, the server recovers {imagenet.text} of the "
        f"smoothed labels on ImageNet and {flowers.text} on Flowers-17; the gradients of the other samples do not "
        "determine the label.",
        true=bool(solvable < 0.05 and known["label-accuracy-silent"].agrees and imagenet.agrees and flowers.agrees),
        claim="label-accuracy-smoothing-imagenet",
        what="smoothed labels recovered from a ResNet50 with random weights, ImageNet images",
        figure=figure_statuses,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 1: the results of the exact solver.

    Rows: datasets with C classes, and kinds of label. Columns: the shares of labels recovered, ambiguous, and with a
    zero gradient; the number of wrong labels called unique; and the success rate as the published code counts.
    """
    return summary(
        _frame(record).astype({"classes": int}),
        {"images": "images", "classes": "classes", "labels": "labels"},
        {
            "labels recovered": only("accuracy", percent(1)),
            "ambiguous": only("ambiguous", percent(1)),
            "zero gradient": only("zero", percent(1)),
            "wrong but called unique": total("silent", ".0f"),
            "recovered, as the code counts": only("counted_zero", percent(1)),
        },
    )


def draws_table(record: Record) -> pd.DataFrame:
    """Return the success rates of further random networks, as the published code counts.

    Rows: datasets. Columns: the number of networks and, for each kind of label, mean ± standard deviation and the
    range.
    """
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
    return pd.DataFrame(lines).fillna(NOTHING)


def _frame(record: Record) -> pd.DataFrame:
    """Return the rows of the first network, with the datasets' titles."""
    frame = record.frame()
    frame = frame[frame["drawn"].isna()] if "drawn" in frame else frame
    return frame.assign(images=frame["dataset"].map(data.title))


def rival_table(record: Record) -> pd.DataFrame:
    """Compare the exact solver with other attacks on the same gradients.

    Rows: datasets and kinds of label. Columns: the shares of samples whose class the exact solver and iDLG name
    correctly, the success rate of the published search as its code counts, and the exact solver's time per sample (ms).
    """
    return summary(
        _frame(record),
        {"images": "images", "labels": "labels"},
        {
            "class right, exact solver": only("class_right", percent(1)),
            "class right, iDLG": among(only("idlg", percent(1)), labels="onehot"),
            "published search, as the code counts": joined(
                " of ", only("searched", percent()), only("searches", ".0f")
            ),
            "exact solver, time per sample (ms)": only("milliseconds", ".2g"),
        },
    )


def figure_statuses(record: Record) -> Figure:
    """Plot the percentage of samples recovered, ambiguous, with a zero gradient, and without a label, as stacked bars.

    One bar for each dataset and kind of label.
    """
    frame = _frame(record)
    parts = {"recovered": "accuracy", "ambiguous": "ambiguous", "zero gradient": "zero", "no label found": "missed"}
    return drawn(
        frame.assign(name=frame["images"] + ", " + frame["labels"], missed=frame["failed"] - frame["zero"]),
        stacked("name", parts),
        height=0.38 * len(frame) + 1.1,
        legend=4,
        xlabel="percent of samples",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["accuracy"].notna()]
    return collected(
        record, rows, "soft labels", average_of("accuracy", "labels recovered", "samples"), attack="exact solver",
        network=rows["network"], data=rows["dataset"], detail=rows["labels"] + " labels",
    )  # fmt: skip
