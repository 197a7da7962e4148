"""Label accuracy: soft labels from the gradient of one image

wang2024, section 4.1, Tables 1 and 2: labels recovered from random and from trained networks, by three solvers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import claims, data, metrics, models, studies
from gradleak.labels import idlg, recover_soft_labels
from gradleak.labels.soft import search
from gradleak.leak import HeadLeaks, head_inputs, observe_heads
from gradleak.models import training
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import drawn, scattered, stacked
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line, listed
from gradleak.show.summaries import (
    NOTHING,
    Measure,
    among,
    cell,
    cells,
    median,
    only,
    percent,
    ranged,
    select,
    spread,
    spread_if_many,
    summary,
    total,
)
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import searched
from gradleak.studies.shared.attacked_networks import AttackedNetwork, built
from gradleak.studies.shared.attacked_networks import network as attacked_network
from gradleak.studies.shared.last_layers import TRAINED
from gradleak.studies.shared.outcomes import Outcome, average_of, collected
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples
from gradleak.studies.shared.searched import KNOWN, Search, judged, percentage, search_both
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Section 4.1, Tables 1 and 2"
# Limit on gradient entries in memory; a ResNet50's last layer for 1000 classes has two million entries per sample.
CHUNK_ELEMENTS = 2**25
EXACT, SEARCH = "exact", "search"
HEADS = {"torch": "as loaded", "uniform": "U(−½, ½)"}
# The training of the layers below a random last layer.
RECIPE: dict[str, Any] = {"labels": "smoothing", "batch_size": 64, "learning_rate": 2e-3, "bias": False}
# The solvers' names in tables and figures.
SOLVERS = {
    "exact": "exact solver",
    "lbfgs": "Algorithm 1 (L-BFGS)",
    "lbfgs, then pso": "Algorithm 1, then 2",
    "pso": "Algorithm 2 (swarm)",
}


class Parameters(studies.Parameters):
    """Parameters of the page: the networks of both tables, and the images for each."""

    datasets: list[str] = setting(paper=["tinyimagenet32", "flowers17", "imagenet-sample"])
    network: str
    samples: int = setting(paper=1000, smallest=60, ge=2, le=100_000)
    searches: int = setting(paper=100, ge=1, le=100_000)
    draws: int = setting(paper=10, ge=0, le=1000)
    drawn: int = setting(paper=25, smallest=10, ge=2, le=100_000)
    varied: str = setting(paper="flowers17")
    varied_draws: int = setting(paper=30, ge=0, le=1000)
    varied_drawn: int = setting(paper=34, smallest=10, ge=2, le=100_000)
    trunk: str = setting(paper=TRAINED)
    heads: list[Literal["torch", "uniform"]]
    head_draws: int = setting(paper=10, ge=1, le=1000)
    head_drawn: int = setting(paper=25, smallest=6, ge=2, le=100_000)
    head_searches: int = setting(paper=10, smallest=2, ge=1, le=100_000)
    rows: list[AttackedNetwork] = setting(
        paper=[
            *(f"cifar10/{name}" for name in ("lenet/untrained", "lenet/trained", "resnet18/untrained")),
            *(f"cifar10/{name}" for name in ("resnet18/trained", "resnet20/trained")),
            *(f"flowers17/{name}" for name in ("alexnet/untrained", "alexnet/trained", "resnet18/untrained")),
            "flowers17/resnet18/trained",
        ],
        smallest=["photos/lenet/untrained"],
        validate_default=True,
    )
    network_samples: int = setting(paper=1000, smallest=60, ge=2, le=100_000)
    network_doubles: int = setting(paper=200, ge=2, le=100_000)
    network_searches: int = setting(paper=200, ge=1, le=100_000)
    network_swarms: int = setting(paper=20, ge=1, le=100_000)

    def sees(self) -> list[Sees]:
        """Return the networks of both tables, and the images that they see."""
        random = [Sees(self.network, dataset) for dataset in (*self.datasets, self.varied)]
        trunks = [
            Sees(TRAINED, dataset, channels=3) if self.trunk == TRAINED else Sees(self.trunk, dataset, learns=dataset)
            for dataset in self.datasets
        ]
        return [*random, *trunks, *(one.sees for one in self.rows)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the experiments of Table 1, by dataset and kind of label, and then those of Table 2, by network."""
        for dataset, labels in product(self.datasets, LABELS):
            yield RandomNetwork.of(self, dataset=dataset, labels=labels)
        fewer = {"samples": self.drawn, "searches": 0}
        for draw, dataset, labels in product(range(1, self.draws + 1), self.datasets, LABELS):
            if labels != "onehot":
                yield RandomNetwork.of(self, dataset=dataset, labels=labels, draw=draw, **fewer)
        fewer = {"samples": self.varied_drawn, "searches": 0}
        for draw, labels in product(range(1, self.varied_draws + 1), LABELS):
            yield VariedNetwork.of(self, dataset=self.varied, labels=labels, draw=draw, **fewer)
        sizes = {"draws": self.head_draws, "drawn": self.head_drawn, "searched": self.head_searches}
        for dataset, head, labels in product(self.datasets, self.heads, LABELS):
            yield DrawnHeads.of(self, dataset=dataset, head=head, labels=labels, **sizes)
        sizes = {name: getattr(self, f"network_{name}") for name in ("samples", "doubles", "searches", "swarms")}
        for row, labels in product(self.rows, LABELS):
            yield NetworkAttacked.of(self, row=str(row), labels=labels, **sizes)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return (
            f"{self.samples} images for each dataset and kind of label, {', '.join(map(data.title, self.datasets))}; "
            f"{self.network_samples} images for each of {len(self.rows)} networks"
        )


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
    def counted(self) -> float:
        """The success rate in percent as the published code counts: a zero gradient is a success."""
        return percentage(self.right | self.zero)

    @property
    def idlg(self) -> float:
        """How often iDLG names the class with the largest share of the label, in percent."""
        return percentage(self.class_by_idlg == self.targets.argmax(dim=1))


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

    part: ClassVar[str] = "random"

    def run(self) -> list[Columns]:
        """Recover the labels, for the first network by the published search as well."""
        solved = self.solved()
        if self.draw:
            return [{"drawn": solved.counted, "count": self.samples}]
        labels = solved.labels
        class_right = labels.nan_to_num(-1).argmax(dim=1).eq(solved.targets.argmax(dim=1)) & ~labels[:, 0].isnan()
        few = solved.targets[: self.searches]
        leaks = observe_heads(solved.model, solved.inputs[: self.searches].to(self.device), few.to(self.device))
        gradients = leaks.weight_gradients.cpu()
        _, found = search_both(gradients, leaks.weight.cpu(), self.labels)
        right = metrics.label_error(found.labels, few) < KNOWN
        return [
            judged(labels, solved.status, solved.targets)
            | {
                "classes": solved.targets.shape[1],
                "zero": percentage(solved.zero),
                "counted_zero": solved.counted,
                "class_right": percentage(class_right),
                "idlg": solved.idlg,
                "milliseconds": 1e3 * solved.seconds / self.samples,
                "searches": len(gradients),
                "searched": percentage(right | _is_zero(gradients)),
            }
        ]


