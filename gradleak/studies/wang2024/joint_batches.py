"""Joint batches: up to C − 3 samples, all at once

Beyond wang2024, section 3: search for all samples at once if the equations do not suffice to find them one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import product
from typing import Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Tensor

from gradleak import claims, data, metrics, studies
from gradleak.errors import InputError
from gradleak.labels import recover_jointly
from gradleak.labels.verdict import KNOWN
from gradleak.leak import observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.forms import Form, Whole
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.drawn import bound, drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.summaries import cells, count, mean, median, select, share, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import AttackedNetwork
from gradleak.studies.shared.outcomes import Outcome, collected, share_of
from gradleak.studies.shared.samples import DTYPES, inputs_of, soft_labels
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Beyond section 3"
FEATURES = 256
NEAR_FEATURE = 1e-2
# The time of a start grows with the fifth power of the batch size, so larger batches than LARGEST get fewer starts.
LARGEST, FEWEST = 8, 4
# A batch of more than MANY samples takes minutes, so at most FEW such batches are attacked.
MANY, FEW = 40, 3


class Cell(Form):
    """Random layers and their batches.

    Attributes:
        classes: The number of classes C.
        size: The batch size B.
        drawn: Whether the samples' classes are distinct or repeated, or the labels are mixed from two classes each.
        known: "told" if the attacker knows the classes, else "untold".
    """

    classes: Whole = Field(ge=4)
    size: Whole = Field(ge=1)
    drawn: Literal["distinct", "repeated", "mixed"]
    known: Literal["told", "untold"]

    def check(self) -> None:
        """Raise an error if labels are mixed and the attacker does not know the classes."""
        if self.drawn == "mixed" and self.known == "untold":
            raise InputError("mixed labels need the two classes of every sample: write told, not untold")


class Network(AttackedNetwork):
    """A network, its private images, and the size of its batches."""

    size: Whole = Field(ge=1)


class Parameters(studies.Parameters):
    """Parameters of the page: random layers, networks, batches, and random starts of the search."""

    cells: list[Cell] = setting(
        paper=[
            *(f"10/{size}/distinct/told" for size in (2, 4, 5, 6, 7, 8)),
            *(f"10/{size}/repeated/told" for size in (4, 6, 7)),
            *(f"10/{size}/{drawn}/untold" for size in (4, 5, 6, 7) for drawn in ("distinct", "repeated")),
            *(f"20/{size}/distinct/told" for size in (9, 14, 17)),
            "20/14/repeated/told",
            *(f"{sizes}/distinct/told" for sizes in ("50/30", "50/36", "50/44", "100/50", "100/60")),
            *(f"10/{size}/mixed/told" for size in (4, 6, 7)),
            "20/14/mixed/told",
            "5/3/distinct/told",
            "6/4/distinct/told",
        ],
        smallest=["8/5/distinct/told", "8/6/distinct/told"],
        validate_default=True,
    )
    networks: list[Network] = setting(
        paper=[
            *(f"cifar10/{network}/untrained/{size}" for network in ("lenet", "resnet18") for size in (4, 6, 7)),
            "cifar10/lenet/trained/6",
        ],
        smallest=[],
        validate_default=True,
    )
    batches: int = setting(paper=10, ge=1, le=10_000)
    starts: int = setting(paper=200, ge=1, le=100_000)

    def sees(self) -> list[Sees]:
        """Return the networks and the images that they see."""
        return [one.sees for one in self.networks]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the random layers in every precision, then the networks."""
        for cell, dtype in product(self.cells, DTYPES):
            yield JointBatches.of(self, cell=str(cell), dtype=dtype, batches=self._batches(cell.size))
        for one in self.networks:
            yield JointBatches.of(self, cell=str(one), dtype="float32", batches=self._batches(one.size))

    def _batches(self, size: int) -> int:
        return self.batches if size <= MANY else min(self.batches, FEW)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        fewer = any(cell.size > MANY for cell in self.cells) and self.batches > FEW
        few = f"{FEW} of more than {MANY} samples, " if fewer else ""
        return f"{self.batches} batches per setting, {few}{self.starts} starts each"


