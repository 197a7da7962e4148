"""What a certificate is worth

Beyond wang2024, sections 3 and 4: search for wrong answers among those that the attacks call unique or exact, and
measure which gradients determine a label if the gradient scale is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import AfterValidator, Field
from scipy.stats import binomtest
from torch import Tensor

from gradleak import claims, data, metrics, studies
from gradleak.hunting import BROKEN, FAMILIES, OUTCOMES
from gradleak.hunting.families import Draw
from gradleak.hunting.running import block, pairs
from gradleak.labels import PRIORS, SoftLabels, recover_batch, recover_soft_labels
from gradleak.labels.priors import KNOWN
from gradleak.leak import HeadLeaks
from gradleak.show.aggregate import NOTHING, aggregate, cells, select, total
from gradleak.show.drawn import bars, crossed, drawn, lines, stacked
from gradleak.show.summary import Summary
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import AttackedNetwork, NamedNetwork, network
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import average_of, collected
from gradleak.studies.shared.samples import LABELS, observe_private, private_samples, random_layer, soft_labels
from gradleak.studies.shared.searched import percentage, statuses, truth_among
from gradleak.studies.wang2024.columns import COLUMNS

PLACE = "Beyond sections 3 and 4"
# The parameter that gives the number of seeds for a family of attacks, if it does not have the family's name.
SEEDS = {
    "certain": "labels",
    "connected": "inversions",
    "convolutional": "inversions",
    "units": "inversions",
    "peeling": "peelings",
    "sentences": "sequences",
    "texts": "sequences",
    "transcripts": "sequences",
    "transformers": "inversions",
}
# Seeds per trial of the hunt, and difficult cases per trial: few, so that an interrupted trial loses little work.
AT_ONCE, CASES_AT_ONCE = 25, 250
# The distance between the first seeds of two runs whose page seeds differ by 1.
APART = 1_000_000
# The column that counts each outcome of the hunt.
COUNTS: dict[str, str] = dict(
    zip(OUTCOMES, ("right_count", "wrong", "with_truth", "without_truth", "failed_count", "refused"), strict=True)
)
COLOURS = ("#3b7a57", "#b3261e", "#8fb8de", "#f0c05a", "#c9cdd2", "#e6e8ea")
DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
# The column that counts each result of a difficult case; a case is unusable if its gradient is zero or not finite.
RESULTS = {"unique": "unique_count", "ambiguous": "ambiguous_count", "failed": "failed_count", "unusable": "unusable"}
ONE, BATCH = "one sample", "a batch"
KINDS = ("plain", "own class saturated", "two classes saturated", "repeated", "nearly equal", "zero", "one row each")
# Norms to which gradients are clipped, and repetitions of the time measurement; the smallest CPU time counts.
NORMS, TIMED = (0.1, 1.0), 5


def _known(name: str) -> str:
    if name not in BROKEN:
        raise ValueError(f"must be one of {', '.join(BROKEN)}")
    return name


Assumption = Annotated[str, AfterValidator(_known)]
# Two classes leave no equation for a label's scalar.
Classes = Annotated[int, Field(ge=3)]


class Parameters(studies.Parameters):
    """Parameters of the page: seeds of random clients, random layers, difficult cases, and clipped networks."""

    broken: list[Assumption] = setting(paper=list(BROKEN), smallest=["none", "signs of lower layers"], min_length=1)
    kept: int = setting(paper=10, ge=1, le=1000)
    labels: int = setting(paper=80, smallest=1, ge=1, le=100_000)
    batches: int = setting(paper=200, ge=1, le=100_000)
    joint: int = setting(paper=40, ge=1, le=100_000)
    counts: int = setting(paper=200, ge=1, le=100_000)
    features: int = setting(paper=200, ge=1, le=100_000)
    inversions: int = setting(paper=160, smallest=1, ge=1, le=100_000)
    peelings: int = setting(paper=60, ge=1, le=100_000)
    updates: int = setting(paper=200, ge=1, le=100_000)
    sequences: int = setting(paper=100, ge=1, le=100_000)
    samples: int = setting(paper=100, ge=2, le=100_000)
    classes: list[Classes] = setting(paper=[3, 4, 5, 10, 30])
    proved: list[Classes] = setting(paper=[3, 4, 10, 30, 100], smallest=[3, 10])
    spreads: list[float] = setting(
        paper=[1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0], smallest=[1e-3, 1.0]
    )
    cases: int = setting(paper=20_000, smallest=40, ge=2, le=1_000_000)
    clipped: list[AttackedNetwork] = setting(
        paper=AttackedNetwork.listed(
            ("cifar10", "lenet", "untrained"),
            ("cifar10", "resnet18", "untrained"),
            ("flowers17", "alexnet", "untrained"),
            ("flowers17", "resnet18", "untrained"),
            ("cifar10", "lenet", "trained"),
            ("cifar10", "resnet20", "trained"),
            ("cifar10", "resnet18", "trained"),
        ),
    )

    def sees(self) -> list[Sees]:
        """Return the networks whose gradients are clipped, and the images that they see."""
        return [one.sees for one in self.clipped]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the hunt, first with all assumptions kept; random layers; difficult cases; and clipped networks."""
        for family, broken in sorted(pairs(), key=lambda pair: pair[1] != "none"):
            wanted = getattr(self, SEEDS.get(family, family)) if broken in self.broken else 0
            wanted *= self.kept if broken == "none" else 1
            for first in range(0, wanted, AT_ONCE):
                seeds = min(AT_ONCE, wanted - first)
                yield Hunt.of(self, family=family, broken=broken, first=first, seeds=seeds)
        for kind, numbers in ((Mapped, self.classes), (Proved, self.proved)):
            for labels, dtype, classes in product(LABELS, DTYPES, numbers):
                if PRIORS[labels].equations(classes) > 0:
                    yield kind.of(self, labels=labels, dtype=dtype, classes=classes)
        for first in range(0, self.cases, CASES_AT_ONCE):
            yield Trouble.of(self, first=first, count=min(CASES_AT_ONCE, self.cases - first))
        for row, labels in product(self.clipped, LABELS):
            yield Clipped.of(self, row=row, labels=labels, timed=TIMED)

    def about(self) -> str:
        """Return a short text on the size of a run."""
        return (
            f"{self.labels} seeds of single labels for each assumption, {self.samples} random layers per setting, "
            f"{self.cases:,} difficult random cases"
        )


