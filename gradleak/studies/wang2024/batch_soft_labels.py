"""Soft labels of a whole batch

Beyond wang2024, section 3: recover labels and features of all samples from one averaged gradient, with a certificate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field
from torch import Tensor, nn

from gradleak import claims, data, defenses, metrics, studies
from gradleak.labels import BatchLabels, recover_batch
from gradleak.labels.soft.explanations import KNOWN_FEATURE
from gradleak.labels.verdict import KNOWN
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import bound, crossed, drawn, lines, scattered
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import Measure, among, cells, count, greatest, mean, median, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import AttackedNetwork, built
from gradleak.studies.shared.outcomes import Outcome, collected, share_of
from gradleak.studies.shared.samples import DTYPES, inputs_of, soft_labels
from gradleak.studies.wang2024.columns import COLUMNS
from gradleak.wording import counted

PLACE = "Beyond section 3"
# A batch counts as recovered if no label's L1 error and no feature's relative error exceeds these limits.
NEAR_LABEL, NEAR_FEATURE = 2e-4, 1e-3
Labels = Literal["smoothing", "mixup", "onehot"]


class Cell(Form):
    """An untrained network and the batches that it is attacked with."""

    network: str
    classes: Whole = Field(ge=2)
    size: Whole = Field(ge=1)
    drawn: Literal["distinct", "repeated"]
    labels: Labels


class Trained(Form):
    """A trained network, its private images, and the size of its batches."""

    dataset: str
    network: str
    size: Whole = Field(ge=1)

    def check(self) -> None:
        """Raise an error if there is no training recipe for the network."""
        _trained(self.dataset, self.network)


def _trained(dataset: str, network: str) -> AttackedNetwork:
    return AttackedNetwork.of(f"{dataset}/{network}/trained")


class Parameters(studies.Parameters):
    """Parameters of the page: networks, batch sizes, precisions and noise."""

    batches: int = setting(paper=50, ge=1, le=10_000)
    cells: list[Cell] = setting(
        paper=[
            *(f"resnet18/100/{size}/distinct/smoothing" for size in (2, 4, 8, 16, 24, 32, 40, 44, 48)),
            *(f"lenet/100/{size}/distinct/smoothing" for size in (2, 4, 8, 16, 24, 32)),
            *(f"{network}/100/16/repeated/smoothing" for network in ("resnet18", "lenet")),
            "resnet18/1000/32/distinct/smoothing",
            "resnet18/1000/32/repeated/smoothing",
            *(f"resnet18/100/16/repeated/{labels}" for labels in ("onehot", "mixup")),
        ],
        validate_default=True,
    )
    trained: list[Trained] = setting(
        paper=["cifar10/lenet/2", "cifar10/lenet/3", "cifar10/resnet20/2", "cifar10/resnet20/3"]
    )
    precisions: list[str] = setting(paper=list(DTYPES))
    noises: list[float] = setting(paper=[1e-8, 1e-7, 1e-6, 1e-5, 1e-4])
    dataset: str = setting(paper="cifar10")

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        shown = [Sees(cell.network, self.dataset) for cell in self.cells]
        return [*shown, *(_trained(one.dataset, one.network).sees for one in self.trained)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield every network and batch size in every precision, then the first of these with noise."""
        attacked: list[dict[str, Any]] = [
            {"network": cell.network, "classes": cell.classes, "size": cell.size, "labels": cell.labels}
            | {"repeated": cell.drawn == "repeated", "stage": "untrained", "dataset": self.dataset}
            for cell in self.cells
        ]
        attacked += [
            {"network": one.network, "classes": 0, "size": one.size, "labels": "smoothing"}
            | {"repeated": False, "stage": "trained", "dataset": one.dataset}
            for one in self.trained
        ]
        clean = [Batches.of(self, **one, dtype=dtype, noise=0.0) for one, dtype in product(attacked, self.precisions)]
        yield from clean
        for noise in self.noises:
            yield clean[0].model_copy(update={"noise": noise})

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{counted(self.batches, 'batch')} per setting, {data.title(self.dataset)}"