class JointBatches(Experiment):
    """Search for all samples of a batch at once, for batches of one kind.

    Attributes:
        cell: A random layer and its batches, or a network and its batch size, written as in the parameters.
    """

    cell: str
    dtype: str
    batches: int
    starts: int

    @property
    def _network(self) -> Network | None:
        return None if self.cell[0].isdigit() else Network.of(self.cell)

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training, if there is a network."""
        one = self._network
        return [] if one is None else [one.dataset, *([one.training] if one.stage == "trained" else [])]

    def run(self) -> Iterator[Columns]:
        """Recover every batch from its averaged gradient."""
        network, parts = self._network, self.cell.split("/")
        if network:
            sent = _networks(network, self.batches, self.seed, self.device)
        else:
            sent = _layers(Cell.of(self.cell), self.dtype, self.batches, self.seed, self.device)
        told, mixed = "untold" not in parts, "mixed" in parts
        for gradient, weight, hidden, targets in sent:
            size = len(hidden)
            classes = targets.topk(2, dim=1).indices if mixed else targets.argmax(dim=1)
            starts = max(FEWEST, round(self.starts * min(1.0, (LARGEST / size) ** 3)))
            started = time.perf_counter()
            found = recover_jointly(
                gradient,
                weight,
                classes=classes if told else None,
                batch_size=None if told else size,
                prior="mixup" if mixed else "smoothing",
                starts=starts,
                seed=self.seed,
            )
            seconds, errors, right = time.perf_counter() - started, {}, False
            if found.status != "failed":
                hidden, features = hidden.cpu().double(), found.features.cpu()
                order = metrics.match_batch(features, hidden)
                label = metrics.label_error(found.labels.cpu()[order], targets.cpu().double())
                feature = (features[order] - hidden).norm(dim=1) / hidden.norm(dim=1)
                errors = {"largest_error": float(label.max()), "feature_error": float(feature.max())}
                right = errors["largest_error"] < KNOWN and errors["feature_error"] < NEAR_FEATURE
            source = "/".join(parts[:3]) if network else "random layer"
            about: Columns = {"classes": len(weight), "size": size, "starts": starts, "told": told, "source": source}
            wrong = found.status == "found" and not right
            yield about | {"seconds": seconds, "status": found.status, "right": right, "wrong": wrong, **errors}


Sent = Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]


def _layers(cell: Cell, dtype: str, batches: int, seed: int, device: str) -> Sent:
    """Yield gradient, weight, features and smoothed or mixed labels of each batch of random layers behind a ReLU."""
    for number in range(batches):
        generator = torch.Generator().manual_seed(seed + number)
        weight = torch.randn(cell.classes, FEATURES, generator=generator, dtype=torch.float64) / math.sqrt(FEATURES)
        hidden = torch.randn(cell.size, FEATURES, generator=generator, dtype=torch.float64).relu()
        hidden = hidden / (hidden @ weight.T).std()
        first = torch.randperm(cell.classes, generator=generator)[: cell.size]
        if cell.drawn == "repeated":
            few = first[: max(1, cell.size // 2)]
            first = few[torch.randint(len(few), (cell.size,), generator=generator)]
        kind = "mixup" if cell.drawn == "mixed" else "smoothing"
        targets = soft_labels(kind, first, cell.classes, generator)
        weight, hidden, targets = (value.to(device, DTYPES[dtype]) for value in (weight, hidden, targets))
        errors = (hidden @ weight.T).softmax(dim=1) - targets
        yield errors.T @ hidden / cell.size, weight, hidden, targets


def _networks(one: Network, batches: int, seed: int, device: str) -> Sent:
    """Yield gradient, weight, features and smoothed labels of each batch of private images in a network."""
    private = data.load(one.dataset, "test")
    model, _ = attacked_networks.network(one, "smoothing", private, seed, device)
    model = model.to(device)
    for number in range(batches):
        generator = torch.Generator().manual_seed(seed + number)
        chosen = torch.randperm(len(private), generator=generator)[: one.size]
        inputs = data.normalise(private.images[chosen]).to(device)
        targets = soft_labels("smoothing", private.labels[chosen], private.classes, generator).to(inputs)
        leaks = observe_heads(model, inputs, targets, batch_size=one.size)
        (hidden,) = inputs_of([model.get_submodule("head")], model, inputs)
        yield leaks.weight_gradients[0], leaks.weight, hidden, targets


def headline(record: Record) -> Headline:
    """Return the finding: a search for all samples at once recovers batches that a search one by one cannot."""
    exact = claims.judgements(record)["joint-seventeen"]
    cell = Cell.of(str(exact.claim.measure.where["cell"]))
    alone = (cell.classes - 2) // 2
    return Headline(
        f"An attacker who knows how often each class occurs recovers all labels and features of {exact.cases} batches "
        f"of {cell.size} samples from {cell.classes} classes (random layers), while a search for one sample at a time "
        f"can find at most {alone}.",
        true=exact.value is not None and exact.value >= 90 and cell.size > alone,
        claim="joint-seventeen",
        what=f"batches of {cell.size} samples recovered (random layer, {cell.classes} classes, float64)",
        of="batches",
        figure=figure_sizes,
    )


def table(record: Record) -> pd.DataFrame:
    """Return the shares of batches that are recovered, ambiguous and failed, over all precisions."""
    rows = record.frame()
    kinds = rows["cell"].str.split("/").str[2].where(rows["source"] == "random layer", "as in the data")
    rows = rows.assign(
        source=rows["source"].str.replace("/", ", "),
        kind=kinds + rows["told"].map({True: ", known", False: ", unknown"}),
        spare=rows["size"] * (rows["classes"] - 2 - rows["size"]),
        right=rows["right"] & rows["status"].eq("found"),
        ambiguous=rows["status"].eq("ambiguous"),
        failed=rows["status"].eq("failed"),
    )
    return summary(
        rows,
        {"network or layer": "source", "C": "classes", "B": "size", "classes of the samples": "kind"}
        | {"equations minus unknowns": "spare"},
        {
            "batches": count(),
            **cells(COLUMNS, "right", by=mean),
            "ambiguous": share("ambiguous"),
            "failed": share("failed"),
            "median time (s)": median("seconds"),
        },
    )


def figure_sizes(record: Record) -> Figure:
    """Plot the share of batches that are recovered (%) against the batch size, for random layers with distinct classes.

    Vertical lines mark the largest batch sizes of the search for one sample at a time, (C − 2) / 2, and for all
    together, C − 2.
    """
    rows = select(record.frame(), source="random layer")
    rows = rows[rows["cell"].str.contains("distinct")]
    many = rows["classes"].value_counts().index[0]
    rows = select(rows, classes=many)
    return drawn(
        rows.assign(found=100 * (rows["right"] & rows["status"].eq("found"))),
        lines("size", "found", by="told", label={True: "classes known", False: "classes unknown"}.__getitem__),
        bound((many - 2) / 2, " limit one by one", 106),
        bound(many - 2, "limit together ", 106, ha="right"),
        lambda axis, _: axis.xaxis.set_major_locator(MaxNLocator(integer=True)),
        height=3.4,
        legend=2,
        xlabel=f"batch size B (samples of {many} classes)",
        ylabel="batches recovered (%)",
        ylim=(-4, 114),
        xlim=(1.5, many - 0.5),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    right = share_of("right", "batches recovered completely", "batches")
    sources = rows["source"].str.split("/")
    return collected(
        record, rows, "soft labels", right, attack="joint solver",
        network=[parts[1] if len(parts) > 1 else parts[0] for parts in sources],
        training=[parts[2] if len(parts) > 2 else "untrained" for parts in sources],
        data=[parts[0] if len(parts) > 1 else "random features" for parts in sources], batch=rows["size"],
        client=rows["dtype"],
        detail=[
            f"{classes} classes"
            + ", mixed labels" * ("/mixed/" in cell)
            + ", classes repeat" * ("/repeated/" in cell)
            + ", classes not known" * (not told)
            for classes, cell, told in zip(rows["classes"], rows["cell"], rows["told"], strict=True)
        ],
    )  # fmt: skip
