"""The cocktail-party attack: features of a batch from independent components

Beyond yin2021, section 4: the cocktail-party attack of kariyappa2023, and a constant guess as its baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from time import perf_counter

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, models, studies
from gradleak.errors import InputError
from gradleak.images import unmix_features
from gradleak.labels import recover_batch
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, lines, powers_of_two
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.deep_networks import NAMES, SMALL, made
from gradleak.studies.shared.last_layers import MEAN, STD, TRAINED, Seen, seen
from gradleak.studies.shared.outcomes import average_of, collected
from gradleak.studies.yin2021.columns import COLUMNS

PLACE = "Beyond section 4"
ATTACKS = CONSTANT, PARTY, EXACT = "one direction", "cocktail party", "exact recovery"
# The features that an attack recovers, in no particular order, and its status.
Found = tuple[Tensor, str]
# A feature counts as found if its cosine with the result is at least this.
NEAR = 0.99
SEEN = 1000  # images that batches are drawn from


class Cell(Group):
    """Private images and a network: a trained one, or one with random weights and this number of classes."""

    dataset: str
    network: str
    classes: int = 0

    def check(self) -> None:
        """Raise an error if there is no such network."""
        if not self.classes and self.network not in (TRAINED, *NAMES):
            raise InputError(f"trained networks are {', '.join((TRAINED, *NAMES))}; others need a number of classes")


class Parameters(studies.Parameters):
    """Parameters of the page: networks and images, batch sizes and the number of batches."""

    cells: list[Cell] = setting(
        paper=[
            {"dataset": "imagenet-sample", "network": TRAINED},
            {"dataset": "cifar10", "network": "cifar10-resnet20"},
            {"dataset": "cifar10", "network": "resnet18", "classes": 100},
            {"dataset": "cifar10", "network": "lenet", "classes": 100},
        ],
        smallest=[{"dataset": "photos", "network": "lenet", "classes": 20}],
    )
    sizes: list[PositiveInt] = setting(paper=[2, 4, 8, 16, 32, 64, 128, 256], smallest=[2])
    exact_to: int = setting(paper=16, ge=0)
    batches: int = setting(paper=5, smallest=1, ge=1, le=10_000)

    def sees(self) -> list[Sees]:
        """Return the networks that are built here, with their images."""
        return [
            Sees(cell.network, cell.dataset, channels=3 * (cell.network == TRAINED))
            for cell in self.cells
            if cell.classes or cell.network in (SMALL, TRAINED)
        ]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each network."""
        for cell in self.cells:
            yield FoundFeatures.of(self, **dict(cell))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        images = ", ".join(map(data.title, dict.fromkeys(cell.dataset for cell in self.cells)))
        return f"{len(self.cells)} networks, {self.batches} batches of each size, {images}"


class FoundFeatures(Experiment):
    """Features of many batches of one network, recovered by every attack."""

    dataset: str
    network: str
    classes: int
    sizes: list[int]
    exact_to: int
    batches: int

    def run(self) -> Iterator[Columns]:
        """Attack batches of every size."""
        private, head = self._seen()
        generator = torch.Generator().manual_seed(self.seed)
        sizes = [size for size in self.sizes if size < private.predicted.shape[1]]
        for size, number in product(sizes, range(self.batches)):
            chosen = torch.randperm(len(private.features), generator=generator)[:size].to(self.device)
            labels = private.labels_of(chosen, generator, repeats=False)
            for name, attack in _attacks(private, head, chosen, labels).items():
                if name != EXACT or size <= self.exact_to:
                    (found, status), seconds = timed(attack, clock=perf_counter)
                    about: Columns = {"size": size, "batch": number, "attack": name, "status": status}
                    yield about | {"seconds": seconds} | nearness(found, private.features[chosen])

    def _seen(self) -> tuple[Seen, nn.Linear]:
        """Run the network over the dataset's first test images; return the results and the last layer."""
        private = data.load(self.dataset, "test")
        images, labels = private.images[:SEEN], private.labels[:SEEN]
        if self.classes:
            model = built(self.network, private, self.seed, self.device, classes=self.classes, bias=False)
            found = seen(model, data.normalise(images), self.device)
        elif self.network == TRAINED:
            model = models.efficientnet_lite0()
            found = seen(model, (images - MEAN) / STD, self.device, labels)
        else:
            model = made(self.network, self.dataset, self.seed)
            found = seen(model, data.normalise(images), self.device, labels)
        (*_, head) = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
        return found, head