class Batches(Experiment):
    """Recover batches of one network and size, each from its averaged gradient.

    Attributes:
        classes: The number of classes; 0 for the dataset's classes.
        noise: The standard deviation of the noise that the client adds.
    """

    network: str
    classes: int
    size: int
    repeated: bool
    labels: Labels
    stage: attacked_networks.Stage
    dataset: str
    dtype: str
    noise: float
    batches: int

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        training = [_trained(self.dataset, self.network).training] if self.stage == "trained" else []
        return [self.dataset, *training]

    def run(self) -> Iterator[Columns]:
        """Recover the labels and features of every batch."""
        private = data.load(self.dataset, "test")
        if self.stage == "trained":
            attacked = _trained(self.dataset, self.network)
            model, _ = attacked_networks.network(attacked, self.labels, private, self.seed, self.device)
        else:
            model = built(self.network, private, self.seed, self.device, classes=self.classes, bias=False)
        model = model.to(self.device, DTYPES[self.dtype])
        for n in range(self.batches):
            yield from self._attack(model, private, n)

    def _attack(self, model: nn.Module, private: data.Dataset, batch: int) -> Iterator[Columns]:
        seed = batch + self.seed
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(private), generator=generator)[: self.size]
        inputs = data.normalise(private.images[chosen]).to(self.device, DTYPES[self.dtype])
        if self.stage == "trained":
            classes, first = private.classes, private.labels[chosen]
        else:
            # An untrained network does not relate images to classes, so its images get random labels.
            classes, first = self.classes, torch.randperm(self.classes, generator=generator)[: self.size]
        if self.repeated:
            few = first[: max(1, self.size // 2)]
            first = few[torch.randint(len(few), (self.size,), generator=generator)]
        targets = soft_labels(self.labels, first, classes, generator)
        targets = targets.to(self.device, DTYPES[self.dtype])
        leaks = observe_heads(model, inputs, targets)
        gradient, utility, attackers = leaks.weight_gradients.mean(dim=0), 1.0, {"unaware": 0.0}
        if self.noise:
            clean, attackers = gradient, attackers | {"aware": self.noise}
            gradient = defenses.gaussian(self.noise, generator)({"head": clean})["head"]
            utility = defenses.utility({"head": clean}, {"head": gradient})
        (hidden,) = inputs_of([model.get_submodule("head")], model, inputs)
        for attacker, known in attackers.items():
            started = time.perf_counter()
            found = recover_batch(
                gradient, leaks.weight, batch_size=self.size, prior=self.labels, noise=known, seed=seed
            )
            seconds = time.perf_counter() - started
            about: Columns = {"batch": batch, "attacker": attacker, "seconds": seconds, "utility": utility}
            yield about | judge(found, hidden, targets)


def judge(found: BatchLabels, hidden: Tensor, targets: Tensor) -> Columns:
    """Compare a recovered batch with the true features (B, I) and labels (B, C)."""
    hidden, targets = hidden.double(), targets.double()
    unique = found.status == "unique"
    row: Columns = {"status": found.status, "found": int(found.found.sum()), "flagged": not unique}
    if not bool(found.found.all()):
        return row | {"whole": False, "silent": False}
    order = metrics.match_batch(found.features, hidden)
    label = float(metrics.label_error(found.labels[order], targets).max())
    feature = float(((found.features[order] - hidden).norm(dim=1) / hidden.norm(dim=1)).max())
    return row | {
        "largest_error": label,
        "feature_error": feature,
        "claimed": float(found.open[order].max()),
        "residual": found.residual,
        "whole": unique and label < NEAR_LABEL and feature < NEAR_FEATURE,
        "silent": unique and (label > KNOWN or feature > KNOWN_FEATURE),
    }


def headline(record: Record) -> Headline:
    """Return the finding: all labels of a batch are recovered from one gradient, and no certified answer is wrong."""
    known = claims.judgements(record)
    exact, wrong = known["batch-thousand"], known["batch-silent"]
    size, classes = (exact.claim.measure.where[name] for name in ("size", "classes"))
    return Headline(
        f"From one averaged gradient of an untrained ResNet18 with {classes:,} classes, an attacker recovers the soft "
        f"label and the feature of all {size} samples in {exact.text} of the batches, and no answer that the attack "
        "certifies is wrong.",
        true=exact.value is not None and exact.value >= 98 and wrong.value == 0,
        claim="batch-thousand",
        what=f"batches of {size} samples recovered exactly (untrained ResNet18, {classes:,} classes, float32)",
        of="batches",
        figure=figure_frontier,
    )


def table(record: Record) -> pd.DataFrame:
    """Return how many batches are recovered in each precision, without noise and by an attacker who knows the noise."""
    rows = record.frame()
    rows = rows[rows["noise"].eq(0) | rows["attacker"].eq("aware")]
    drawn_as = rows["repeated"].map({True: ", repeated", False: ", distinct"})
    rows = rows.assign(
        network=rows["stage"].map({"trained": "trained ", "untrained": ""}) + rows["network"],
        classes=rows["classes"].map(lambda classes: classes or "of the images"),
        labels=rows["labels"] + drawn_as.where(rows["stage"] == "untrained", ", of the images"),
        noise=rows["noise"].map("{:g}".format),
    )
    precisions = list(rows["dtype"].unique())
    measures: dict[str, Measure] = {"batches": among(count(), dtype=precisions[0])}
    for dtype in precisions:
        exact = cells(COLUMNS, "whole", by=mean) | cells(COLUMNS, "largest_error", by=greatest)
        measures |= {f"{head}, {dtype}": among(measure, dtype=dtype) for head, measure in exact.items()}
    return summary(
        rows,
        {"network": "network", "C": "classes", "B": "size", "kind of label, classes": "labels", "noise": "noise"},
        measures | cells(COLUMNS, "seconds", by=median, head="median {}"),
    )


def figure_frontier(record: Record) -> Figure:
    """Plot the share of batches recovered exactly against the batch size, one line for each network and precision.

    Vertical lines mark the batch size B = (C − 2) / 2 beyond which the equations no longer suffice.
    """
    rows = select(record.frame(), stage="untrained", labels="smoothing", repeated=False, noise=0)
    rows = rows.assign(network=rows["network"] + rows["classes"].map(", C = {}".format), percent=100.0 * rows["whole"])
    few = [classes for classes in sorted(set(rows["classes"])) if (classes - 2) / 2 <= 1.6 * rows["size"].max()]
    return drawn(
        rows,
        lines(
            "size", "percent", by=["network", "dtype"], looks=crossed(rows["network"].unique(), rows["dtype"].unique())
        ),
        *(bound((classes - 2) / 2, f"B = (C − 2) / 2, C = {classes} ", 12, ha="right") for classes in few),
        height=3.7,
        legend=3,
        xlabel="batch size B (samples)",
        ylabel="batches recovered exactly (%)",
        ylim=(-4, 104),
        xlim=(0, None),
    )


def figure_certificate(record: Record) -> Figure:
    """Plot the largest label error of each batch against the error that the attack claims."""
    rows = record.frame()
    return drawn(
        rows[rows["noise"].eq(0) & rows["labels"].ne("onehot") & rows["largest_error"].notna()],
        scattered("claimed", "largest_error", by=["dtype", "status"], markersize=4),
        lines("claimed", "claimed", label=lambda: "claimed = actual", color=figures.TRUTH, marker=""),
        height=3.4,
        legend=4,
        xscale="log",
        yscale="log",
        xlabel="claimed label error (L1, three standard deviations)",
        ylabel="largest label error (L1)",
    )


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    own = line(table(record), "resnet18", "1000", "32", "smoothing, distinct")
    return Leaks(
        "all soft labels and features",
        f"batches of {own['B']}, {own['C']} classes; untrained ResNet18",
        f"{own['recovered exactly, float32']} of {own['batches']} batches exact, label error (L1) at most "
        f"{own['largest L_r, float32']}",
        f"{own['median time (s)']} s elapsed",
        kind="soft labels",
        attack="batch solver",
        batch=int(own["B"]),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows.assign(complete=rows["largest_error"].notna())
    whole = share_of("whole", "batches recovered completely", "batches")
    complete = share_of("complete", "batches with all samples found", "batches")
    details = [
        f"{row['labels']} labels, {'classes repeat' if row['repeated'] else 'distinct classes'}"
        + (f", {row['classes']} classes" if row["classes"] else "")
        for _, row in rows.iterrows()
    ]
    found: list[Outcome] = []
    for measure in (whole, complete):
        found += collected(
            record, rows, "soft labels", measure, cosine=rows["utility"],
            attack=["batch solver" + ", noise known" * (name == "aware") for name in rows["attacker"]],
            network=rows["network"], training=rows["stage"], data=rows["dataset"], batch=rows["size"],
            defense=[f"gaussian/{noise:g}" if noise else "none" for noise in rows["noise"]], client=rows["dtype"],
            detail=details,
        )  # fmt: skip
    return found
