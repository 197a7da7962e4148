"""Identifiability: what a gradient determines

Beyond wang2024, section 3: when label, feature and gradient scale are determined; a search for wrong certificates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import model_validator
from torch import Tensor

from gradleak import claims, data, metrics, studies
from gradleak.labels import PRIORS, SoftLabels, recover_batch, recover_soft_labels
from gradleak.labels.verdict import KNOWN
from gradleak.leak import HeadLeaks
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show.drawn import crossed, drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.summaries import Measure, among, cells, mean, median, select, summary, total
from gradleak.studies import Experiment, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import AttackedNetwork
from gradleak.studies.shared.outcomes import Outcome, average_of, collected
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples, random_layer, soft_labels
from gradleak.studies.shared.searched import percentage, statuses
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Beyond section 3"
DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
FEATURES = 64
# Number of random cases in one experiment.
CHUNK = 250
NORMS = (0.1, 1.0)
# Repetitions of each time measurement; the smallest CPU time counts.
TIMED = 5


MIXED = "mixed labels taken for smoothed"
# Violations of the attacker's assumptions, which are smoothed labels, gradient scale 1 and one sample per gradient: the
# kind of the client's labels, the scale of its gradient, and whether a gradient is the mean of two samples' gradients.
BROKEN = {
    "rescaled by 0.9": ("smoothing", 0.9, False),
    "rescaled by 0.25": ("smoothing", 0.25, False),
    MIXED: ("mixup", 1.0, False),
    "two samples taken for one": ("smoothing", 1.0, True),
}
# The columns that count the possible results of a random case; a case is unusable if the client's gradient is zero or
# not finite.
COUNTS = {"unique": "unique_count", "ambiguous": "ambiguous_count", "failed": "failed_count", "unusable": "unusable"}
ONE, BATCH = "one sample", "a batch"
KINDS = ("plain", "own class saturated", "two classes saturated", "repeated", "nearly equal", "zero", "one row each")


class Parameters(studies.Parameters):
    """Parameters of the page: random layers, random cases, and networks whose gradients are clipped."""

    samples: int = setting(paper=100, ge=2, le=100_000)
    classes: list[int] = setting(paper=[3, 4, 5, 10, 30])
    proved: list[int] = setting(paper=[3, 4, 10, 30, 100], smallest=[3, 10])
    spreads: list[float] = setting(
        paper=[1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0], smallest=[1e-3, 1.0]
    )
    cases: int = setting(paper=20_000, smallest=40, ge=2, le=1_000_000)
    clipped: list[AttackedNetwork] = setting(
        paper=[
            "cifar10/lenet/untrained",
            "cifar10/resnet18/untrained",
            "flowers17/alexnet/untrained",
            "flowers17/resnet18/untrained",
            "cifar10/lenet/trained",
            "cifar10/resnet20/trained",
            "cifar10/resnet18/trained",
        ],
        validate_default=True,
    )

    @model_validator(mode="after")
    def _three_classes_or_more(self) -> Self:
        for classes in (self.classes, self.proved):
            if classes and min(classes) < 3:
                raise ValueError(
                    f"2 classes leave no equation for a label's scalar: 3 classes or more are needed; got {classes}"
                )
        return self

    def sees(self) -> list[Sees]:
        """Return the networks whose gradients are clipped, and the images that they see."""
        return [one.sees for one in self.clipped]

    def experiments(self) -> Iterator[Experiment]:
        """Yield random layers, proofs, broken assumptions, random cases, and networks with clipped gradients."""
        for labels, dtype, classes in product(LABELS, DTYPES, self.classes):
            if PRIORS[labels].equations(classes) > 0:
                yield Mapped.of(self, labels=labels, dtype=dtype, classes=classes)
        for labels, dtype, classes in product(LABELS, DTYPES, self.proved):
            if PRIORS[labels].equations(classes) > 0:
                yield Proved.of(self, labels=labels, dtype=dtype, classes=classes)
        for what, classes in product(BROKEN, self.classes):
            if what != MIXED or classes > 3:
                yield Broken.of(self, what=what, classes=classes)
        for first in range(0, self.cases, CHUNK):
            yield Trouble.of(self, first=first, count=min(CHUNK, self.cases - first))
        for network, labels in product(self.clipped, LABELS):
            yield Clipped.of(self, row=str(network), labels=labels, timed=TIMED)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return f"{self.samples} random layers per setting, {self.cases:,} difficult random cases"


def judged(found: SoftLabels, targets: Tensor) -> Columns:
    """Return the share of each status, and compare unique labels and candidates with the true labels (N, C)."""
    wrong = metrics.label_error(found.labels.cpu(), targets).gt(KNOWN) & found.where("unique").cpu()
    answered = ~found.where("failed").cpu()
    listed = [
        bool(len(own)) and bool((metrics.label_error(own.cpu(), true.expand_as(own)) < 0.01).any())
        for own, true in zip(found.candidates, targets, strict=True)
    ]
    return statuses(found.status) | {
        "n": len(targets),
        "wrong": int(wrong.sum()),
        "open": float(found.open.cpu()[answered].median()) if answered.any() else None,
        "truth_among": percentage(torch.tensor(listed)),
    }


class RandomLayers(Experiment):
    """Random layers behind a ReLU with one number of classes and several standard deviations of the logits."""

    classes: int
    samples: int
    spreads: list[float]

    def sent(self, labels: str, dtype: str) -> Iterator[tuple[float, Tensor, Tensor, Tensor]]:
        """Yield the gradients of single samples for each standard deviation, with all arithmetic in `dtype`.

        Args:
            labels: The kind of label.
            dtype: The name of the precision.

        Yields:
            The standard deviation, gradients (N, C, I) and weight (C, I) on the device, and labels (N, C) on the CPU.
        """
        kind = DTYPES[dtype]
        for spread in self.spreads:
            generator = torch.Generator().manual_seed(self.seed)
            weight, hidden = random_layer(self.classes, FEATURES, self.samples, spread, generator)
            first = torch.randint(self.classes, (self.samples,), generator=generator)
            targets = soft_labels(labels, first, self.classes, generator).to(kind)
            weight, hidden = weight.to(kind), hidden.to(kind)
            errors = (hidden @ weight.T).softmax(dim=1) - targets
            gradients = errors.unsqueeze(2) * hidden.unsqueeze(1)
            yield spread, gradients.to(self.device), weight.to(self.device), targets.double()


class Mapped(RandomLayers):
    """Recover labels from the gradients of random layers."""

    part: ClassVar[str] = "map"
    labels: str
    dtype: str

    def run(self) -> Iterator[Columns]:
        """Recover labels at every spread of the logits, with the gradient scale known and unknown."""
        for spread, gradients, weight, targets in self.sent(self.labels, self.dtype):
            for known in (True, False):
                found = recover_soft_labels(gradients, weight, prior=self.labels, scale=1.0 if known else None)
                yield judged(found, targets) | {"spread": spread, "known": known}


class Proved(RandomLayers):
    """Prove that no other label explains a gradient, and compare the time with that of the search."""

    part: ClassVar[str] = "proof"
    labels: str
    dtype: str

    def run(self) -> Iterator[Columns]:
        """Recover labels at every spread of the logits, without a proof and with one."""
        for spread, gradients, weight, targets in self.sent(self.labels, self.dtype):
            started = time.perf_counter()
            searched = recover_soft_labels(gradients, weight, prior=self.labels)
            between = time.perf_counter()
            proved = recover_soft_labels(gradients, weight, prior=self.labels, certify="proof")
            ended = time.perf_counter()
            yield judged(proved, targets) | {
                "spread": spread,
                "unique_searched": percentage(searched.where("unique")),
                "confirmed": percentage(searched.where("unique") & proved.where("unique")),
                "search_milliseconds": 1e3 * (between - started) / self.samples,
                "milliseconds": 1e3 * (ended - between) / self.samples,
            }


class Broken(RandomLayers):
    """Attack float32 gradients of clients that violate an assumption of the attacker."""

    part: ClassVar[str] = "broken"
    what: str

    def run(self) -> Iterator[Columns]:
        """Recover labels at every spread of the logits under the violated assumption."""
        labels, factor, paired = BROKEN[self.what]
        for spread, gradients, weight, targets in self.sent(labels, "float32"):
            sent = (gradients + gradients.roll(1, dims=0)) / 2 if paired else gradients
            found = recover_soft_labels(sent * factor, weight, prior="smoothing")
            yield judged(found, targets) | {"spread": spread}


@dataclass(frozen=True)
class Case:
    """One random case: a layer, its samples and their true labels.

    Attributes:
        weight: (C, I).
        bias: (C,), or None.
        hidden: The samples' features (B, I).
        targets: The samples' labels (B, C).
        labels: The kind of label.
        factor: The gradient scale if it is unknown.
        kind: The special property of the case, one of `KINDS`.
        bias_sent: Whether the client sends the bias gradient.
    """

    weight: Tensor
    bias: Tensor | None
    hidden: Tensor
    targets: Tensor
    labels: str
    factor: float
    kind: str
    bias_sent: bool

    def sent(self, factor: float) -> tuple[Tensor, Tensor | None]:
        """Return the scaled mean gradients of weight (C, I) and bias (C,), computed in the client's precision."""
        logits = self.hidden @ self.weight.T + (0 if self.bias is None else self.bias)
        errors = logits.softmax(dim=1) - self.targets
        gradient = errors.T @ self.hidden / len(errors) * factor
        return gradient, errors.mean(dim=0) * factor if self.bias_sent else None


