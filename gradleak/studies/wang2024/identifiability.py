"""Identifiability: what a gradient determines

Beyond wang2024, section 3: when label, feature and gradient scale are determined; a search for wrong certificates.
"""

from __future__ import annotations

import math
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
from gradleak.runs import kinds
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import crossed, drawn, lines
from gradleak.show.headline import Headline
from gradleak.show.summaries import NOTHING, Measure, among, mean, median, select, summary, total
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import attacked_networks
from gradleak.studies.shared.attacked_networks import AttackedNetwork
from gradleak.studies.shared.outcomes import Outcome, average_of, collected
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples, random_layer, soft_labels

PLACE = "Beyond section 3"
# The bound on a label's error: for a determined label, this bound is of the size of rounding errors.
COLUMNS = {"open": kinds.rounding()}
DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
FEATURES = 64
# Number of random cases in one experiment.
CHUNK = 250
NORMS = (0.1, 1.0)
# Repetitions of each time measurement; the smallest CPU time counts.
TIMED = 5


@dataclass(frozen=True)
class Breach:
    """A client's violation of the attacker's assumptions: smoothed labels, gradient scale 1, one sample per gradient.

    Attributes:
        labels: The kind of the client's labels.
        factor: The scale of the client's gradient.
        paired: Whether each gradient is the mean of two samples' gradients.
    """

    labels: str = "smoothing"
    factor: float = 1.0
    paired: bool = False


MIXED = "mixed labels taken for smoothed"
BROKEN = {
    "rescaled by 0.9": Breach(factor=0.9),
    "rescaled by 0.25": Breach(factor=0.25),
    MIXED: Breach(labels="mixup"),
    "two samples taken for one": Breach(paired=True),
}
# The possible results of a random case; a case is unusable if the client's gradient is zero or not finite.
SAID = ("unique", "ambiguous", "failed", "unusable")
ONE, BATCH = "one sample", "a batch"
KINDS = ("plain", "own class saturated", "two classes saturated", "repeated", "nearly equal", "zero", "one row each")


