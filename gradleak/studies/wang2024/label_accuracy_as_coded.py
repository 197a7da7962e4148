"""Label accuracy, the networks as coded: soft labels again (Tables 1 and 2)

wang2024, section 4.1, Tables 1 and 2: a trained trunk under a random last layer, and a ResNet18 with a 3×3 stem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import claims, data, metrics, models, studies
from gradleak.labels import idlg, recover_soft_labels
from gradleak.labels.soft import search
from gradleak.leak import HeadLeaks, head_inputs
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show.drawn import drawn, scattered
from gradleak.show.headline import Headline
from gradleak.show.summaries import Measure, among, cell, mean, median, only, percent, select, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.last_layers import TRAINED
from gradleak.studies.shared.outcomes import Outcome, average_of, collected
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples
from gradleak.studies.shared.searched import KNOWN, Judged, judged, percentage, search_both
from gradleak.wording import counted

PLACE = "Tables 1 and 2"
EXACT, SEARCH = "exact", "search"
HEADS = {"torch": "as loaded", "uniform": "U(−½, ½)"}
# The network is trained with smoothed labels; mixed and one-hot labels are attacked on the same network.
RECIPE: dict[str, Any] = {"labels": "smoothing", "batch_size": 64, "learning_rate": 2e-3, "bias": False}
STEMS = {"resnet18": "ResNet18, 7×7 stem", "resnet18-cifar": "ResNet18, 3×3 stem"}


class Network(Form):
    """A network and the number of its training epochs."""

    network: str
    epochs: Whole = Field(ge=1, le=10_000)


class Parameters(studies.Parameters):
    """Parameters of the page: the networks of the published code, and the images for each."""

    datasets: list[str] = setting(
        ["photos"],
        paper=["tinyimagenet32", "flowers17", "imagenet-sample"],
        about="Table 1: datasets of the private images, test split",
    )
    trunk: str = setting(
        "small-cnn", paper=TRAINED, about="Table 1: the trained network whose last layer is replaced by a random one"
    )
    heads: list[Literal["torch", "uniform"]] = setting(
        ["torch", "uniform"],
        about="Table 1: distributions of the random last layer: as in the code (torch), or U(−0.5, 0.5) (uniform)",
    )
    draws: int = setting(2, paper=10, ge=1, le=1000, about="Table 1: random last layers, each with its own images")
    drawn: int = setting(
        10, paper=25, smallest=4, ge=2, le=100_000, about="Table 1: images per last layer and kind of label"
    )
    searched: int = setting(
        1, paper=10, ge=1, le=100_000, about="Table 1: number of these images on which the published search is run"
    )
    dataset: str = setting(
        "photos",
        paper="cifar10",
        about="Table 2: dataset; networks are trained on the training split, and the test split is private",
    )
    networks: list[Network] = setting(
        ["small-cnn/1", "small-cnn/2"],
        paper=["resnet18-cifar/3", "resnet18/3", "resnet18/12"],
        smallest=["small-cnn/1"],
        validate_default=True,
        about="Table 2: networks, written network/epochs of training",
    )
    samples: int = setting(
        50, paper=1000, smallest=10, ge=2, le=100_000, about="Table 2: single images per network and kind of label"
    )
    searches: int = setting(
        3,
        paper=100,
        smallest=2,
        ge=1,
        le=100_000,
        about="Table 2: number of these images on which the published search is run",
    )

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        trunks = [
            Sees(TRAINED, dataset, channels=3) if self.trunk == TRAINED else Sees(self.trunk, dataset, learns=dataset)
            for dataset in self.datasets
        ]
        return trunks + [Sees(one.network, self.dataset, learns=self.dataset) for one in self.networks]

    def experiments(self) -> Iterator[Experiment]:
        """Yield each kind of label, by dataset and last layer, and then by trained network."""
        for dataset, head, labels in product(self.datasets, self.heads, LABELS):
            yield DrawnHeads.of(self, dataset=dataset, head=head, labels=labels)
        for network, labels in product(self.networks, LABELS):
            yield TrainedNetwork.of(self, network=str(network), labels=labels)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        names = ", ".join(map(data.title, self.datasets))
        return (
            f"{self.draws} random last layers with {self.drawn} images for each kind of label, {names}; "
            f"{self.samples} images for each trained network, {data.title(self.dataset)}"
        )


class SolvedExactly(Judged):
    """The exact solver's results on one network; shares in percent.

    Attributes:
        draw: The number of the random last layer.
        test_accuracy: The network's test accuracy.
        zero: Gradients that are zero.
        counted_zero: Labels that are recovered or whose gradient is zero.
        idlg: Classes that iDLG names correctly; None if labels are not one-hot.
        certain: The mean of the network's largest class probability.
    """

    solver: str
    draw: int = 0
    test_accuracy: float = math.nan
    zero: float
    counted_zero: float
    idlg: float | None
    certain: float


class Searched(Row):
    """The published search's results on the first samples; shares in percent.

    Attributes:
        draw: The number of the random last layer.
        test_accuracy: The network's test accuracy.
        count: The number of samples.
        accuracy: Labels that are right.
        counted: Successes as the published code counts: an oracle accepts the scalar, or the gradient is zero.
        ended: Samples for which the search returns a scalar.
        out_of_reach: Samples whose true scalar is outside the range of the search.
        median_error: The median L1 error of the labels.
    """

    solver: str
    draw: int = 0
    test_accuracy: float = math.nan
    count: int
    accuracy: float
    counted: float
    ended: float
    out_of_reach: float
    median_error: float


class DrawnHeads(Experiment):
    """Attack random last layers on top of a trained network."""

    part: ClassVar[str] = "heads"
    dataset: str
    head: str
    labels: str
    trunk: str
    draws: int
    drawn: int
    searched: int

    def run(self) -> Iterator[SolvedExactly | Searched]:
        """Draw the last layers and their images, and recover the labels."""
        private = data.load(self.dataset, "test")
        body = self._trunk()
        for draw in range(1, self.draws + 1):
            inputs, targets = private_samples(private, self.labels, self.drawn, self.seed + draw)
            features, _ = head_inputs(body.to(self.device), inputs.to(self.device), chunk=50)
            layer = random_head(features.shape[1], private.classes, self.head, self.seed + draw)
            solved, searched = attacked(layer, features, targets, self.labels, self.searched, self.device)
            yield SolvedExactly.of(solved, draw=draw)
            yield Searched.of(searched, draw=draw)

    def _trunk(self) -> nn.Module:
        if self.trunk == TRAINED:
            return models.efficientnet_lite0()
        return _fitted(self.trunk, 1, self.dataset, self.seed, self.device).model


class TrainedNetwork(Experiment):
    """Attack a network whose layers are all trained."""

    part: ClassVar[str] = "trained"
    network: str
    labels: str
    dataset: str
    samples: int
    searches: int

    def run(self) -> list[SolvedExactly | Searched]:
        """Train the network, and recover the labels of its images."""
        form = Network.of(self.network)
        trained = _fitted(form.network, form.epochs, self.dataset, self.seed, self.device)
        inputs, targets = private_samples(data.load(self.dataset, "test"), self.labels, self.samples, self.seed)
        features, _ = head_inputs(trained.model.to(self.device), inputs.to(self.device))
        layer = trained.model.get_submodule("head")
        solved, searched = attacked(layer, features, targets, self.labels, self.searches, self.device)
        accuracy = 100 * trained.accuracy
        return [SolvedExactly.of(solved, test_accuracy=accuracy), Searched.of(searched, test_accuracy=accuracy)]


def random_head(features: int, classes: int, head: str, seed: int) -> nn.Linear:
    """Return a random last layer without a bias.

    Args:
        features: The number of its inputs.
        classes: The number of its outputs.
        head: "torch" for PyTorch's default initialisation, "uniform" for U(−½, ½) as the code draws untrained networks.
        seed: The seed of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(features, classes, bias=False)
        if head == "uniform":
            nn.init.uniform_(layer.weight, -0.5, 0.5)
    return layer


