"""Label accuracy: soft labels from the gradient of one image

wang2024, section 4.1, Tables 1 and 2: labels recovered from random and from trained networks, by three solvers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from gradleak import augment, claims, data, metrics, models, studies
from gradleak.labels import idlg, recover_soft_labels
from gradleak.labels.soft.search import BOUND, COEFFICIENTS
from gradleak.leak import HeadLeaks, head_inputs, observe_heads
from gradleak.models import training
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, named_lines, scattered
from gradleak.show.summary import Leaks, Summary, listed
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import STAGES, AttackedNetwork, NamedNetwork, built, network
from gradleak.studies.shared.last_layers import TRAINED
from gradleak.studies.shared.outcomes import average_of, collected, wilson
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples, soft_labels
from gradleak.studies.shared.searched import KNOWN, Search, judged, percentage, search, search_both
from gradleak.wording import label_kind

PLACE = "Section 4.1, Tables 1 and 2"
# Limit on gradient entries in memory; a ResNet50's last layer for 1000 classes has two million entries per sample.
CHUNK_ELEMENTS = 2**25
EXACT, SEARCH, BOTH = "exact", "search", "lbfgs, then pso"
# Distributions of a random last layer: as in the code, and U(−½, ½).
HEADS = ("torch", "uniform")
# The networks of Table 2 with their private images.
TABLE_2 = [
    *(("cifar10", network) for network in ("lenet", "resnet18", "resnet18-cifar", "resnet20")),
    *(("flowers17", network) for network in ("alexnet", "resnet18")),
]
ONLY_TRAINED = ("resnet18-cifar", "resnet20")
# The solvers' names in figures.
SOLVERS = {EXACT: "exact solver", BOTH: "published search (Algorithm 1, then 2)"}


class Parameters(studies.Parameters):
    """Parameters of the page: the networks of both tables, and the images for each."""

    datasets: list[str] = setting(paper=["cifar100", "flowers17", "imagenet-sample"])
    network: str
    whole: str = setting(paper="cifar10-jpeg")
    subsets: list[int] = setting(paper=[500, 1000], smallest=[60])
    samples: int = setting(paper=1000, smallest=60, ge=2, le=100_000)
    searches: int = setting(paper=100, ge=1, le=100_000)
    varied: list[str] = setting(paper=["cifar100", "flowers17"])
    varied_draws: int = setting(paper=30, ge=1, le=1000)
    varied_drawn: int = setting(paper=1000, smallest=10, ge=2, le=100_000)
    trunk: str = setting(paper=TRAINED)
    head_datasets: list[str] = setting(paper=["flowers17", "imagenet-sample"])
    head_draws: int = setting(paper=10, ge=1, le=1000)
    head_drawn: int = setting(paper=25, smallest=6, ge=2, le=100_000)
    head_searches: int = setting(paper=10, smallest=2, ge=1, le=100_000)
    rows: list[AttackedNetwork] = setting(
        paper=[
            {"dataset": dataset, "network": network, "stage": stage}
            for dataset, network in TABLE_2
            for stage in STAGES
            if stage == "trained" or network not in ONLY_TRAINED
        ],
        smallest=[{"dataset": "photos", "network": "lenet", "stage": "untrained"}],
    )
    network_samples: int = setting(paper=1000, smallest=60, ge=2, le=100_000)
    network_doubles: int = setting(paper=200, ge=2, le=100_000)
    network_searches: int = setting(paper=200, ge=1, le=100_000)
    network_swarms: int = setting(paper=20, ge=1, le=100_000)

    def sees(self) -> list[Sees]:
        """Return the networks of both tables, and the images that they see."""
        random = [Sees(self.network, dataset) for dataset in (*self.datasets, self.whole, *self.varied)]
        trunks = [
            Sees(TRAINED, dataset, channels=3) if self.trunk == TRAINED else Sees(self.trunk, dataset, learns=dataset)
            for dataset in self.head_datasets
        ]
        return [*random, *trunks, *(row.sees for row in self.rows)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the experiments of Table 1, by dataset and kind of label, then those of Table 2, by network, and then
        those of Table 1 on further networks.
        """
        for dataset, labels in product(self.datasets, LABELS):
            yield RandomNetwork.of(self, dataset=dataset, labels=labels)
        for labels in LABELS:
            yield Subsets.of(self, dataset=self.whole, labels=labels)
        sizes = {"draws": self.head_draws, "drawn": self.head_drawn, "searched": self.head_searches}
        for dataset, head, labels in product(self.head_datasets, HEADS, LABELS):
            yield DrawnHeads.of(self, dataset=dataset, head=head, labels=labels, **sizes)
        sizes = {name: getattr(self, f"network_{name}") for name in ("samples", "doubles", "searches", "swarms")}
        for row, labels in product(self.rows, LABELS):
            yield NetworkAttacked.of(self, row=row, labels=labels, **sizes)
        fewer = {"samples": self.varied_drawn, "searches": 0}
        for dataset, draw, labels in product(self.varied, range(1, self.varied_draws + 1), LABELS):
            yield VariedNetwork.of(self, dataset=dataset, labels=labels, draw=draw, **fewer)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return (
            f"{self.samples} images for each dataset and kind of label, {', '.join(map(data.title, self.datasets))}; "
            f"{self.network_samples} images for each of {len(self.rows)} networks"
        )


