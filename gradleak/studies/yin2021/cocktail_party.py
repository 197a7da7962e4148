"""The cocktail-party attack: features of a batch from independent components

Beyond yin2021, section 4: the cocktail-party attack of kariyappa2023, and a constant guess as its baseline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import PositiveInt, model_validator
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, models, studies
from gradleak.errors import InputError
from gradleak.images import unmix_features
from gradleak.labels import recover_batch
from gradleak.leak import head_inputs
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.records import Record
from gradleak.show.drawn import drawn, lines, powers_of_two
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, count, mean, median, percent, spread_if_many, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.deep_networks import NAMES, SMALL, made
from gradleak.studies.shared.last_layers import MEAN, STD, TRAINED, Seen
from gradleak.studies.shared.outcomes import Outcome, average_of, collected

PLACE = "Beyond section 4"
CONSTANT, PARTY, EXACT = "one direction", "cocktail party", "exact recovery"
# A feature counts as found if its cosine with the result is at least this.
NEAR = 0.99
SEEN = 1000  # images that batches are drawn from
CELL = ["dataset", "network", "classes"]
# The floor is grey in figures.
LOOKS = {CONSTANT: {"color": "0.6"}}


class Cell(Form):
    """Private images and a network, written "dataset/network" if it is trained.

    With "dataset/network/classes" the network has random weights and this number of classes.
    """

    dataset: str
    network: str
    classes: Whole = 0

    def check(self) -> None:
        """Raise an error if there is no such network."""
        if not self.classes and self.network not in (TRAINED, *NAMES):
            raise InputError(f"trained networks are {', '.join((TRAINED, *NAMES))}; others need a number of classes")

    @property
    def sees(self) -> Sees:
        """The network and its input images."""
        return Sees(self.network, self.dataset, channels=3 * (self.network == TRAINED))


class Parameters(studies.Parameters):
    """Parameters of the page: networks and images, batch sizes and the number of batches."""

    cells: list[Cell] = setting(
        paper=[
            f"imagenet-sample/{TRAINED}",
            "cifar10/cifar10-resnet20",
            "cifar10/resnet18/100",
            "cifar10/lenet/100",
        ],
        smallest=["photos/lenet/20"],
        validate_default=True,
    )
    sizes: list[PositiveInt] = setting(paper=[2, 4, 8, 16, 32, 64, 128, 256], smallest=[2])
    exact_to: int = setting(paper=16, ge=0)
    batches: int = setting(paper=5, smallest=1, ge=1, le=10_000)

    def sees(self) -> list[Sees]:
        """Return the networks that are built here, with their images."""
        return [cell.sees for cell in self.cells if cell.classes or cell.network in (SMALL, TRAINED)]

    @model_validator(mode="after")
    def _few_enough(self) -> Self:
        for cell in self.cells:
            if cell.classes and cell.classes <= min(self.sizes):
                raise ValueError(f"'{cell}' needs more classes than the smallest batch has samples")
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each network."""
        for cell in self.cells:
            yield FoundFeatures.of(self, **dict(cell))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        images = ", ".join(map(data.title, dict.fromkeys(cell.dataset for cell in self.cells)))
        return f"{len(self.cells)} networks, {self.batches} batches of each size, {images}"


# FastICA iterates until two steps are nearly alike. Where features are no independent components it amplifies rounding
# errors until single batches differ; the statuses are compared exactly.
COLUMNS = {
    "cosine": kinds.measured(absolute=0.5),
    "least": kinds.measured(absolute=0.5),
    "near": kinds.measured(absolute=50.0),
}


class Nearness(Row):
    """The cosines of true and recovered features of a batch: mean, minimum, and the percentage of at least 0.99."""

    cosine: float
    least: float
    near: float


class Attacked(Nearness):
    """The result of one attack on one batch."""

    size: int
    batch: int
    attack: str
    status: str
    seconds: float


class FoundFeatures(Experiment):
    """Features of many batches of one network, recovered by every attack."""

    dataset: str
    network: str
    classes: int
    sizes: list[int]
    exact_to: int
    batches: int

    def run(self) -> Iterator[Attacked]:
        """Attack batches of every size."""
        seen, head = self._seen()
        generator = torch.Generator().manual_seed(self.seed)
        for size in self.sizes:
            if size >= seen.predicted.shape[1]:
                continue
            for number in range(self.batches):
                chosen = torch.randperm(len(seen.features), generator=generator)[:size].to(self.device)
                labels = seen.labels_of(chosen, generator, repeats=False)
                for name, attack in _attacks(seen, head, chosen, labels, exactly=size <= self.exact_to).items():
                    started = time.perf_counter()
                    found = attack()
                    seconds = time.perf_counter() - started
                    yield Attacked.of(
                        nearness(found.features, seen.features[chosen]),
                        size=size,
                        batch=number,
                        attack=name,
                        status=found.status,
                        seconds=seconds,
                    )

    def _seen(self) -> tuple[Seen, nn.Linear]:
        """Run the network over the dataset's first test images; return the results and the last layer."""
        private = data.load(self.dataset, "test")
        images, labels = private.images[:SEEN], private.labels[:SEEN]
        if self.network == TRAINED:
            model, inputs = models.efficientnet_lite0(), (images - MEAN) / STD
        else:
            inputs = data.normalise(images)
            if self.classes:
                model = built(self.network, private, self.seed, self.device, classes=self.classes, bias=False)
            else:
                model = made(self.network, self.dataset, self.seed)
        model = model.to(self.device)
        features, scores = head_inputs(model, inputs.to(self.device), chunk=50)
        (*_, head) = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
        return Seen(features, scores.softmax(dim=1), None if self.classes else labels.to(self.device)), head