def _fitted(network: str, epochs: int, dataset: str, seed: int, device: str) -> training.Trained:
    recipe = training.Recipe(network=network, dataset=dataset, epochs=epochs, seed=seed, **RECIPE)
    return training.train(recipe, device=device)


def attacked(
    layer: nn.Module, features: Tensor, targets: Tensor, labels: str, searches: int, device: str
) -> tuple[SolvedExactly, Searched]:
    """Return the exact solver's results on all samples, and the published search's results on the first `searches`."""
    leaks, errors = observe_private(layer, features, targets, "float32", device)
    zero = leaks.weight_gradients.flatten(1).abs().amax(dim=1).cpu() == 0
    found = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=labels)
    right = metrics.label_error(found.labels.cpu(), targets) < KNOWN
    top = idlg(leaks.weight_gradients).cpu() == targets.argmax(dim=1)
    exact = SolvedExactly.of(
        judged(found.labels.cpu(), found.status, targets),
        solver=EXACT,
        zero=percentage(zero),
        # The published code returns 0 for a zero gradient and counts this as a success.
        counted_zero=percentage(right | zero),
        idlg=percentage(top) if labels == "onehot" else None,
        certain=percentage((errors.cpu() + targets).amax(dim=1)),
    )
    few = replace(leaks, weight_gradients=leaks.weight_gradients[:searches])
    return exact, _searched(few, targets[:searches], errors[:searches], labels, zero[:searches])