class VariedNetwork(OnNetwork):
    """Attack one of many random networks on a single dataset."""

    part: ClassVar[str] = "varied"

    def run(self) -> list[Columns]:
        """Recover the labels, and return the success rates."""
        solved = self.solved()
        known = percentage(solved.right)
        return [{"drawn": solved.counted, "drawn_known": known, "drawn_idlg": solved.idlg, "count": self.samples}]


def _is_zero(gradients: Tensor) -> Tensor:
    return gradients.flatten(1).abs().amax(dim=1) == 0


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

    def run(self) -> Iterator[Columns]:
        """Draw the last layers and their images, and recover the labels."""
        private = data.load(self.dataset, "test")
        body = self._trunk()
        for draw in range(1, self.draws + 1):
            inputs, targets = private_samples(private, self.labels, self.drawn, self.seed + draw)
            features, _ = head_inputs(body.to(self.device), inputs.to(self.device), chunk=50)
            layer = random_head(features.shape[1], private.classes, self.head, self.seed + draw)
            for row in under_random_head(layer, features, targets, self.labels, self.searched, self.device):
                yield {"draw": draw} | row

    def _trunk(self) -> nn.Module:
        if self.trunk == TRAINED:
            return models.efficientnet_lite0()
        recipe = training.Recipe(network=self.trunk, dataset=self.dataset, epochs=1, seed=self.seed, **RECIPE)
        return training.train(recipe, device=self.device).model


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