class Parameters(studies.Parameters):
    """Parameters of the page: random layers, random cases, and networks whose gradients are clipped."""

    samples: int = setting(
        10,
        paper=100,
        ge=2,
        le=100_000,
        about="random layers per kind of label, precision, number of classes and standard deviation of the logits",
    )
    classes: list[int] = setting(
        [3, 10], paper=[3, 4, 5, 10, 30], about="numbers of classes C of the random layers, 3 or more"
    )
    proved: list[int] = setting(
        [10],
        paper=[3, 4, 10, 30, 100],
        smallest=[3, 10],
        about="numbers of classes C of the layers whose labels are proved unique, 3 or more",
    )
    spreads: list[float] = setting(
        [1e-4, 1e-2, 1.0, 100.0],
        paper=[1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0],
        smallest=[1e-3, 1.0],
        about="standard deviations of the random layers' logits",
    )
    cases: int = setting(
        100, paper=20_000, smallest=40, ge=2, le=1_000_000, about="random cases in the search for a wrong certificate"
    )
    clipped: list[AttackedNetwork] = setting(
        ["photos/lenet/untrained"],
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
        about="networks whose gradients are clipped, written dataset/network/stage",
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


class Statuses(Row):
    """The attack's results on n samples: the percentage of each status.

    Attributes:
        wrong: The number of wrong labels that are called unique.
        open: The median bound on the label error, without failed samples; None if all failed.
        truth_among: The percentage of samples whose true label is among the candidates.
    """

    n: int
    unique: float
    ambiguous: float
    failed: float
    wrong: int
    open: float | None
    truth_among: float


class MappedStatuses(Statuses):
    """The results for logits with the standard deviation `spread`; `known`: whether the gradient scale is known."""

    spread: float
    known: bool


class ProvedStatuses(Statuses):
    """The results with a proof of uniqueness.

    Attributes:
        searched: The percentage of labels that are unique by the search alone.
        confirmed: The percentage that are unique by both search and proof.
        search_milliseconds: The time per sample of the search.
        milliseconds: The time per sample of search and proof.
    """

    spread: float
    searched: float
    confirmed: float
    search_milliseconds: float
    milliseconds: float


class BrokenStatuses(Statuses):
    """The attack's results if an assumption does not hold."""

    spread: float


class ClippedStatuses(Statuses):
    """The attack's results on gradients that are clipped to a norm; shares in percent.

    Attributes:
        zero: Gradients that are zero.
        touched: Gradients that clipping changes.
        right: Labels that are called unique and are right.
        unaware: Right labels by an attacker who assumes that gradients are not clipped.
        unaware_wrong: The number of wrong labels that this attacker calls unique.
        milliseconds: The time per sample with the gradient scale unknown.
        times_seconds: This time divided by the time with the scale known.
    """

    classes: int
    dtype: str
    norm: float
    zero: float
    touched: float
    right: float
    unaware: float
    unaware_wrong: int
    milliseconds: float
    times_seconds: float


class TroubleCounts(Row):
    """How many of n random cases get each status.

    Attributes:
        first: The number of the first case.
        size: "one sample" or "a batch".
        known: Whether the gradient scale is known.
        unusable: Cases whose gradient is zero or not finite.
        wrong: Cases with a wrong label that is called unique.
        proved: Cases that are proved unique; proofs are made for single samples with a known scale.
        proved_wrong: Cases with a wrong label that is proved unique.
    """

    first: int
    size: str
    known: bool
    n: int
    unique: int
    ambiguous: int
    failed: int
    unusable: int
    wrong: int
    proved: int
    proved_wrong: int


def made(
    labels: str, dtype: str, classes: int, spread: float, samples: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of N single samples in a random layer behind a ReLU, with all arithmetic in `dtype`.

    Args:
        labels: The kind of label.
        dtype: The name of the precision.
        classes: C.
        spread: The standard deviation of the logits.
        samples: N.
        seed: The seed of all random numbers.

    Returns:
        Gradients (N, C, I), the weight (C, I), labels (N, C) and features (N, I).
    """
    generator = torch.Generator().manual_seed(seed)
    weight, hidden = random_layer(classes, FEATURES, samples, spread, generator)
    targets = soft_labels(labels, torch.randint(classes, (samples,), generator=generator), classes, generator)
    kind = DTYPES[dtype]
    weight, hidden, targets = weight.to(kind), hidden.to(kind), targets.to(kind)
    errors = (hidden @ weight.T).softmax(dim=1) - targets
    return errors.unsqueeze(2) * hidden.unsqueeze(1), weight, targets.double(), hidden.double()


def statuses(found: SoftLabels, targets: Tensor) -> Statuses:
    """Return the percentage of each status, and how many unique labels are wrong, for labels (N, C)."""
    unique = found.where("unique").cpu()
    answered = ~found.where("failed").cpu()
    return Statuses(
        n=len(targets),
        unique=_percentage(found, "unique"),
        ambiguous=_percentage(found, "ambiguous"),
        failed=_percentage(found, "failed"),
        wrong=int((metrics.label_error(found.labels.cpu(), targets).gt(KNOWN) & unique).sum()),
        open=float(found.open.cpu()[answered].median()) if answered.any() else None,
        truth_among=100 * _among(found.candidates, targets),
    )


def _percentage(found: SoftLabels, status: str) -> float:
    return 100 * found.status.count(status) / len(found)


def _among(candidates: tuple[Tensor, ...], targets: Tensor) -> float:
    """Return the share of samples whose true label is among the candidates, up to an L1 error of 0.01."""
    near = [
        bool(len(own)) and bool((metrics.label_error(own.cpu(), true.expand_as(own)) < 0.01).any())
        for own, true in zip(candidates, targets, strict=True)
    ]
    return sum(near) / len(near)


class RandomLayers(Experiment):
    """Random layers with one number of classes and several standard deviations of the logits."""

    classes: int
    samples: int
    spreads: list[float]

    def sent(self, labels: str, dtype: str, spread: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients (N, C, I) and weight (C, I) on the device, and labels (N, C) on the CPU."""
        gradients, weight, targets, _ = made(labels, dtype, self.classes, spread, self.samples, self.seed)
        return gradients.to(self.device), weight.to(self.device), targets


class Mapped(RandomLayers):
    """Recover labels from the gradients of random layers."""

    part: ClassVar[str] = "map"
    labels: str
    dtype: str

    def run(self) -> Iterator[MappedStatuses]:
        """Recover labels at every spread of the logits, with the gradient scale known and unknown."""
        for spread in self.spreads:
            gradients, weight, targets = self.sent(self.labels, self.dtype, spread)
            for known in (True, False):
                found = recover_soft_labels(gradients, weight, prior=self.labels, scale=1.0 if known else None)
                yield MappedStatuses.of(statuses(found, targets), spread=spread, known=known)


class Proved(RandomLayers):
    """Prove that no other label explains a gradient, and compare the time with that of the search."""

    part: ClassVar[str] = "proof"
    labels: str
    dtype: str

    def run(self) -> Iterator[ProvedStatuses]:
        """Recover labels at every spread of the logits, without a proof and with one."""
        for spread in self.spreads:
            gradients, weight, targets = self.sent(self.labels, self.dtype, spread)
            started = time.perf_counter()
            searched = recover_soft_labels(gradients, weight, prior=self.labels)
            between = time.perf_counter()
            proved = recover_soft_labels(gradients, weight, prior=self.labels, certify="proof")
            ended = time.perf_counter()
            both = (searched.where("unique") & proved.where("unique")).double().mean()
            yield ProvedStatuses.of(
                statuses(proved, targets),
                spread=spread,
                searched=100 * float(searched.where("unique").double().mean()),
                confirmed=100 * float(both),
                search_milliseconds=1e3 * (between - started) / self.samples,
                milliseconds=1e3 * (ended - between) / self.samples,
            )


class Broken(RandomLayers):
    """Attack float32 gradients of clients that violate an assumption of the attacker."""

    part: ClassVar[str] = "broken"
    what: str

    def run(self) -> Iterator[BrokenStatuses]:
        """Recover labels at every spread of the logits under the violated assumption."""
        breach = BROKEN[self.what]
        for spread in self.spreads:
            gradients, weight, targets = self.sent(breach.labels, "float32", spread)
            if breach.paired:
                gradients = (gradients + gradients.roll(1, dims=0)) / 2
            found = recover_soft_labels(gradients * breach.factor, weight, prior="smoothing")
            yield BrokenStatuses.of(statuses(found, targets), spread=spread)


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

    def run(self) -> Iterator[TroubleCounts]:
        """Attack all cases; yield rows for single samples and for batches, with the scale known and unknown."""
        said: dict[tuple[str, bool], Counter[str]] = {}
        for number in range(self.first, self.first + self.count):
            one, known = case(number, self.seed), number % 2 == 0
            size = ONE if len(one.hidden) == 1 else BATCH
            counts = said.setdefault((size, known), Counter())
            status, wrong = _asked(one, known, self.device)
            counts.update({"n": 1, status: 1, "wrong": int(wrong)})
            if known and size == ONE:
                status, wrong = _asked(one, known, self.device, certify="proof")
                counts.update({"proved": int(status == "unique"), "proved_wrong": int(wrong)})
        zeros = dict.fromkeys((*SAID, "wrong", "proved", "proved_wrong"), 0)
        for (size, known), counts in sorted(said.items()):
            yield TroubleCounts(first=self.first, size=size, known=known, **zeros | counts)


def _asked(one: Case, known: bool, device: str, certify: Literal["search", "proof"] = "search") -> tuple[str, bool]:
    """Return the attack's status for a case, and whether the attack calls a wrong label unique."""
    gradient, bias_gradient = one.sent(1.0 if known else one.factor)
    if not gradient.isfinite().all() or not gradient.any():
        return "unusable", False
    bias = None if one.bias is None else one.bias.to(device)
    bias_gradient = None if bias_gradient is None else bias_gradient.to(device)
    factor = 1.0 if known else None
    gradient, weight = gradient.to(device), one.weight.to(device)
    if len(one.hidden) == 1:
        found = recover_soft_labels(
            gradient, weight, prior=one.labels, scale=factor, bias=bias, bias_gradient=bias_gradient, certify=certify
        )
        error = float(metrics.label_error(found.labels.cpu(), one.targets.double())[0])
        return found.status[0], found.status[0] == "unique" and not error <= KNOWN
    batch = recover_batch(
        gradient, weight, batch_size=len(one.hidden), prior=one.labels, scale=factor, rounds=8, bias=bias,
        bias_gradient=bias_gradient,
    )  # fmt: skip
    if batch.status != "unique":
        return batch.status, False
    order = metrics.match_batch(batch.features.cpu(), one.hidden.double())
    error = float(metrics.label_error(batch.labels.cpu()[order], one.targets.double()).max())
    return "unique", not error <= KNOWN


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

    def run(self) -> Iterator[ClippedStatuses]:
        """Recover labels with the gradient scale unknown, and under the assumption of no clipping."""
        private = data.load(self._network.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        model, _ = attacked_networks.network(self._network, self.labels, private, self.seed, self.device)
        for dtype in ("float32", "float64"):
            leaks, _ = observe_private(model, inputs, targets, dtype, self.device)
            truth = targets.to(DTYPES[dtype]).double()
            for norm in NORMS:
                yield self._attacked(leaks, truth, norm, dtype)

    def _attacked(self, leaks: HeadLeaks, truth: Tensor, norm: float, dtype: str) -> ClippedStatuses:
        clean, weight, prior = leaks.weight_gradients, leaks.weight, self.labels
        sizes = clean.flatten(1).norm(dim=1)[:, None, None]
        sent = clean * (norm / sizes.clamp(min=torch.finfo(clean.dtype).tiny)).clamp(max=1)
        unaware = recover_soft_labels(sent, weight, prior=prior)
        found = recover_soft_labels(sent, weight, prior=prior, scale=None)
        # The two attacks are timed in turns, so that other load on the machine affects both alike.
        turns = [(_seconds(clean, weight, prior, 1.0), _seconds(sent, weight, prior, None)) for _ in range(self.timed)]
        known, unknown = (min(column) for column in zip(*turns, strict=True))
        right = metrics.label_error(found.labels.cpu(), truth).le(KNOWN) & found.where("unique").cpu()
        return ClippedStatuses.of(
            statuses(found, truth),
            classes=truth.shape[1],
            dtype=dtype,
            norm=norm,
            zero=100 * float((sizes == 0).double().mean()),
            touched=100 * float((sizes > norm).double().mean()),
            right=100 * float(right.double().mean()),
            unaware=100 * float(metrics.label_error(unaware.labels.cpu(), truth).le(KNOWN).double().mean()),
            unaware_wrong=statuses(unaware, truth).wrong,
            milliseconds=1e3 * unknown / self.samples,
            times_seconds=unknown / known,
        )


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


def _part_of(part: str, whole: str) -> Measure:
    """Return a measure: the sum of column `part` in percent of the sum of column `whole`, a dash if the latter is 0."""

    def measured(rows: pd.DataFrame) -> str:
        most = rows[whole].sum()
        return f"{100 * rows[part].sum() / most:.1f}" if most else NOTHING

    return measured


def trouble_table(record: Record) -> pd.DataFrame:
    """Return the results on the difficult random cases.

    Rows: single samples or batches, with the gradient scale known or unknown. Columns: cases, the share of each status,
    unusable cases, the number of wrong certificates, and the share proved unique.
    """
    rows = record.rows(Trouble)
    return summary(
        rows.assign(scale=["known" if known else "unknown" for known in rows["known"]]),
        {"gradient of": "size", "gradient scale": "scale"},
        {
            "cases": total("n", ".0f"),
            **{f"{status} (%)": _part_of(status, "n") for status in SAID[:3]},
            "gradient zero or not finite (%)": _part_of("unusable", "n"),
            "wrong certificates": total("wrong", ".0f"),
            "proved unique (%)": among(_part_of("proved", "n"), size=ONE, scale="known"),
        },
    )


def proof_table(record: Record) -> pd.DataFrame:
    """Return how many labels are proved unique, and the time of the proof.

    Rows: numbers of classes C and precisions. Columns: samples; labels unique by search; the share of these that is
    proved unique; labels proved unique; wrong labels among the latter; the median time per sample (ms) without and with
    proof.
    """
    rows = record.rows(Proved).astype({"classes": int})
    return summary(
        rows.sort_values(["classes", "dtype"], kind="stable"),
        {"C": "classes", "precision": "dtype"},
        {
            "samples": total("n"),
            "unique by search (%)": mean("searched", ".1f"),
            "of these also proved (%)": _part_of("confirmed", "searched"),
            "proved unique (%)": mean("unique", ".1f"),
            "proved, but wrong": total("wrong", ".0f"),
            "time of the search (ms)": median("search_milliseconds", ".2f"),
            "time with proof (ms)": median("milliseconds", ".2f"),
        },
    )


def clipped_table(record: Record) -> pd.DataFrame:
    """Return the effect of clipping on label recovery.

    Rows: networks, numbers of classes C and norms. Columns: gradients changed by clipping; right labels of an attacker
    who assumes no clipping; right and unique labels with the scale unknown, for each precision; wrong certificates;
    samples with the truth among the candidates; zero gradients; and the time relative to a known scale.
    """
    rows = record.rows(Clipped).astype({"classes": int})
    rows = rows.assign(network=rows["row"].str.replace("/", ", "), norm=rows["norm"].map("{:g}".format))
    return summary(
        rows,
        {"network": "network", "C": "classes", "clipped to norm": "norm"},
        {
            "clipped (%)": mean("touched", ".0f"),
            "right with scale 1 (%)": mean("unaware", ".0f"),
            **{
                f"unique and right, {dtype} (%)": among(mean("right", ".1f"), dtype=dtype)
                for dtype in ("float32", "float64")
            },
            "wrong certificates": total("wrong", ".0f"),
            "right label among the answers (%)": mean("truth_among", ".1f"),
            "zero gradients (%)": mean("zero", ".1f"),
            "relative time": median("times_seconds", ".1f"),
        },
    )


def _broken(record: Record) -> pd.DataFrame:
    """Return the rows on broken assumptions with the percentage of wrong certificates."""
    return record.rows(Broken).assign(share=lambda rows: 100 * rows["wrong"] / rows["n"])


def broken_table(record: Record) -> pd.DataFrame:
    """Return how often a broken assumption gives a wrong label that is called unique.

    Rows: broken assumptions and numbers of classes C. Columns: standard deviations of the logits.
    """
    frame = _broken(record)
    # Show every other spread if all would be too wide for the page.
    spreads = sorted(set(frame["spread"]))
    few = spreads if len(spreads) < 8 else spreads[::2]
    frame = frame[frame["spread"].isin(few)].astype({"classes": int})
    table = frame.pivot_table(index=["what", "classes"], columns="spread", values="share", sort=False)
    table = table.map("{:.0f} %".format)
    table.columns = [f"s = {spread:g}" for spread in table.columns]
    return table.reset_index().rename(columns={"what": "broken assumption", "classes": "C"})


def figure_broken(record: Record) -> Figure:
    """Plot the share of wrong certificates (%) against the standard deviation of the logits, by broken assumption."""
    rows = _broken(record)
    classes = 10 if 10 in set(rows["classes"]) else int(rows["classes"].max())
    return drawn(
        select(rows, classes=classes),
        lines("spread", "share", by="what"),
        height=3.2,
        legend=2,
        xscale="log",
        xlabel=f"standard deviation of the logits ({classes} classes)",
        ylabel="wrong certificates (%)",
        ylim=(-3, 103),
    )


def figure_map(record: Record) -> Figure:
    """Plot the share of unique labels (%) against the standard deviation of the logits.

    One panel for each kind of label; colours are precisions; dashed lines are for an unknown gradient scale.
    """
    rows = record.rows(Mapped)
    classes = 10 if 10 in set(rows["classes"]) else int(rows["classes"].max())
    rows = rows.assign(scale=rows["known"].map({True: "scale known", False: "scale unknown"}))
    looks = crossed(DTYPES, ("scale known", "scale unknown"))
    return drawn(
        select(rows, classes=classes),
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


def figure_classes(record: Record) -> Figure:
    """Plot the share of unique smoothed labels (%, colour) from float32 gradients over logit spread and number of
    classes.

    Left: the gradient scale is known. Right: it is unknown.
    """
    frame = record.rows(Mapped)
    frame = frame[(frame["labels"] == "smoothing") & (frame["dtype"] == "float32")]
    figure, axes = figures.panels(1, 2, height=3.2, sharey=True)
    for axis, known in zip(axes[0], (True, False), strict=True):
        own = frame[frame["known"] == known]
        grid = own.pivot_table(index="classes", columns="spread", values="unique")
        image = axis.imshow(grid, aspect="auto", origin="lower", cmap="viridis", vmin=0, vmax=100)
        step = max(1, math.ceil(len(grid.columns) / 8))
        axis.set_xticks(range(0, len(grid.columns), step), [f"{v:g}" for v in grid.columns[::step]])
        axis.set_yticks(range(len(grid.index)), [str(int(v)) for v in grid.index])
        axis.grid(visible=False)
        axis.set(title=f"scale {'known' if known else 'unknown'}", xlabel="standard deviation of the logits")
    axes[0][0].set_ylabel("number of classes C")
    figure.colorbar(image, ax=list(axes[0]), label="certified as unique (%)", shrink=0.9)
    return figure


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