@dataclass(frozen=True)
class Solved:
    """What the exact solver and iDLG find for N samples in one network.

    Attributes:
        model: The network.
        labels: The labels (N, C), with their `status`.
        zero: Whether the gradient is zero, (N,).
        classes: The classes that iDLG names, (N,).
        right: Whether the label is recovered, (N,).
        seconds: The time (s) of the exact solver.
    """

    model: nn.Module
    labels: Tensor
    status: list[str]
    zero: Tensor
    classes: Tensor
    right: Tensor
    seconds: float


class OnNetwork(Experiment):
    """Recover the labels of single images in a random network."""

    dataset: str
    labels: str
    network: str

    def solved(self, private: data.Dataset, inputs: Tensor, targets: Tensor, seed: int) -> Solved:
        """Recover the labels of samples by the exact solver and by iDLG."""
        model = built(self.network, private, seed, self.device, bias=False)
        size = max(1, CHUNK_ELEMENTS // model.get_parameter("head.weight").numel())
        parts, status, seconds = [], list[str](), 0.0
        for some, own in zip(inputs.split(size), targets.split(size), strict=True):
            leaks = observe_heads(model, some.to(self.device), own.to(self.device))
            gradients = leaks.weight_gradients
            started = time.perf_counter()
            found = recover_soft_labels(gradients, leaks.weight, prior=self.labels)
            seconds += time.perf_counter() - started
            status += found.status
            parts.append([values.cpu() for values in (found.labels, _is_zero(gradients), idlg(gradients))])
        labels, zero, classes = map(torch.cat, zip(*parts, strict=True))
        return Solved(model, labels, status, zero, classes, metrics.label_error(labels, targets) < KNOWN, seconds)


class RandomNetwork(OnNetwork, part="random"):
    """Attack one network on each dataset, by the published search as well."""

    samples: int
    searches: int

    def run(self) -> list[Columns]:
        """Recover the labels of images drawn from the test set."""
        private = data.load(self.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        found = self.solved(private, inputs, targets, self.seed)
        few = targets[: self.searches]
        leaks = observe_heads(found.model, inputs[: self.searches].to(self.device), few.to(self.device))
        gradients = leaks.weight_gradients.cpu()
        _, by_search = search_both(gradients, leaks.weight, self.labels)
        top, classes = targets.argmax(dim=1), found.labels.nan_to_num(-1).argmax(dim=1)
        return [
            judged(found.labels, found.status, targets)
            | {
                "classes": private.classes,
                "zero": percentage(found.zero),
                # The published code returns 0 for a zero gradient and counts this as a success.
                "counted_zero": percentage(found.right | found.zero),
                "class_right": percentage(classes.eq(top) & ~found.labels[:, 0].isnan()),
                "idlg": percentage(found.classes == top),
                "milliseconds": 1e3 * found.seconds / self.samples,
                "searches": len(gradients),
                "searched": percentage((metrics.label_error(by_search.labels, few) < KNOWN) | _is_zero(gradients)),
            }
        ]


class Subsets(OnNetwork, part="subsets"):
    """Compare the labels recovered from some test images of a dataset with those recovered from all of them."""

    subsets: list[int]

    def run(self) -> Iterator[Columns]:
        """Attack every image once: those of each part, the first of the test set, and then all of it."""
        private, right = data.load(self.dataset, "test"), list[Tensor]()
        for images in (*self.subsets, len(private)):
            generator = torch.Generator().manual_seed(self.seed)
            inputs, classes = data.normalise(private.images[:images]), private.labels[:images]
            if self.labels == "mixup":
                hot = augment.one_hot(classes, private.classes).double()
                inputs, targets = augment.mixup(inputs, hot, generator=generator)
            else:
                targets = soft_labels(self.labels, classes, private.classes, generator)
            right.append(self.solved(private, inputs, targets, self.seed).right)
        whole = percentage(right.pop())
        for part in right:
            low, high = wilson(int(part.sum()), len(part))
            yield {
                "images": len(part),
                "count": len(part),
                "drawn_known": percentage(part),
                "drawn_whole": whole,
                "drawn_beyond": max(100 * low - whole, whole - 100 * high),
            }


class VariedNetwork(OnNetwork, part="varied"):
    """Attack one of many random networks on a dataset; each has other parameters and images."""

    effort_fields: ClassVar[frozenset[str]] = frozenset({"samples"})

    samples: int
    searches: int  # not used here, but an input of the recorded trials
    draw: int

    def run(self) -> list[Columns]:
        """Recover the labels of images drawn from the test set, and measure only success rates."""
        private = data.load(self.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed + self.draw)
        found = self.solved(private, inputs, targets, self.seed + self.draw)
        return [
            {
                "drawn": percentage(found.right | found.zero),
                "count": self.samples,
                "drawn_known": percentage(found.right),
                "drawn_idlg": percentage(found.classes == targets.argmax(dim=1)),
            }
        ]


def _is_zero(gradients: Tensor) -> Tensor:
    return gradients.flatten(1).abs().amax(dim=1) == 0


class DrawnHeads(Experiment, part="heads"):
    """Attack random last layers on top of a trained network."""

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
        if self.trunk == TRAINED:
            body = models.efficientnet_lite0()
        else:
            recipe = training.Recipe(
                network=self.trunk, dataset=self.dataset, labels="smoothing", epochs=1, batch_size=64,
                learning_rate=2e-3, bias=False, seed=self.seed,
            )  # fmt: skip
            body = training.train(recipe, device=self.device).model
        for draw in range(1, self.draws + 1):
            inputs, targets = private_samples(private, self.labels, self.drawn, self.seed + draw)
            features, _ = head_inputs(body.to(self.device), inputs.to(self.device), chunk=50)
            layer = random_head(features.shape[1], private.classes, self.head, self.seed + draw)
            for row in under_random_head(layer, features, targets, self.labels, self.searched, self.device):
                yield {"draw": draw} | row


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
    _, by_search = search_both(leaks.weight_gradients[:searches], leaks.weight, labels)
    row, misses, counted = _by_search(by_search, leaks, errors, targets, labels)
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
    coefficient = COEFFICIENTS["mixup" if labels == "mixup" else "smoothing"]
    misses = metrics.label_error(found.labels, targets[:count].cpu())
    shares: Columns = {
        "count": count,
        "accuracy": percentage(misses < KNOWN),
        # Algorithm 1 stops before it reaches these scalars; the windows of the particle swarm are narrower still.
        "out_of_reach": percentage((coefficient * truth).abs() > BOUND),
    }
    return shares, misses, metrics.oracle_success(found.scalars, truth, coefficient)


class NetworkAttacked(Experiment, part="networks"):
    """Attack a network's private samples with every solver, for one kind of label."""

    row: NamedNetwork
    labels: str
    samples: int
    doubles: int
    searches: int
    swarms: int

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        return [name for name in (self.row.dataset, self.row.sees.learns) if name]

    def run(self) -> Iterator[Columns]:
        """Recover the labels by the exact solver, by the searches, and by the exact solver from float64 gradients."""
        row = self.row
        private = data.load(row.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        model, accuracy = network(row, self.labels, private, self.seed, self.device)
        about: Columns = {"dataset": row.dataset, "network": row.network, "stage": row.stage, "test_accuracy": accuracy}
        leaks = observe_heads(model.to(self.device), inputs.to(self.device), targets.to(self.device))
        yield about | self._solved(leaks, targets, "float32")
        few, own = inputs[: self.searches], targets[: self.searches]
        leaks, errors = observe_private(model, few, own, "float32", self.device)
        first, both = search_both(leaks.weight_gradients, leaks.weight, self.labels)
        swarm = search(leaks.weight_gradients[: self.swarms], leaks.weight, self.labels, "pso")
        for name, found in (("lbfgs", first), (BOTH, both), ("pso", swarm)):
            shares, misses, counted = _by_search(found, leaks, errors, own, self.labels)
            right = misses < KNOWN
            shares |= {
                "solver": name,
                "dtype": "float32",
                "oracle": percentage(counted),
                "failed": percentage(~found.ended),
                "silent": int((found.ended & ~right).sum()),
                "mean_error": float(misses[right].mean()) if right.any() else None,
                "milliseconds": 1e3 * found.seconds / len(misses),
            }
            yield about | shares
        few, own = inputs[: self.doubles], targets[: self.doubles]
        leaks, _ = observe_private(model, few, own, "float64", self.device)
        yield about | self._solved(leaks, own, "float64")

    def _solved(self, leaks: HeadLeaks, targets: Tensor, dtype: str) -> Columns:
        started = time.perf_counter()
        found = recover_soft_labels(leaks.weight_gradients, leaks.weight, prior=self.labels)
        milliseconds = 1e3 * (time.perf_counter() - started) / len(found)
        right = judged(found.labels, found.status, targets)
        return right | {"solver": EXACT, "dtype": dtype, "milliseconds": milliseconds}


def summary(record: Record) -> Summary:
    """Return the finding: the exact solver misses only labels that the gradient does not hold."""
    known = claims.judgements(record)
    least, imagenet = known["label-accuracy-intense-above"], known["label-accuracy-smoothing-imagenet"]
    rows = select(record.rows(NetworkAttacked), solver=EXACT, dtype="float32")
    rows = rows[rows["labels"] != "onehot"]
    certain = rows["network"].eq("alexnet") & rows["stage"].eq("untrained")
    first = record.rows(RandomNetwork)
    missed = (100 - first["accuracy"] - first["ambiguous"] - first["zero"]).max()
    measured = record.frame().dropna(subset="accuracy")
    heads, networks = (measured["part"] == kind.part for kind in (DrawnHeads, NetworkAttacked))
    solvers = measured["solver"].fillna(EXACT)
    attacks = solvers.map({EXACT: SOLVERS[EXACT], SEARCH: "published search"})
    layers = measured["head"].map(", trained trunk, new {} head".format, na_action="ignore").fillna("")
    return Summary(
        f"An exact solver, which never sees the truth, recovers {imagenet.text} of the smoothed ImageNet labels in a "
        f"random ResNet50 and all {rows['count'][~certain].sum():,} soft labels on smaller networks other than "
        f"the untrained AlexNet (at least {least.text}); it reports every missed label as undetermined.",
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
        leaks=leaks(record),
        outcomes=collected(
            record, measured, "soft labels", average_of("accuracy", "labels recovered", "samples"),
            attack=attacks.fillna("published search, " + solvers),
            network=measured["trunk"].where(heads, measured["network"]),
            training=measured["stage"].where(networks, "untrained"), data=measured["dataset"],
            client=measured["dtype"].where(networks, "float32"), detail=measured["labels"] + " labels" + layers,
        ),
    )  # fmt: skip


def figure_recovered(record: Record) -> Figure:
    """Plot the percentage of labels recovered by the exact solver and by the published search, by network.

    One panel for each kind of label. Neither attack sees the truth.
    """
    rows = select(record.rows(NetworkAttacked), dtype="float32")
    rows = rows[rows["solver"].isin(SOLVERS)]
    places, names = pd.factorize(rows["stage"] + " " + rows["network"] + ", " + rows["dataset"].map(data.title))
    return drawn(
        rows.assign(place=places, name=rows["solver"].map(SOLVERS)),
        scattered("accuracy", "place", by="name"),
        lambda axis, _: named_lines(axis, list(names)),
        panels="labels",
        title=label_kind,
        height=0.36 * len(names) + 1.3,
        legend=2,
        xlabel="labels recovered, %",
        xlim=(rows["accuracy"].min() - 4, 102),
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    rows = select(record.rows(NetworkAttacked), solver=EXACT, dtype="float32")
    own = rows.groupby("labels").agg({"accuracy": "mean", "count": "sum", "milliseconds": "mean"})
    found = own["accuracy"].map("{:.1f} % of ".format) + own["count"].map("{:.0f}".format)
    return Leaks(
        "the soft label",
        f"one sample; {listed(rows['network'])}",
        f"{found['smoothing']} smoothed labels, {found['mixup']} mixed labels",
        f"{own['milliseconds']['smoothing']:.3g} ms elapsed",
        kind="soft labels",
        attack=SOLVERS[EXACT],
    )