def _searched(leaks: HeadLeaks, targets: Tensor, errors: Tensor, labels: str, zero: Tensor) -> Searched:
    gradients, weight = leaks.weight_gradients.cpu(), leaks.weight.cpu()
    _, found = search_both(gradients, weight, labels)
    row = gradients.sum(dim=2).abs().argmax(dim=1, keepdim=True)
    truth = 1 / errors.cpu().gather(1, row)[:, 0]
    coefficient = search.COEFFICIENTS["mixup" if labels == "mixup" else "smoothing"]
    misses = metrics.label_error(found.labels, targets)
    return Searched(
        solver=SEARCH,
        count=len(gradients),
        accuracy=percentage(misses < KNOWN),
        counted=percentage(zero | metrics.oracle_success(found.scalars, truth, coefficient)),
        ended=percentage(found.ended),
        # Algorithm 1 stops before it reaches these scalars; the windows of the particle swarm are narrower still.
        out_of_reach=percentage((coefficient * truth).abs() > search.BOUND),
        median_error=float(misses.nanmedian()),
    )


def headline(record: Record) -> Headline:
    """Return the finding: the networks of the code do not stop the exact solver, but the search stops early on them."""
    known = claims.judgements(record)
    exact, right = known["as-coded-exact"], known["as-coded-search-early"]
    counted = known["as-coded-heads-as-loaded-published-search-smoothing-imagenet"]
    return Headline(
        f"With a random last layer on trained layers, the exact solver recovers {exact.text} of the labels; on "
        f"ImageNet {right.text} of the published search's smoothed and mixed labels are right, although the paper's "
        f"code counts {counted.text} of the smoothed ones as recovered.",
        true=bool(exact.agrees and right.agrees and (counted.value or 0) > (right.value or 0) + 50),
        claim="as-coded-heads-as-loaded-published-search-smoothing-imagenet",
        what="smoothed labels that the search recovers, counted as in the paper's code, ImageNet, random last layer",
        figure=figure_found,
        of="images",
    )


def heads_table(record: Record) -> pd.DataFrame:
    """Return Table 1 with a trained network below a random last layer.

    Rows: datasets, distributions of the last layer, and kinds of label. Columns: the paper's cell; the success rate of
    the exact solver, zero gradients included; that of the published search, as the paper counts and
    by the label itself; the
    median label error L_r of the search; and the mean of the largest class probability.
    """
    cells = claims.published("label-accuracy", "drawn", ("dataset", "labels"))
    cells |= claims.published("label-accuracy", "accuracy", ("dataset", "labels"))
    # Tiny ImageNet at 32 pixels replaces CIFAR-100, so CIFAR-100's published cells are found under its name too.
    cells |= {("tinyimagenet32", kind): value for kind, value in _cifar100().items()}
    rows = record.rows(DrawnHeads)
    rows["title"], rows["layer"] = rows["dataset"].map(data.title), rows["head"].map(HEADS)
    rows["published"] = [_cell(cells.get(place)) for place in zip(rows["dataset"], rows["labels"], strict=True)]
    return summary(
        rows,
        {"images": "title", "last layer": "layer", "labels": "labels"},
        {
            "published": only("published"),
            "exact solver (%)": among(_percent("counted_zero"), solver=EXACT),
            "search, counted as published (%)": among(_percent("counted"), solver=SEARCH),
            "search, label right (%)": among(_percent("accuracy"), solver=SEARCH),
            "search, median L_r": among(median("median_error", ".0e"), solver=SEARCH),
            "probability of the most likely class (%)": among(mean("certain", ".1f"), solver=EXACT),
        },
    )