def case(number: int, seed: int) -> Case:
    """Draw a difficult case: flat or steep logits, few classes, saturation, equal or zero features."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def one_of(values: Any) -> Any:
        return values[int(torch.randint(len(values), (1,), generator=generator))]

    single = one_of((True, True, True, True, False))
    classes = one_of((3, 4, 5, 6, 8, 10, 10, 20, 50) if single else (4, 5, 6, 8, 10, 10, 20, 30))
    features = one_of((2, 4, 16, 64, 200) if single else (16, 64, 200))
    size = 1 if single else int(torch.randint(1, min(classes - 1, features, 12), (1,), generator=generator))
    labels = one_of(LABELS)
    if PRIORS[labels].equations(classes) < 1:
        labels = "onehot"
    dtype = DTYPES[
        one_of(("float16", "float32", "float32", "float64", "float64") if single else ("float32", "float64"))
    ]
    spread = 10 ** (float(9 * uniform(1)) - 6) if one_of((True, False)) else 10 ** (float(2 * uniform(1)) - 1)
    kind = one_of(KINDS)
    weight, hidden = normal(classes, features), normal(size, features)
    hidden = hidden.abs() if one_of((True, False)) else hidden.relu()
    bias = normal(classes) * one_of((0.1, 1.0, 3.0)) if one_of((True, False, False)) else None
    if kind == "zero" and size > 1:
        hidden[0] = 0
    hidden = hidden / (hidden @ weight.T).std().clamp(min=1e-12) * spread
    if kind in ("repeated", "nearly equal") and size > 1:
        apart = 0.0 if kind == "repeated" else 10 ** -float(8 * uniform(1))
        hidden[1] = hidden[0] * (1 + apart * normal(features)).clamp(min=0)
    first = torch.randint(classes, (size,), generator=generator)
    if kind == "one row each" and features >= classes:
        weight = torch.eye(classes, features, dtype=torch.float64)
        hidden = uniform(size, features)
        hidden[torch.arange(size), first] = one_of((10.0, 20.0, 30.0, 40.0, 60.0))
    if kind in ("own class saturated", "two classes saturated"):
        first = (hidden @ weight.T).argmax(dim=1)
    if one_of((True, False)) and size > 1:
        first = first[torch.randint(max(1, size // 2), (size,), generator=generator)]
    targets = soft_labels(labels, first, classes, generator)
    if kind == "two classes saturated" and labels == "mixup":
        share = uniform(size, 1)
        hot = torch.eye(classes, dtype=torch.float64)
        targets = share * hot[first] + (1 - share) * hot[(hidden @ weight.T).topk(2, dim=1).indices[:, 1]]
    return Case(
        weight.to(dtype),
        None if bias is None else bias.to(dtype),
        hidden.to(dtype),
        targets.to(dtype),
        labels,
        10 ** (float(6 * uniform(1)) - 3),
        kind,
        # A batch always comes with the bias gradient if there is a bias; for single samples the gradient may be
        # withheld.
        bias is not None and (not single or one_of((True, False))),
    )


class Trouble(Experiment):
    """Search random cases for a wrong label that is called unique; even cases have a known gradient scale."""

    part: ClassVar[str] = "trouble"
    first: int
    count: int

    def run(self) -> Iterator[Columns]:
        """Attack all cases; yield rows for single samples and for batches, with the scale known and unknown."""
        tally: dict[tuple[str, bool], Counter[str]] = {}
        for number in range(self.first, self.first + self.count):
            one, known = case(number, self.seed), number % 2 == 0
            size = ONE if len(one.hidden) == 1 else BATCH
            counts = tally.setdefault((size, known), Counter())
            status, wrong = _attacked(one, known, self.device)
            counts.update({"n": 1, COUNTS[status]: 1, "wrong": int(wrong)})
            if known and size == ONE:
                status, wrong = _attacked(one, known, self.device, certify="proof")
                counts.update({"proved": int(status == "unique"), "proved_wrong": int(wrong)})
        zeros = dict.fromkeys((*COUNTS.values(), "wrong", "proved", "proved_wrong"), 0)
        for (size, known), counts in sorted(tally.items()):
            yield {"gradient_of": size, "known": known, **zeros, **counts}


def _attacked(one: Case, known: bool, device: str, certify: Literal["search", "proof"] = "search") -> tuple[str, bool]:
    """Return the attack's status for a case, and whether the attack calls a wrong label unique."""
    gradient, bias_gradient = one.sent(1.0 if known else one.factor)
    if not gradient.isfinite().all() or not gradient.any():
        return "unusable", False
    options: dict[str, Any] = {
        "prior": one.labels,
        "scale": 1.0 if known else None,
        "bias": None if one.bias is None else one.bias.to(device),
        "bias_gradient": None if bias_gradient is None else bias_gradient.to(device),
    }
    gradient, weight, targets = gradient.to(device), one.weight.to(device), one.targets.double()
    if len(one.hidden) == 1:
        found = recover_soft_labels(gradient, weight, certify=certify, **options)
        status, labels = found.status[0], found.labels.cpu()
    else:
        batch = recover_batch(gradient, weight, batch_size=len(one.hidden), rounds=8, **options)
        status, labels = batch.status, batch.labels.cpu()
        if status == "unique":
            labels = labels[metrics.match_batch(batch.features.cpu(), one.hidden.double())]
    if status != "unique":
        return status, False
    return status, not float(metrics.label_error(labels, targets).max()) <= KNOWN