def under_random_head(
    layer: nn.Module, features: Tensor, targets: Tensor, labels: str, searches: int, device: str
) -> tuple[Columns, Columns]:
    """Return the exact solver's results on all samples, and the published search's results on the first `searches`."""
    leaks, errors = observe_private(layer, features, targets, "float32", device)
    zero = _is_zero(leaks.weight_gradients).cpu()
    found = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=labels)
    right = metrics.label_error(found.labels.cpu(), targets) < KNOWN
    top = idlg(leaks.weight_gradients).cpu() == targets.argmax(dim=1)
    exact = judged(found.labels.cpu(), found.status, targets) | {
        "solver": EXACT,
        "zero": percentage(zero),
        # The published code returns 0 for a zero gradient and counts this as a success.
        "counted_zero": percentage(right | zero),
        "idlg": percentage(top) if labels == "onehot" else None,
        "certain": percentage((errors.cpu() + targets).amax(dim=1)),
    }
    few = replace(leaks, weight_gradients=leaks.weight_gradients[:searches])
    _, by_search = search_both(few.weight_gradients.cpu(), few.weight.cpu(), labels)
    row, misses, counted = _by_search(by_search, few, errors[:searches], targets[:searches], labels)
    return exact, row | {
        "solver": SEARCH,
        "counted": percentage(zero[:searches] | counted),
        "ended": percentage(by_search.ended),
        "median_error": float(misses.nanmedian()),
    }


def _by_search(
    found: Search, leaks: HeadLeaks, errors: Tensor, targets: Tensor, labels: str
) -> tuple[Columns, Tensor, Tensor]:
    """Return the results of a published search, the L1 errors of its labels (N,), and which scalars its code accepts.

    The code compares the scalar with the true one.
    """
    count = len(found.scalars)
    row = leaks.weight_gradients[:count].cpu().sum(dim=2).abs().argmax(dim=1, keepdim=True)
    truth = 1 / errors[:count].cpu().gather(1, row)[:, 0]
    coefficient = search.COEFFICIENTS["mixup" if labels == "mixup" else "smoothing"]
    misses = metrics.label_error(found.labels, targets[:count].cpu())
    shares: Columns = {
        "count": count,
        "accuracy": percentage(misses < KNOWN),
        # Algorithm 1 stops before it reaches these scalars; the windows of the particle swarm are narrower still.
        "out_of_reach": percentage((coefficient * truth).abs() > search.BOUND),
    }
    return shares, misses, metrics.oracle_success(found.scalars, truth, coefficient)


class NetworkAttacked(Experiment):
    """Attack a network's private samples with every solver, for one kind of label."""

    part: ClassVar[str] = "networks"
    row: str
    labels: str
    samples: int
    doubles: int
    searches: int
    swarms: int

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        line = AttackedNetwork.of(self.row)
        return [line.dataset, line.training] if line.stage == "trained" else [line.dataset]

    def run(self) -> Iterator[Columns]:
        """Recover the labels by the exact solver, by the searches, and by the exact solver from float64 gradients."""
        line = AttackedNetwork.of(self.row)
        private = data.load(line.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        model, accuracy = attacked_network(line, self.labels, private, self.seed, self.device)
        about = {"dataset": line.dataset, "network": line.network, "stage": line.stage, "test_accuracy": accuracy}
        leaks = observe_heads(model.to(self.device), inputs.to(self.device), targets.to(self.device))
        yield about | self._solved(leaks, targets, "float32")
        few, own = inputs[: self.searches], targets[: self.searches]
        leaks, errors = observe_private(model, few, own, "float32", self.device)
        for name, found in self._found(leaks):
            row, misses, counted = _by_search(found, leaks, errors, own, self.labels)
            right = misses < KNOWN
            yield (
                about
                | row
                | {
                    "solver": name,
                    "dtype": "float32",
                    "oracle": percentage(counted),
                    "failed": percentage(~found.ended),
                    "silent": int((found.ended & ~right).sum()),
                    "mean_error": float(misses[right].mean()) if right.any() else None,
                    "milliseconds": 1e3 * found.seconds / len(misses),
                }
            )
        few, own = inputs[: self.doubles], targets[: self.doubles]
        leaks, _ = observe_private(model, few, own, "float64", self.device)
        yield about | self._solved(leaks, own, "float64")

    def _solved(self, leaks: HeadLeaks, targets: Tensor, dtype: str) -> Columns:
        started = time.perf_counter()
        found = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=self.labels)
        milliseconds = 1e3 * (time.perf_counter() - started) / len(found)
        right = judged(found.labels, found.status, targets)
        return right | {"solver": EXACT, "dtype": dtype, "milliseconds": milliseconds}

    def _found(self, leaks: HeadLeaks) -> Iterator[tuple[str, Search]]:
        """Run L-BFGS, L-BFGS followed by a particle swarm for the samples where it fails, and the swarm alone."""
        gradients, weight = leaks.weight_gradients.cpu(), leaks.weight.cpu()
        first, both = search_both(gradients, weight, self.labels)
        yield "lbfgs", first
        yield "lbfgs, then pso", both
        yield "pso", searched.search(gradients[: self.swarms], weight, self.labels, "pso")