class Found(NamedTuple):
    """Recovered features in no particular order, and the attack's status."""

    features: Tensor
    status: str = "found"


def _attacks(
    seen: Seen, head: nn.Linear, chosen: Tensor, labels: Tensor, *, exactly: bool
) -> dict[str, Callable[[], Found]]:
    gradient, size = seen.gradient(chosen, labels), len(chosen)
    errors = (seen.predicted[chosen] - F.one_hot(labels, seen.predicted.shape[1])).mean(dim=0)

    def constant() -> Found:
        leading = torch.linalg.svd(gradient.double(), full_matrices=False)[2][:1]
        return Found((leading * leading.sum().sign()).expand(size, -1))

    def exact() -> Found:
        bias = (None, None) if head.bias is None else (head.bias.detach(), errors)
        weight = head.weight.detach()
        batch = recover_batch(gradient, weight, batch_size=size, prior="onehot", bias=bias[0], bias_gradient=bias[1])
        return Found(batch.features, batch.status)

    attacks = {CONSTANT: constant, PARTY: lambda: Found(unmix_features(gradient, size))}
    return attacks | {EXACT: exact} if exactly else attacks


def nearness(found: Tensor, truth: Tensor) -> Nearness:
    """Compare features (B, I) with recovered ones by their cosines, in the order that fits best.

    A feature without a counterpart has the cosine 0.
    """
    own, theirs = (F.normalize(side.double().cpu().nan_to_num(0), dim=1) for side in (found, truth))
    cosines = theirs @ own.T
    rows, columns = linear_sum_assignment(-cosines.numpy())
    best = torch.zeros(len(truth), dtype=torch.float64)
    best[torch.as_tensor(rows)] = cosines[rows, columns]
    return Nearness(
        cosine=float(best.mean()),
        least=float(best.min()),
        near=100 * float((best >= NEAR).double().mean()),
    )


def headline(record: Record) -> Headline:
    """Return the finding: independent components find features of a trained network, and not of an untrained one."""
    known = claims.judgements(record)
    trained, untrained, exact = (known[name] for name in ("party-trained", "party-untrained", "party-exact"))
    return Headline(
        f"Independent components come close to the features of a large trained network (mean cosine {trained.text} in "
        f"batches of {trained.claim.measure.where['size']}) but not to those of an untrained one ({untrained.text} in "
        f"batches of {untrained.claim.measure.where['size']}); every feature that exact recovery certifies is right "
        f"(lowest cosine {exact.text}).",
        true=bool(trained.agrees and untrained.agrees and exact.agrees),
        claim="party-trained",
        what="mean cosine of independent components with the true features (trained EfficientNet-Lite0, batches of 32)",
        figure=figure_cosines,
        of="batches",
    )


def _titled(network: object, classes: object) -> str:
    return f"{network}, untrained, C = {classes}" if classes else f"{network}, trained"


def table(record: Record) -> pd.DataFrame:
    """Return the cosines of true and recovered features.

    One row for each network and batch size B. Columns: the mean cosine of the constant guess and of the cocktail-party
    attack (± standard deviation over batches), the share of features with a cosine of at least 0.99, the attack's time
    (s), and for exact recovery the mean cosine, the share of batches with the status "unique" (%) and the time (s). n
    is the number of batches.
    """
    rows = record.rows(FoundFeatures)
    titles = [_titled(*one) for one in zip(rows["network"], rows["classes"], strict=True)]
    return summary(
        rows.assign(title=titles, unique=100 * rows["status"].eq("unique")),
        {"dataset": "dataset", "network": "title", "batch size": "size"},
        {
            "one direction: cosine": among(mean("cosine", ".3f"), attack=CONSTANT),
            "cocktail party: cosine ± SD": among(spread_if_many("cosine", ".3f"), attack=PARTY),
            f"cocktail party: share with cosine ≥ {NEAR}": among(mean("near", percent()), attack=PARTY),
            "cocktail party: time (s)": among(median("seconds", ".2g"), attack=PARTY),
            "exact recovery: cosine": among(mean("cosine", ".4f"), attack=EXACT),
            "exact recovery: batches certified": among(mean("unique", percent()), attack=EXACT),
            "exact recovery: time (s)": among(median("seconds", ".2g"), attack=EXACT),
            "batches": among(count(), attack=PARTY),
        },
    ).drop(columns="dataset")


def figure_cosines(record: Record) -> Figure:
    """Draw the mean cosine of features against the batch size, a panel per network and a line per attack.

    Bands reach from the least to the greatest mean of a batch.
    """
    return drawn(
        record.rows(FoundFeatures),
        lines("size", "cosine", by="attack", band="range", order=(EXACT, PARTY, CONSTANT), looks=LOOKS),
        powers_of_two("size"),
        panels=CELL,
        title=lambda _, network, classes: _titled(network, classes),
        across=2,
        height=2.5,
        legend=3,
        xlabel="batch size",
        ylabel="mean cosine",
        ylim=(0, 1.03),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    near = average_of("near", f"features with a cosine of at least {NEAR}", "batches", spread="", count="one")
    return collected(
        record, rows.assign(one=1), "features", near, attack=rows["attack"].replace("exact recovery", "batch solver"),
        network=rows["network"],
        training=["untrained" if classes else "trained" for classes in rows["classes"]], data=rows["dataset"],
        batch=rows["size"],
    )  # fmt: skip