class OnCPU(Experiment):
    """An experiment that runs on the CPU wherever the page runs."""

    stays_on_cpu: ClassVar[str] = (
        "they attack thousands of tiny networks one after another, which is too little work at a time for a GPU"
    )


class Hunt(OnCPU, part="hunt"):
    """Search for wrong certificates of one attack under one broken assumption, for `seeds` seeds from `first` on."""

    dataset: ClassVar[str] = "photos"
    family: str
    broken: str
    first: int
    seeds: int

    def run(self) -> list[Columns]:
        """Count the outcomes, and keep the seeds and settings of the first three wrong answers."""
        tally = block(self.family, self.broken, APART * self.seed + self.first, self.seeds)
        cases, counts = tally.outcomes.total(), {column: tally.outcomes[name] for name, column in COUNTS.items()}
        examples = "; ".join(f"{seed} ({setting})" for seed, _, setting in tally.wrong[:3])
        right_share = 100 * counts["right_count"] / max(1, cases)
        return [{"cases": cases, **counts, "right_share": right_share, "examples": examples}]


def judged(found: SoftLabels, targets: Tensor) -> Columns:
    """Return the share of each status, and compare unique labels and candidates with the true labels (N, C)."""
    wrong = metrics.label_error(found.labels.cpu(), targets).gt(KNOWN) & found.where("unique").cpu()
    answered = ~found.where("failed").cpu()
    return statuses(found.status) | {
        "n": len(targets),
        "wrong": int(wrong.sum()),
        "open": float(found.open.cpu()[answered].median()) if answered.any() else None,
        "truth_among": truth_among(found, targets),
    }