def headline(record: Record) -> Headline:
    """Return the finding: the exact solver misses only labels that the gradient does not hold."""
    known = claims.judgements(record)
    least, imagenet = known["label-accuracy-intense-above"], known["label-accuracy-smoothing-imagenet"]
    rows = _solved_exactly(record)
    rows = rows[rows["labels"] != "onehot"]
    certain = rows["network"].eq("alexnet") & rows["stage"].eq("untrained")
    first = _first(record)
    missed = (100 - first["accuracy"] - first["ambiguous"] - first["zero"]).max()
    return Headline(
        f"The exact solver recovers {imagenet.text} of the smoothed labels of ImageNet in a random ResNet50 and all "
        f"{rows['count'][~certain].sum():,} soft labels on the networks of Table 2, except on the untrained AlexNet "
        f"(at least {least.text}); the other gradients do not determine the label.",
        true=bool(
            missed < 0.05
            and known["label-accuracy-silent"].agrees
            and imagenet.agrees
            and (rows["accuracy"][~certain] == 100).all()
            and least.value == rows.loc[certain, "accuracy"].min()
            and rows["silent"].sum() == 0
            and rows["failed"].max() == 0
        ),
        claim="label-accuracy-intense-above",
        what="least share of soft labels recovered over all networks of Table 2 (the untrained AlexNet, mixup)",
        figure=figure_recovered,
        of="labels",
    )


def _first(record: Record) -> pd.DataFrame:
    """Return the rows of the first random network, with the datasets' titles."""
    frame = record.rows(RandomNetwork)
    frame = frame[frame["drawn"].isna()] if "drawn" in frame else frame
    return frame.assign(images=frame["dataset"].map(data.title))


def _solved_exactly(record: Record, dtype: str = "float32") -> pd.DataFrame:
    """Return the rows of the exact solver on the networks of Table 2."""
    return select(record.rows(NetworkAttacked), solver=EXACT, dtype=dtype)


def random_table(record: Record) -> pd.DataFrame:
    """Return Table 1: the exact solver and other attacks on the first random network, by dataset and kind of label."""
    shares = ("accuracy", "ambiguous", "zero", "silent", "counted_zero", "class_right")
    rivals = {COLUMNS["idlg"].head: among(only("idlg", COLUMNS["idlg"].text), labels="onehot")}
    return summary(
        _first(record).astype({"classes": int}),
        {"images": "images", "classes": "classes", "labels": "labels"},
        cells(COLUMNS, *shares) | rivals | cells(COLUMNS, "searched"),
    )


def draws_table(record: Record) -> pd.DataFrame:
    """Return the success rates of further random networks, as the published code counts, by dataset."""
    rows = record.frame()
    rows = rows[rows["part"].isin((RandomNetwork.part, VariedNetwork.part)) & rows["draw"].gt(0)]
    many = rows.loc[rows["part"] == VariedNetwork.part, "dataset"].unique()
    rows = rows[(rows["part"] == VariedNetwork.part) | ~rows["dataset"].isin(many)]
    rate = ranged(spread("drawn", ".1f"), "drawn", ".0f")
    return summary(
        rows.assign(images=rows["dataset"].map(data.title)),
        {"images": "images"},
        {"networks": lambda own: str(own["draw"].nunique())} | {kind: among(rate, labels=kind) for kind in LABELS},
    )