def _cifar100() -> dict[str, Any]:
    """Return Table 1's published cells for CIFAR-100, by kind of label."""
    found = {}
    for claim in claims.load("label-accuracy"):
        where = claim.measure.where
        if "cifar100" in where.get("dataset", ()) and claim.measure.column in ("drawn", "accuracy"):
            found[where["labels"]] = claim.published
    return found


def _cell(value: Any, text: str = "{:g} %") -> str:
    return "–" if value is None else cell(value, text)


def _percent(column: str) -> Measure:
    """Return a measure: the mean of a column in percent and, for several rows, its standard deviation."""

    def measured(rows: pd.DataFrame) -> str:
        spread = f" ± {rows[column].std():.1f}" if len(rows) > 1 else ""
        return f"{rows[column].mean():.1f}{spread}"

    return measured


def trained_table(record: Record) -> pd.DataFrame:
    """Return Table 2's ResNet18 with both stems.

    Rows: networks with their test accuracies, and kinds of label. Columns: the paper's cell; the success rates of the
    exact solver, and of the published search as the paper counts and by the label itself; the share of true scalars
    out of its bounds; and the mean label error L_r of the exact solver, ours and the paper's.
    """
    published = claims.published("label-accuracy-intense", "oracle", ("row", "labels"))
    errors = claims.published("label-accuracy-intense", "mean_error", ("row", "labels"))
    rows = record.rows(TrainedNetwork)
    places = [
        (f"{dataset}/resnet18/trained", labels) for dataset, labels in zip(rows["dataset"], rows["labels"], strict=True)
    ]
    rows["name"] = rows["network"].map(_network_name)
    rows["tested"] = rows["test_accuracy"].map(percent(1))
    rows["published"] = [_cell(published.get(place)) for place in places]
    rows["published_error"] = [_cell(errors.get(place), ".1e") for place in places]
    return summary(
        rows,
        {"network": "name", "test accuracy": "tested", "labels": "labels"},
        {
            "published": only("published"),
            "exact solver": among(only("accuracy", percent(1)), solver=EXACT),
            "search, counted as published": among(only("counted", percent()), solver=SEARCH),
            "search, label right": among(only("accuracy", percent()), solver=SEARCH),
            "true scalar out of bounds": among(only("out_of_reach", percent()), solver=SEARCH),
            "exact solver, mean L_r": among(only("mean_error", ".1e"), solver=EXACT),
            "published L_r": only("published_error"),
        },
    )


def _network_name(network: str) -> str:
    name, epochs = network.split("/")
    return f"{STEMS.get(name, name)}, {counted(int(epochs), 'epoch')}"


def figure_found(record: Record) -> Figure:
    """Plot the share of labels that the published search recovers against the mean largest class probability.

    One panel for each kind of label, one point for each network or random last layer. The search has no oracle.
    """
    exact, search = (select(record.frame(), solver=solver).reset_index(drop=True) for solver in (EXACT, SEARCH))
    kinds = {head: f"random last layer, {words}" for head, words in HEADS.items()} | {"": "all layers trained"}
    heads = exact.get("head", pd.Series("", exact.index)).astype(object).fillna("")
    return drawn(
        exact.assign(found=search["accuracy"], kind=heads.map(kinds)),
        scattered("certain", "found", by="kind", order=list(kinds.values()), markersize=5, alpha=0.8),
        panels="labels",
        legend=len(kinds),
        xlabel="top-class probability, %",
        ylabel="labels recovered, %",
        xscale="log",
        xticks=(0.1, 1, 10, 100),
        xticklabels=(0.1, 1, 10, 100),
        xlim=(0.1, 130),
        ylim=(-4, 104),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    heads = rows["part"] == "heads"
    networks = rows["trunk"].where(heads, rows["network"].str.partition("/")[0])
    epochs = rows["network"].str.partition("/")[2]
    details = [
        f"{labels} labels, " + (f"trained trunk, new {head} head" if new else f"after {passes} epochs")
        for labels, new, head, passes in zip(rows["labels"], heads, rows["head"], epochs, strict=True)
    ]
    return collected(
        record, rows, "soft labels", average_of("accuracy", "labels recovered", "samples"),
        attack=["exact solver" if name == "exact" else "published search" for name in rows["solver"]], network=networks,
        training=["untrained" if new else "trained" for new in heads], data=rows["dataset"], detail=details,
    )  # fmt: skip