def _attacks(private: Seen, head: nn.Linear, chosen: Tensor, labels: Tensor) -> dict[str, Callable[[], Found]]:
    """Return the attacks on a batch, by name."""
    gradient, size = private.gradient(chosen, labels), len(chosen)
    errors = (private.predicted[chosen] - F.one_hot(labels, private.predicted.shape[1])).mean(dim=0)
    weight = head.weight.detach()
    bias, bias_gradient = (None, None) if head.bias is None else (head.bias.detach(), errors)

    def one_direction() -> Found:
        leading = torch.linalg.svd(gradient.double(), full_matrices=False)[2][:1]
        return (leading * leading.sum().sign()).expand(size, -1), "found"

    def exact() -> Found:
        batch = recover_batch(gradient, weight, batch_size=size, prior="onehot", bias=bias, bias_gradient=bias_gradient)
        return batch.features, batch.status

    return {CONSTANT: one_direction, PARTY: lambda: (unmix_features(gradient, size), "found"), EXACT: exact}


def nearness(found: Tensor, truth: Tensor) -> Columns:
    """Compare features (B, I) with recovered ones by their cosines, in the order that fits best.

    A feature without a counterpart has the cosine 0.
    """
    own, theirs = (F.normalize(side.double().cpu().nan_to_num(0), dim=1) for side in (found, truth))
    cosines = theirs @ own.T
    rows, columns = linear_sum_assignment(-cosines.numpy())
    best = torch.zeros(len(truth), dtype=torch.float64)
    best[torch.as_tensor(rows)] = cosines[rows, columns]
    near = 100 * float((best >= NEAR).double().mean())
    return {"cosine": float(best.mean()), "least": float(best.min()), "near": near}


def summary(record: Record) -> Summary:
    """Return the finding: independent components find features of a trained network, and not of an untrained one."""
    known = claims.judgements(record)
    trained, untrained, exact = (known[name] for name in ("party-trained", "party-untrained", "party-exact"))
    rows = record.frame().assign(one=1)
    return Summary(
        f"Independent components come close to the features of a large trained network (mean cosine {trained.text} in "
        f"batches of {trained.claim.measure.where['size']}) but not to those of an untrained one ({untrained.text} in "
        f"batches of {untrained.claim.measure.where['size']}); every feature that exact recovery certifies is right "
        f"(lowest cosine {exact.text}).",
        true=bool(trained.agrees and untrained.agrees and exact.agrees),
        claim="party-trained",
        what="mean cosine of independent components with the true features (trained EfficientNet-Lite0, batches of 32)",
        figure=figure_cosines,
        of="batches",
        outcomes=collected(
            record, rows, "features",
            average_of("near", f"features with a cosine of at least {NEAR}", "batches", spread="", count="one"),
            attack=rows["attack"].replace("exact recovery", "batch solver"), network=rows["network"],
            training=["untrained" if classes else "trained" for classes in rows["classes"]], data=rows["dataset"],
            batch=rows["size"],
        ),
    )  # fmt: skip


def attacked(record: Record) -> pd.DataFrame:
    """Return the rows with a title of their network and its images."""
    rows = record.rows(FoundFeatures)
    stages = rows["classes"].map(lambda classes: f"untrained, C = {classes}" if classes else "trained")
    return rows.assign(title=rows["dataset"].map(data.title) + ", " + rows["network"] + ", " + stages)


def certified(record: Record) -> str:
    """Return in words how many batches of each network exact recovery certifies."""
    rows = select(attacked(record), attack=EXACT)
    unique = rows["status"].eq("unique").groupby(rows["title"], sort=False).agg(["sum", "count"])
    counts = "; ".join(f"{own['sum']} of {own['count']} on {title}" for title, own in unique.iterrows())
    return f"Exact recovery certifies the features of these batches, of at most {rows['size'].max()} samples: {counts}."


def figure_cosines(record: Record) -> Figure:
    """Draw the mean cosine of features against the batch size, a panel per network and a line per attack.

    Bands reach from the least to the greatest mean of a batch. The baseline is grey.
    """
    baseline = {CONSTANT: {"color": "0.6"}}
    return drawn(
        attacked(record),
        lines("size", "cosine", by="attack", band="range", order=ATTACKS[::-1], looks=baseline),
        powers_of_two("size"),
        panels="title",
        across=2,
        height=2.5,
        legend=3,
        xlabel=COLUMNS["size"].head,
        ylabel=COLUMNS["cosine"].head,
        ylim=(0, 1.03),
    )