def heads_table(record: Record) -> pd.DataFrame:
    """Return Table 1 with a trained network below a random last layer, by dataset, last layer and kind of label."""
    rows = record.rows(DrawnHeads)
    exact, by_search = ({"solver": solver} for solver in (EXACT, SEARCH))
    return summary(
        rows.assign(images=rows["dataset"].map(data.title), layer=rows["head"].map(HEADS)),
        {"images": "images", "last layer": "layer", "labels": "labels"},
        {
            "exact solver (%)": among(spread_if_many("accuracy", ".1f"), **exact),
            "search, counted with the true scalar (%)": among(spread_if_many("counted", ".1f"), **by_search),
            "search, label right (%)": among(spread_if_many("accuracy", ".1f"), **by_search),
            "search, median L_r": among(median("median_error", ".0e"), **by_search),
            COLUMNS["certain"].head: among(spread_if_many("certain", ".1f"), **exact),
        },
    )


def networks_table(record: Record) -> pd.DataFrame:
    """Return Table 2: the exact solver and the published search, by network and kind of label."""
    rows = record.rows(NetworkAttacked)
    accuracy = rows["test_accuracy"].map(lambda share: "" if pd.isna(share) else f" ({share:.0%})")
    exact = cells(COLUMNS, "accuracy", "silent", "mean_error", "largest_error")
    double = cells(COLUMNS, "mean_error", head="{}, float64")
    by_search = cells(COLUMNS, "accuracy", "oracle", "out_of_reach", "silent", head="search: {}")
    return summary(
        rows.assign(images=rows["dataset"].map(data.title), name=rows["network"] + ", " + rows["stage"] + accuracy),
        {"images": "images", "network": "name", "labels": "labels"},
        {head: among(measure, solver=EXACT, dtype="float32") for head, measure in exact.items()}
        | {head: among(measure, solver=EXACT, dtype="float64") for head, measure in double.items()}
        | {head: among(measure, solver="lbfgs, then pso") for head, measure in by_search.items()},
    )


def solver_table(record: Record) -> pd.DataFrame:
    """Compare the solvers over all networks of Table 2, by kind of label."""
    rows = select(record.rows(NetworkAttacked), dtype="float32")
    exact = select(rows, solver=EXACT).set_index(["row", "labels"])["milliseconds"]
    rows = rows.join(exact.rename("exact_milliseconds"), on=["row", "labels"])
    return summary(
        rows.assign(slower=rows["milliseconds"] / rows["exact_milliseconds"], name=rows["solver"].map(SOLVERS)),
        {"labels": "labels", "solver": "name"},
        {
            "samples": total("count", ".0f"),
            "labels recovered": _over_samples("accuracy"),
            "counted with the true scalar": _over_samples("oracle"),
            "wrong, not noticed": total("silent", ".0f"),
            "time per sample (ms)": _over_samples("milliseconds"),
            "time relative to the exact solver, median": median("slower", ",.0f"),
        },
    )


def _over_samples(column: str) -> Measure:
    """Return a measure: the mean of a column over all samples of all rows, a dash if the column is missing."""
    text = ".3g" if column == "milliseconds" else percent(1)

    def measured(rows: pd.DataFrame) -> str:
        weight = rows["count"] / rows["count"].sum()
        return NOTHING if rows[column].isna().all() else cell((rows[column] * weight).sum(), text)

    return measured


def figure_statuses(record: Record) -> Figure:
    """Plot the percentage of samples recovered, ambiguous, with a zero gradient, and without a label, as stacked bars.

    One bar for each dataset and kind of label.
    """
    frame = _first(record)
    parts = {"recovered": "accuracy", "ambiguous": "ambiguous", "zero gradient": "zero", "no label found": "missed"}
    return drawn(
        frame.assign(name=frame["images"] + ", " + frame["labels"], missed=frame["failed"] - frame["zero"]),
        stacked("name", parts),
        height=0.38 * len(frame) + 1.1,
        legend=4,
        xlabel="percent of samples",
    )