class Clipped(Experiment):
    """Attack the clipped gradients of a network; `row` names the network."""

    part: ClassVar[str] = "clipped"
    row: str
    labels: str
    samples: int
    timed: int

    @property
    def _network(self) -> AttackedNetwork:
        return AttackedNetwork.of(self.row)

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        one = self._network
        return [one.dataset, *([one.training] if one.stage == "trained" else [])]

    def run(self) -> Iterator[Columns]:
        """Recover labels with the gradient scale unknown, and under the assumption of no clipping."""
        private = data.load(self._network.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        model, _ = attacked_networks.network(self._network, self.labels, private, self.seed, self.device)
        for dtype in ("float32", "float64"):
            leaks, _ = observe_private(model, inputs, targets, dtype, self.device)
            truth = targets.to(DTYPES[dtype]).double()
            for norm in NORMS:
                yield self._attacked(leaks, truth, norm) | {"dtype": dtype, "norm": norm, "classes": truth.shape[1]}

    def _attacked(self, leaks: HeadLeaks, truth: Tensor, norm: float) -> Columns:
        clean, weight, prior = leaks.weight_gradients, leaks.weight, self.labels
        sizes = clean.flatten(1).norm(dim=1)[:, None, None]
        sent = clean * (norm / sizes.clamp(min=torch.finfo(clean.dtype).tiny)).clamp(max=1)
        unaware = recover_soft_labels(sent, weight, prior=prior)
        found = recover_soft_labels(sent, weight, prior=prior, scale=None)
        # The two attacks are timed in turns, so that other load on the machine affects both alike.
        turns = [(_seconds(clean, weight, prior, 1.0), _seconds(sent, weight, prior, None)) for _ in range(self.timed)]
        known, unknown = (min(column) for column in zip(*turns, strict=True))
        right = metrics.label_error(found.labels.cpu(), truth).le(KNOWN) & found.where("unique").cpu()
        return judged(found, truth) | {
            "zero": percentage(sizes == 0),
            "touched": percentage(sizes > norm),
            "unique_right": percentage(right),
            "unaware": percentage(metrics.label_error(unaware.labels.cpu(), truth).le(KNOWN)),
            "unaware_wrong": judged(unaware, truth)["wrong"],
            "milliseconds": 1e3 * unknown / self.samples,
            "times_seconds": unknown / known,
        }


def _seconds(gradients: Tensor, weight: Tensor, labels: str, scale: float | None) -> float:
    """Return the CPU time (s) of one recovery, which other processes hardly affect."""
    started = time.process_time()
    recover_soft_labels(gradients, weight, prior=labels, scale=scale)
    return time.process_time() - started


def headline(record: Record) -> Headline:
    """Return the finding: an unknown gradient scale does not hide a label, and no certified label is wrong."""
    known = claims.judgements(record)
    clipped = known["identifiability-clipped-resnet"]
    wrong = [known[f"identifiability-{part}"].value for part in ("map", "trouble", "clipped-wrong")]
    return Headline(
        "Clipping alone need not hide labels: an attacker who does not know the gradient scale recovers "
        f"{clipped.text} of the smoothed labels from clipped gradients of an untrained ResNet18; no label certified "
        "on this page is wrong while the attack's assumptions hold.",
        true=clipped.value is not None and clipped.value >= 99 and all(value == 0 for value in wrong),
        claim="identifiability-map",
        what="wrong labels that are certified as unique: the most in any setting of the random layers",
        of="settings of random layers",
        figure=figure_map,
    )


def trouble_table(record: Record) -> pd.DataFrame:
    """Return the results on the difficult random cases, by what a gradient is of and by what is known of its scale."""

    def percent_of_cases(column: str, _: object) -> Measure:
        return lambda rows: f"{100 * rows[column].sum() / rows['n'].sum():.1f}"

    rows = record.rows(Trouble)
    (proved,) = cells(COLUMNS, "proved", by=percent_of_cases, head="{} (%)").items()
    return summary(
        rows.assign(scale=rows["known"].map({True: "known", False: "unknown"})),
        {"gradient of": "gradient_of", "gradient scale": "scale"},
        {
            **cells(COLUMNS, "n", by=total),
            **cells(COLUMNS, *COUNTS.values(), by=percent_of_cases, head="{} (%)"),
            **cells(COLUMNS, "wrong", by=total),
            proved[0]: among(proved[1], gradient_of=ONE, known=True),
        },
    )


def clipped_table(record: Record) -> pd.DataFrame:
    """Return the labels recovered from gradients clipped to the smaller norm, by network: means over kinds of label."""
    rows = select(record.rows(Clipped), norm=min(NORMS))
    right, text = COLUMNS["unique_right"].head, COLUMNS["unique_right"].text
    return summary(
        rows.assign(network=rows["row"].str.replace("/", ", ")),
        {"network": "network"},
        {
            **cells(COLUMNS, "unaware", by=mean),
            **{f"{right}, {dtype}": among(mean("unique_right", text), dtype=dtype) for dtype in ("float32", "float64")},
            **cells(COLUMNS, "truth_among", by=mean),
            **cells(COLUMNS, "times_seconds", by=median),
        },
    )


def _ten_classes(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows with ten classes, or with the most classes if none has ten, and this number of classes."""
    classes = 10 if 10 in set(rows["classes"]) else int(rows["classes"].max())
    return select(rows, classes=classes), classes


def figure_map(record: Record) -> Figure:
    """Plot the share of unique labels (%) against the standard deviation of the logits.

    One panel for each kind of label; colours are precisions; dashed lines are for an unknown gradient scale.
    """
    rows, classes = _ten_classes(record.rows(Mapped))
    looks = crossed(DTYPES, ("scale known", "scale unknown"))
    return drawn(
        rows.assign(scale=rows["known"].map({True: "scale known", False: "scale unknown"})),
        lines("spread", "unique", by=["dtype", "scale"], order=list(looks), looks=looks, linewidth=1.3, markersize=3),
        panels="labels",
        title=f"{{}}, {classes} classes".format,
        height=3.4,
        legend=3,
        xscale="log",
        xlabel="standard deviation of the logits",
        ylabel="labels certified as unique (%)",
        ylim=(-3, 103),
    )


def figure_broken(record: Record) -> Figure:
    """Plot the share of wrong certificates (%) against the standard deviation of the logits, by broken assumption."""
    rows, classes = _ten_classes(record.rows(Broken))
    return drawn(
        rows.assign(share=100 * rows["wrong"] / rows["n"]),
        lines("spread", "share", by="what"),
        height=3.2,
        legend=2,
        xscale="log",
        xlabel=f"standard deviation of the logits ({classes} classes)",
        ylabel="wrong certificates (%)",
        ylim=(-3, 103),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.rows(Clipped)
    sources = rows["row"].str.split("/")
    found = []
    for attack, column in (("exact solver, scale unknown", "unique"), ("exact solver", "unaware")):
        found += collected(
            record, rows, "soft labels", average_of(column, "labels recovered", "samples", count="n"), attack=attack,
            network=[parts[1] for parts in sources], training=[parts[2] for parts in sources],
            data=[parts[0] for parts in sources], defense=[f"clip/{norm:g}" for norm in rows["norm"]],
            client=rows["dtype"], detail=rows["labels"] + " labels",
        )  # fmt: skip
    return found