class RandomLayers(Experiment):
    """Random layers behind a ReLU with one number of classes and several standard deviations of the logits."""

    labels: str
    dtype: str
    classes: int
    samples: int
    spreads: list[float]

    def sent(self) -> Iterator[tuple[float, Tensor, Tensor, Tensor]]:
        """Yield the gradients of single samples for each standard deviation, with all arithmetic in `dtype`.

        Yields:
            The standard deviation, gradients (N, C, I) and weight (C, I) on the device, and labels (N, C) on the CPU.
        """
        kind = DTYPES[self.dtype]
        for spread in self.spreads:
            generator = torch.Generator().manual_seed(self.seed)
            weight, hidden = random_layer(self.classes, 64, self.samples, spread, generator)
            first = torch.randint(self.classes, (self.samples,), generator=generator)
            targets = soft_labels(self.labels, first, self.classes, generator).to(kind)
            weight, hidden = weight.to(kind), hidden.to(kind)
            errors = (hidden @ weight.T).softmax(dim=1) - targets
            gradients = errors.unsqueeze(2) * hidden.unsqueeze(1)
            yield spread, gradients.to(self.device), weight.to(self.device), targets.double()


class Mapped(RandomLayers, part="map"):
    """Recover labels from the gradients of random layers."""

    def run(self) -> Iterator[Columns]:
        """Recover labels at every spread of the logits, with the gradient scale known and unknown."""
        for spread, gradients, weight, targets in self.sent():
            for known in (True, False):
                found = recover_soft_labels(gradients, weight, prior=self.labels, scale=1.0 if known else None)
                yield judged(found, targets) | {"spread": spread, "known": known}


class Proved(RandomLayers, part="proof"):
    """Prove that no other label explains a gradient, and compare the time with that of the search."""

    def run(self) -> Iterator[Columns]:
        """Recover labels at every spread of the logits, without a proof and with one."""
        for spread, gradients, weight, targets in self.sent():
            searched, fast = timed(recover_soft_labels, gradients, weight, prior=self.labels)
            proved, slow = timed(recover_soft_labels, gradients, weight, prior=self.labels, certify="proof")
            yield judged(proved, targets) | {
                "spread": spread,
                "unique_searched": percentage(searched.where("unique")),
                "confirmed": percentage(searched.where("unique") & proved.where("unique")),
                "search_milliseconds": 1e3 * fast / self.samples,
                "milliseconds": 1e3 * slow / self.samples,
            }