def figure_heads(record: Record) -> Figure:
    """Plot the share of labels that the published search recovers against the mean largest class probability.

    One panel for each kind of label, one point for each random last layer. The search has no oracle.
    """
    rows = record.rows(DrawnHeads)
    exact, by_search = (select(rows, solver=solver).reset_index(drop=True) for solver in (EXACT, SEARCH))
    kinds = {head: f"random last layer, {words}" for head, words in HEADS.items()}
    return drawn(
        exact.assign(found=by_search["accuracy"], kind=exact["head"].map(kinds)),
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


def figure_recovered(record: Record) -> Figure:
    """Plot the percentage of labels recovered by the exact solver and by the published search, by network.

    One panel for each kind of label. Neither attack sees the truth.
    """
    rows = select(record.rows(NetworkAttacked), dtype="float32")
    networks = list(dict.fromkeys(rows["row"]))
    looks = {EXACT: ("o", figures.COLOURS[0], 7.0), "lbfgs, then pso": ("D", figures.COLOURS[1], 4.5)}
    figure, axes = figures.panels(1, len(LABELS), height=0.36 * len(networks) + 1.3, sharey=True)
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for solver, (marker, colour, size) in looks.items():
            own = select(rows, labels=labels, solver=solver)
            places = [networks.index(name) for name in own["row"]]
            name = "exact solver" if solver == EXACT else "published search (Algorithm 1, then 2)"
            axis.plot(own["accuracy"], places, marker, color=colour, markersize=size, label=name)
        axis.set(title=labels, xlabel="labels recovered, %", xlim=(rows["accuracy"].min() - 4, 102))
        axis.grid(visible=False, axis="y")
    axes[0][0].set_yticks(range(len(networks)), _names(rows.drop_duplicates("row")))
    axes[0][0].invert_yaxis()
    figures.legend_below(figure, 2)
    return figure


def figure_errors(record: Record) -> Figure:
    """Plot the L1 label error of every network, mean (points) and largest (ticks), for both precisions.

    One panel for each kind of label. Only labels that the exact solver calls unique count.
    """
    networks = _solved_exactly(record)["row"].nunique()
    figure, axes = figures.panels(1, len(LABELS), height=0.42 * networks + 1.2, sharey=True)
    for axis, labels in zip(axes[0], LABELS, strict=True):
        for index, dtype in enumerate(("float32", "float64")):
            rows = select(_solved_exactly(record, dtype), labels=labels)
            places = range(len(rows))
            # The error of one-hot labels is exactly 0; it is drawn at the end of the logarithmic axis.
            mean, largest = (rows[name].astype(float).clip(lower=1e-17) for name in ("mean_error", "largest_error"))
            colour = figures.COLOURS[2 * index]
            axis.hlines(places, mean, largest, color=colour, linewidth=1.2)
            axis.plot(mean, places, "o", color=colour, label=f"{dtype}, mean")
            axis.plot(largest, places, "|", color=colour, markersize=9, label=f"{dtype}, largest")
        axis.set(title=labels, xscale="log", xlim=(3e-18, 3e-2), xlabel="label error L_r (L1)")
        axis.set_yticks(range(len(rows)), _names(rows))
    axes[0][0].invert_yaxis()
    figures.legend_below(figure, 4)
    return figure


def _names(rows: pd.DataFrame) -> list[str]:
    return (rows["stage"] + " " + rows["network"] + ", " + rows["dataset"].map(data.title)).tolist()


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    smoothed, mixed = (line(solver_table(record), labels, "exact solver") for labels in ("smoothing", "mixup"))
    return Leaks(
        "the soft label",
        f"one sample; {listed(record.rows(NetworkAttacked)['network'])}",
        f"{smoothed['labels recovered']} of {smoothed['samples']} smoothed labels, {mixed['labels recovered']} of "
        f"{mixed['samples']} mixed labels",
        f"{smoothed['time per sample (ms)']} ms elapsed",
        kind="soft labels",
        attack="exact solver",
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["accuracy"].notna()]
    heads, networks = rows["part"] == DrawnHeads.part, rows["part"] == NetworkAttacked.part
    solvers = rows["solver"].fillna(EXACT)
    attacks = solvers.map({EXACT: "exact solver", SEARCH: "published search"})
    layers = rows["head"].map(lambda head: f", trained trunk, new {head} head", na_action="ignore").fillna("")
    return collected(
        record, rows, "soft labels", average_of("accuracy", "labels recovered", "samples"),
        attack=attacks.fillna("published search, " + solvers), network=rows["trunk"].where(heads, rows["network"]),
        training=rows["stage"].where(networks, "untrained"), data=rows["dataset"],
        client=rows["dtype"].where(networks, "float32"), detail=rows["labels"] + " labels" + layers,
    )  # fmt: skip