class Case:
    """One difficult case: flat or steep logits, few classes, saturation, equal or zero features.

    Attributes:
        weight: (C, I).
        bias: (C,), or None.
        hidden: The samples' features (B, I).
        targets: The samples' true labels (B, C).
        labels: The kind of label.
        factor: The gradient scale if it is unknown.
        bias_sent: Whether the client sends the bias gradient.
    """

    def __init__(self, number: int, seed: int) -> None:
        draw = Draw(seed * 1_000_003 + number)
        uniform, normal = (
            partial(one, generator=draw.generator, dtype=torch.float64) for one in (torch.rand, torch.randn)
        )
        single = draw.of((True, True, True, True, False))
        classes = draw.of((3, 4, 5, 6, 8, 10, 10, 20, 50) if single else (4, 5, 6, 8, 10, 10, 20, 30))
        features = draw.of((2, 4, 16, 64, 200) if single else (16, 64, 200))
        size = 1 if single else draw.number(1, min(classes - 1, features, 12) - 1)
        self.labels = draw.of(LABELS)
        if PRIORS[self.labels].equations(classes) < 1:
            self.labels = "onehot"
        dtype = draw.of(("float16", "float32", "float32", "float64", "float64") if single else ("float32", "float64"))
        spread = 10 ** (float(9 * uniform(1)) - 6) if draw.of((True, False)) else 10 ** (float(2 * uniform(1)) - 1)
        kind = draw.of(KINDS)
        weight, hidden = normal(classes, features), normal(size, features)
        hidden = hidden.abs() if draw.of((True, False)) else hidden.relu()
        bias = normal(classes) * draw.of((0.1, 1.0, 3.0)) if draw.of((True, False, False)) else None
        if kind == "zero" and size > 1:
            hidden[0] = 0
        hidden = hidden / (hidden @ weight.T).std().clamp(min=1e-12) * spread
        if kind in ("repeated", "nearly equal") and size > 1:
            apart = 0.0 if kind == "repeated" else 10 ** -float(8 * uniform(1))
            hidden[1] = hidden[0] * (1 + apart * normal(features)).clamp(min=0)
        first = torch.randint(classes, (size,), generator=draw.generator)
        if kind == "one row each" and features >= classes:
            weight, hidden = torch.eye(classes, features, dtype=torch.float64), uniform(size, features)
            hidden[torch.arange(size), first] = draw.of((10.0, 20.0, 30.0, 40.0, 60.0))
        if kind in ("own class saturated", "two classes saturated"):
            first = (hidden @ weight.T).argmax(dim=1)
        if draw.of((True, False)) and size > 1:
            first = first[torch.randint(max(1, size // 2), (size,), generator=draw.generator)]
        targets = soft_labels(self.labels, first, classes, draw.generator)
        if kind == "two classes saturated" and self.labels == "mixup":
            share, hot = uniform(size, 1), torch.eye(classes, dtype=torch.float64)
            targets = share * hot[first] + (1 - share) * hot[(hidden @ weight.T).topk(2, dim=1).indices[:, 1]]
        self.weight, self.hidden, self.targets = (one.to(DTYPES[dtype]) for one in (weight, hidden, targets))
        self.bias = None if bias is None else bias.to(DTYPES[dtype])
        self.factor = 10 ** (float(6 * uniform(1)) - 3)
        # A batch always comes with the bias gradient if there is a bias; for single samples it may be withheld.
        self.bias_sent = bias is not None and (not single or draw.of((True, False)))

    def attacked(self, known: bool, certify: Literal["search", "proof"] = "search") -> tuple[str, bool]:
        """Return the attack's status, and whether the attack calls a wrong label unique.

        The client computes the mean gradients of weight (C, I) and bias (C,) in its own precision, and scales them.
        """
        factor, scale = (1.0, 1.0) if known else (self.factor, None)
        logits = self.hidden @ self.weight.T + (0 if self.bias is None else self.bias)
        errors = logits.softmax(dim=1) - self.targets
        gradient = errors.T @ self.hidden / len(errors) * factor
        if not gradient.isfinite().all() or not gradient.any():
            return "unusable", False
        bias_gradient = errors.mean(dim=0) * factor if self.bias_sent else None
        sent: dict[str, Any] = {"prior": self.labels, "bias": self.bias, "bias_gradient": bias_gradient, "scale": scale}
        if len(self.hidden) == 1:
            found = recover_soft_labels(gradient, self.weight, certify=certify, **sent)
            status, labels = found.status[0], found.labels
        else:
            batch = recover_batch(gradient, self.weight, batch_size=len(self.hidden), rounds=8, **sent)
            status, labels = batch.status, batch.labels
            if status == "unique":
                labels = labels[metrics.match_batch(batch.features, self.hidden.double())]
        right = status == "unique" and float(metrics.label_error(labels, self.targets.double()).max()) <= KNOWN
        return status, status == "unique" and not right


class Trouble(OnCPU, part="trouble"):
    """Search difficult cases for a wrong label that is called unique; even cases have a known gradient scale."""

    first: int
    count: int

    def run(self) -> Iterator[Columns]:
        """Attack all cases; yield rows for single samples and for batches, with the scale known and unknown."""
        zeros = dict.fromkeys(("n", *RESULTS.values(), "wrong", "proved", "proved_wrong"), 0)
        tally: dict[tuple[str, bool], Counter[str]] = {}
        for number in range(self.first, self.first + self.count):
            one, known = Case(number, self.seed), number % 2 == 0
            size = ONE if len(one.hidden) == 1 else BATCH
            counts = tally.setdefault((size, known), Counter(zeros))
            status, wrong = one.attacked(known)
            counts.update({"n": 1, RESULTS[status]: 1, "wrong": wrong})
            if known and size == ONE:
                status, wrong = one.attacked(known, certify="proof")
                counts.update({"proved": status == "unique", "proved_wrong": wrong})
        for (size, known), counts in sorted(tally.items()):
            yield {"gradient_of": size, "known": known, **counts}


class Clipped(Experiment, part="clipped"):
    """Attack the clipped gradients of a network; `row` names the network."""

    row: NamedNetwork
    labels: str
    samples: int
    timed: int

    def reads(self) -> list[str]:
        """Return the datasets of the private images and of the training."""
        return [self.row.dataset, *([self.row.training] if self.row.stage == "trained" else [])]

    def run(self) -> Iterator[Columns]:
        """Recover labels with the gradient scale unknown, and under the assumption of no clipping."""
        private = data.load(self.row.dataset, "test")
        inputs, targets = private_samples(private, self.labels, self.samples, self.seed)
        model, _ = network(self.row, self.labels, private, self.seed, self.device)
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
        known, unknown = (
            min(timed(recover_soft_labels, own, weight, prior=prior, scale=scale)[1] for _ in range(self.timed))
            for own, scale in ((clean, 1.0), (sent, None))
        )
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


def _hunted(record: Record) -> pd.DataFrame:
    """Return the rows of the hunt in the order of the broken assumptions and of the attacks."""
    places = {"broken": list(BROKEN), "family": list(FAMILIES)}
    rows = record.rows(Hunt).sort_values(list(places), key=lambda names: names.map(places[str(names.name)].index))
    return rows.assign(certified=rows["right_count"] + rows["wrong"])


def summary(record: Record) -> Summary:
    """Return the finding: no certificate is wrong where every assumption holds, and few are where one is broken."""
    known, rows, clipped = claims.judgements(record), _hunted(record), record.rows(Clipped)
    unscaled = known["identifiability-clipped-resnet"]
    holds = rows["broken"] == "none"
    kept, broken = (rows[own][["certified", "wrong"]].sum() for own in (holds, ~holds))
    wrong = [known[f"identifiability-{part}"].value for part in ("map", "trouble", "proof-wrong", "clipped-wrong")]
    outcomes = []
    for attack, column in (("exact solver, scale unknown", "unique"), ("exact solver", "unaware")):
        outcomes += collected(
            record, clipped, "soft labels", average_of(column, "labels recovered", "samples", count="n"),
            attack=attack, network=clipped["row"].str.split("/").str[1], training=clipped["row"].str.split("/").str[2],
            data=clipped["row"].str.split("/").str[0], defense=clipped["norm"].map("clip/{:g}".format),
            client=clipped["dtype"], detail=clipped["labels"] + " labels",
        )  # fmt: skip
    return Summary(
        f"Of {kept['certified']:,.0f} certified answers on clients that keep every assumption, none is wrong; of "
        f"{broken['certified']:,.0f} on clients that break one, {broken['wrong']:.0f} are. From clipped gradients of "
        f"an untrained ResNet18, an attacker recovers {unscaled.text} of smoothed labels without knowing the gradient "
        "scale.",
        true=all(value == 0 for value in (kept["wrong"], *wrong))
        and bool(broken["wrong"] > 0)
        and (unscaled.value or 0) >= 99,
        claim="certificates-wrong",
        what="wrong certificates in attacks on clients that keep every assumption (all attacks)",
        of=f"groups of attacks (up to {AT_ONCE} random seeds each)",
        figure=figure_outcomes,
        outcomes=outcomes,
    )


def attacks_table(record: Record) -> pd.DataFrame:
    """Return what each attack's certificate promises, and how often it is kept if every assumption holds."""
    rows = select(_hunted(record), broken="none")
    families = [FAMILIES[name] for name in rows["family"]]
    return aggregate(
        rows.assign(recovers=[one.words for one in families], promise=[one.promise for one in families]),
        {"attack": "family", "recovers": "recovers", "its certificate promises": "promise"},
        cells(COLUMNS, "cases", "right_count", "wrong", by=total)
        | {"certified answers within the claimed error": _covered},
    )


def _covered(rows: pd.DataFrame) -> str:
    """Return the share of certified answers that are right, and the share that it exceeds with 95 % confidence."""
    right, certified = int(rows["right_count"].sum()), int(rows["certified"].sum())
    if not certified:
        return NOTHING
    least = binomtest(right, certified, alternative="greater").proportion_ci().low
    return f"{100 * right / certified:.4g} % (above {math.floor(1e4 * least) / 100:g} %)"


def difficult_in_words(record: Record) -> str:
    """Return in a sentence how many labels of difficult cases are certified, and how many of these are wrong."""
    counts = record.rows(Trouble)[["n", "unique_count", "wrong", "proved", "proved_wrong"]].sum()
    return (
        f"Of the labels of {counts['n']:,.0f} difficult cases, {counts['unique_count']:,.0f} are certified by search "
        f"and {counts['proved']:,.0f}, partly the same, by proof; "
        f"{counts['wrong'] + counts['proved_wrong']:.0f} of them are wrong."
    )


def broken_table(record: Record) -> pd.DataFrame:
    """Return how a client breaks each assumption, and how many certificates of which attacks are then wrong."""
    rows = _hunted(record)
    rows = rows[rows["broken"] != "none"]
    return aggregate(
        rows.assign(words=[BROKEN[name].words for name in rows["broken"]]),
        {"broken assumption": "broken", "what the client does": "words"},
        {
            **cells(COLUMNS, "cases", by=total),
            "certified": total("certified"),
            **cells(COLUMNS, "wrong", by=total),
            "attacks with wrong certificates": _wrong_attacks,
        },
    )


def _wrong_attacks(rows: pd.DataFrame) -> str:
    wrong = rows.groupby("family", sort=False)["wrong"].sum()
    return ", ".join(f"{name} {count:.0f}" for name, count in wrong.items() if count) or NOTHING


def figure_outcomes(record: Record) -> Figure:
    """Plot the share of each outcome (%) as stacked bars.

    Left: one bar for each attack if every assumption holds. Right: one bar for each broken assumption, all attacks
    together.
    """
    rows = _hunted(record)
    holds = rows["broken"] == "none"
    return drawn(
        rows.assign(
            bar=rows["family"].where(holds, rows["broken"]),
            holds=holds.map({True: "every assumption holds", False: "one is broken (all attacks)"}),
        ),
        stacked("bar", COUNTS, COLOURS),
        lambda axis, _: axis.tick_params(axis="y", labelsize=8),
        panels="holds",
        height=5.2,
        legend=6,
        sharey=False,
        xlabel="share of attacks (%)",
    )


def figure_map(record: Record) -> Figure:
    """Plot the share of unique labels (%) against the standard deviation of the logits.

    One panel for each kind of label; colours are precisions; dashed lines are for an unknown gradient scale.
    """
    rows = record.rows(Mapped)
    classes = 10 if 10 in set(rows["classes"]) else rows["classes"].max()
    looks = crossed(DTYPES, ("scale known", "scale unknown"))
    return drawn(
        select(rows, classes=classes).assign(scale=rows["known"].map({True: "scale known", False: "scale unknown"})),
        lines("spread", "unique", by=["dtype", "scale"], order=list(looks), looks=looks, linewidth=1.3, markersize=3),
        panels="labels",
        legend=3,
        xscale="log",
        xlabel=f"deviation of the logits ({classes} classes)",
        ylabel="labels certified as unique (%)",
        ylim=(-3, 103),
    )


def figure_clipped(record: Record) -> Figure:
    """Plot the share of unique and right labels (%) from gradients clipped to the smaller norm, by network."""
    rows = select(record.rows(Clipped), norm=min(NORMS))
    return drawn(
        rows.assign(network=rows["row"].str.replace("/", "\n")),
        bars("network", "unique_right", by="dtype"),
        legend=2,
        ylabel="labels recovered (%)",
    )
