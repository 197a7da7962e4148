"""LLG: counting the labels of a batch from the rows of its gradient

wainakh2021, sections 4, 6.2 and 6.3: Figures 1, 2, 3 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from time import perf_counter
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import claims, data, studies
from gradleak.images import LBFGS, match
from gradleak.labels import Knowledge, count_heads
from gradleak.labels.hard.llg import llg_estimate
from gradleak.leak import head_inputs, observe, observe_heads
from gradleak.show import drawn as show
from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared import tally
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import FOUND, collected, network_in_words

PLACE = "Sections 4, 6.2 and 6.3, Figures 1, 2, 3 and 6"
CNN, LENET = "llg-cnn", "llg-lenet"
DLG = "DLG"
TIMES = ("times_slower",)
GRADIENTS = "gradients"
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# The sum of a class's row of the gradient, and the same minus the offset that LLG estimates for it.
ROW_SUMS, CALIBRATED = KINDS = ("row sums", "calibrated")
# The figure omits quantiles of fewer row sums than this, which are mostly chance.
FEWEST = 20
# Flowers-17 stands in for CelebA, with as many classes as the paper takes of CelebA.
CLASSES = {"flowers17": 5}
# About as many pixels as CelebA's 178 × 218. Of the 80 images of each flower, 64 are private and the rest auxiliary.
SIDE, PRIVATE = 197, 64
# The offsets of Figure 1(c) are estimated on at most this number of samples per class.
CALIBRATING = 400
# On other architectures LLG+ gets several batches of each class, each as large as the attacked batch. For slow networks
# the number of samples per class is limited to this.
MOST, SLOW = 32, "llg-resnet20"
# Networks whose batch norm uses the statistics of each batch. Their auxiliary batches are run one by one.
BY_BATCH = ("llg-resnet20-batch",)
# The attacks on other architectures: that of the paper's figure, three others, and two that also use the bias's
# gradient.
ON_ARCHITECTURES = ("LLG+", "LLG*", "LLG", tally.GUESS, "iLRG", "posterior")


class Parameters(studies.Parameters):
    """Parameters of the page: data, batch sizes and networks of each experiment, and the batches and steps of DLG."""

    datasets: list[str] = setting(paper=["mnist", "cifar10", "cifar100", "flowers17"], smallest=["photos"])
    auxiliary: int = setting(ge=1, le=1000)
    property_repeats: int = setting(paper=1000, smallest=3, ge=1, le=100_000)
    property_sizes: list[PositiveInt] = setting(smallest=[2, 8])
    repeats: int = setting(paper=100, smallest=2, ge=1, le=10_000)
    sizes: list[PositiveInt] = setting(paper=tally.SIZES, smallest=[1, 8])
    balances: list[tally.Balance] = setting(smallest=["unbalanced"])
    dlg_repeats: int = setting(paper=5, ge=1, le=1000)
    dlg_sizes: list[PositiveInt] = setting(paper=[1, 2, 4, 8, 16], smallest=[1])
    dlg_steps: int = setting(paper=100, smallest=1, ge=1, le=10_000)
    networks: list[str] = setting(paper=[CNN, LENET, f"{LENET}-3x3", SLOW, *BY_BATCH], smallest=[CNN])
    repeats_by_batch: int = setting(paper=50, ge=1, le=10_000)
    rounds: int = setting(paper=10, ge=1, le=1000)

    def sees(self) -> list[Sees]:
        """Return the networks with their images."""
        pairs = [*product([CNN], self.datasets), *product(self.networks, self.datasets[:1])]
        return [Sees(network, dataset) for network, dataset in pairs]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the attacks on each dataset, then, on the first: properties, DLG, the timing, other architectures."""
        for dataset, balance in product(self.datasets, self.balances):
            fewer = {"classes": CLASSES[dataset]} if dataset in CLASSES else {}
            yield CountedLabels.of(self, dataset=dataset, balance=balance, **fewer)
        for dataset in self.datasets[:1]:
            for size in self.property_sizes:
                repeats = self.property_repeats
                yield RowsOfClasses.of(self, dataset=dataset, size=size, balance="balanced", repeats=repeats)
            common = {"dataset": dataset, "balance": "unbalanced"}
            yield ComparedBalances.of(self, **common)
            for size in self.dlg_sizes:
                yield CountedByDLG.of(self, **common, size=size, repeats=self.dlg_repeats, steps=self.dlg_steps)
                yield ComparedTimes.of(self, **common, size=size, repeats=1, steps=self.dlg_steps)
            yield TimedGradients.of(self, **common)
            for network in self.networks:
                repeats = self.repeats_by_batch if network in BY_BATCH else self.repeats
                yield AttackedArchitecture.of(self, **common, network=network, repeats=repeats)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        shown = ", ".join(data.title(name) for name in self.datasets)
        return f"{self.property_repeats:,} networks for row sums, {self.repeats} of each kind for attacks; {shown}"


class OnNetworks(Experiment):
    """Batches of a dataset, on `repeats` untrained networks."""

    effort_fields: ClassVar[frozenset[str]] = frozenset({"repeats"})

    dataset: str
    balance: tally.Balance
    repeats: int

    def models(self, private: data.Dataset, network: str = CNN) -> Iterator[nn.Module]:
        """Yield the networks, which have different random weights."""
        for number in range(self.repeats):
            yield built(network, private, self.seed + number, self.device)


class RowsOfClasses(OnNetworks, part="properties"):
    """Compare the row sums of the gradients of batches of one size with the counts of the classes.

    The offset is estimated on auxiliary batches of every class, each as large as the batch, up to a number of samples.
    """

    size: int
    rounds: int

    def run(self) -> Iterator[Columns]:
        """Compare row sums with counts: for many networks with one batch each, and for many batches of one network."""
        drawn = tally.Batches.of(self.dataset, self.seed)
        networks = [self._batches(model, 1, drawn) for model in self.models(drawn.private)]
        counts_of_one, rows_of_one, _ = self._batches(next(self.models(drawn.private)), self.repeats, drawn)
        counts = torch.cat([counts for counts, _, _ in networks])
        rows = torch.cat([rows for _, rows, _ in networks], dim=1)
        present, negative = counts > 0, rows[0] < 0
        impacts = [impact for _, _, impact in networks]
        yield {
            "what": "sign",
            "row_sums": counts.numel(),
            "absent_negative": 100 * float((negative & ~present).sum()) / max(1, int((~present).sum())),
            "present_positive": 100 * float((~negative & present).sum()) / int(present.sum()),
            "impact": float(np.mean(impacts)),
            "impact_spread": float(np.std(impacts)),
            "impact_variation": float(np.std(impacts) / abs(np.mean(impacts))),
        }
        # The least-squares slope of each class's row sum over the number of its samples, over all networks.
        centred = counts - counts.double().mean(dim=0)
        slopes = (centred * rows[1]).sum(dim=0) / centred.square().sum(dim=0)
        yield {
            "what": "labels",
            "compared": len(slopes),
            "variation": float(slopes.std() / slopes.mean().abs()),
            "least": float(slopes.max()),
            "most": float(slopes.min()),
        }
        for kind, values in zip(KINDS, rows_of_one, strict=True):
            correlation = correlations(counts_of_one.reshape(1, -1), values.reshape(1, -1))[0]
            yield {"what": "one network", "kind": kind, "count": len(values), "correlation": correlation}
        for kind, values in zip(KINDS, rows, strict=True):
            within = correlations(counts, values)
            yield {
                "what": "correlation",
                "kind": kind,
                "row_sums": counts.numel(),
                "networks": len(within),
                "within": within.mean(),
                "within_spread": within.std(),
                "correlation": correlations(counts.reshape(1, -1), values.reshape(1, -1))[0],
            }
            for occurs in counts.unique().tolist():
                own = values[counts == occurs]
                quantiles = own.quantile(own.new_tensor(list(QUANTILES.values()))).tolist()
                named = dict(zip(QUANTILES, quantiles, strict=True))
                yield {"what": "spread", "kind": kind, "occurs": occurs, "row_sums": len(own)} | named

    def _batches(self, model: nn.Module, count: int, drawn: tally.Batches) -> tuple[Tensor, Tensor, float]:
        """Return the classes' counts (N, C) in N batches, the row sums of both KINDS (2, N, C), and LLG's impact."""
        given, classes = drawn.others(min(self.rounds * self.size, CALIBRATING))
        batches = [drawn.batch(self.size, self.balance, self.device) for _ in range(count)]
        inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        heads = observe_heads(model, inputs, labels, batch_size=self.size)
        features, scores = head_inputs(model, given.to(self.device))
        estimate = llg_estimate(scores, features, classes.to(self.device), self.size)
        sums = heads.weight_gradients.double().sum(dim=2).cpu()
        counts = F.one_hot(labels.cpu(), drawn.private.classes).unflatten(0, (count, self.size)).sum(dim=1)
        return counts, torch.stack([sums, sums - estimate.offset.cpu()]), estimate.impact


def correlations(counts: Tensor, values: Tensor) -> pd.Series[float]:
    """Return the absolute Pearson correlation of each line's values with its counts, for lines whose counts vary."""
    lines = pd.DataFrame(counts.double().numpy())
    return lines.corrwith(pd.DataFrame(values.numpy()), axis=1).abs().dropna()


class CountedLabels(OnNetworks, part="count"):
    """Batches of every size whose labels are counted by every attack except DLG.

    If `classes` is stated, only this many first classes of the dataset are used.
    """

    sizes: list[int]
    auxiliary: int
    classes: int | None = None

    def run(self) -> list[Columns]:
        """Count the labels of a batch of every size on every network."""
        private, public = (images(self.dataset, split, self.classes) for split in ("train", "test"))
        drawn, found = tally.Batches(private, public, self.seed), []
        for model in self.models(private):
            found += drawn.attacked(model, drawn.others(self.auxiliary), self.sizes, balance=self.balance)
        return tally.averaged(found)


class CountedByDLG(OnNetworks, part="dlg"):
    """Batches of one size whose labels and images DLG restores together."""

    size: int
    steps: int

    def run(self) -> list[Columns]:
        """Restore a batch on every network, and count its labels."""
        drawn, found = tally.Batches.of(self.dataset, self.seed + self.size), []
        for seed, model in enumerate(self.models(drawn.private), start=self.seed):
            inputs, labels = drawn.batch(self.size, self.balance, self.device)
            leak = observe(model, inputs, labels)
            optimizer = LBFGS(steps=self.steps, search=False)
            restored, seconds = timed(match, leak, "dlg", optimizer=optimizer, seed=seed, clock=perf_counter)
            counts, truth = (
                torch.bincount(own, minlength=drawn.private.classes).unsqueeze(0).cpu()
                for own in (restored.labels.argmax(dim=1), labels)
            )
            found.append(tally.found(DLG, counts, truth, seconds))
        return tally.averaged(found)


class ComparedBalances(OnNetworks, part="balances"):
    """The attacks on balanced batches, compared with unbalanced batches on the same networks."""

    sizes: list[int]
    auxiliary: int

    def run(self) -> Iterator[Columns]:
        """Count the labels of a balanced and an unbalanced batch of every size on every network."""
        drawn = tally.Batches.of(self.dataset, self.seed)
        found: dict[tally.Balance, list[tally.Found]] = {"balanced": [], "unbalanced": []}
        for model in self.models(drawn.private):
            given = drawn.others(self.auxiliary)
            for balance, results in found.items():
                results += drawn.attacked(model, given, self.sizes, balance=balance)
        for balanced, unbalanced in zip(*map(tally.averaged, found.values()), strict=True):
            names = {name: balanced[name] for name in ("attack", "size", "count")}
            yield names | {"over_unbalanced": balanced["success"] - unbalanced["success"]}


class ComparedTimes(OnNetworks, part="times"):
    """The time that DLG takes for a batch, compared with LLG, LLG* and LLG+ on the same batch."""

    size: int
    steps: int
    auxiliary: int

    def run(self) -> list[Columns]:
        """Time every attack on one batch of every network."""
        drawn, optimizer = tally.Batches.of(self.dataset, self.seed), LBFGS(steps=self.steps, search=False)
        spent = dict.fromkeys((DLG, "llg", "llg*", "llg+"), 0.0)
        for model in self.models(drawn.private):
            inputs, labels = drawn.batch(self.size, self.balance, self.device)
            leak = observe(model, inputs, labels)
            spent[DLG] += timed(match, leak, "dlg", optimizer=optimizer, seed=self.seed, clock=perf_counter)[1]
            for method in [*spent][1:]:
                images, classes = (one.to(self.device) for one in drawn.others(self.auxiliary))
                known = Knowledge(model, (images, classes), tuple(inputs.shape[1:]), seed=self.seed)
                _, seconds = timed(count_heads, leak.heads, method, known, whatever_holds=True, clock=perf_counter)
                spent[method] += seconds
        longest = spent.pop(DLG)
        return [{"count": self.repeats, "seconds": longest, "times_slower": longest / max(spent.values())}]


class TimedGradients(OnNetworks, part="gradients"):
    """The time of the gradients of batches of every size, without an attack."""

    sizes: list[int]

    def run(self) -> list[Columns]:
        """Time the gradient of a batch of every size on every network."""
        drawn = tally.Batches.of(self.dataset, self.seed)
        seconds = dict.fromkeys(self.sizes, 0.0)
        for model in self.models(drawn.private):
            for size in self.sizes:
                inputs, labels = drawn.batch(size, self.balance, self.device)
                seconds[size] += timed(observe, model, inputs, labels, clock=perf_counter)[1]
        return [
            {"attack": GRADIENTS, "size": size, "seconds": seconds[size], "count": self.repeats} for size in self.sizes
        ]


class AttackedArchitecture(OnNetworks, part="architectures"):
    """Networks of one kind, each attacked with a batch of every size."""

    network: str
    sizes: list[int]
    rounds: int

    def run(self) -> list[Columns]:
        """Count the labels of all batches by every attack."""
        drawn, found = tally.Batches.of(self.dataset, self.seed), []
        for model in self.models(drawn.private, self.network):
            for size in self.sizes:
                rounds = min(self.rounds, max(1, MOST // size)) if self.network.startswith(SLOW) else self.rounds
                chunk = size if self.network in BY_BATCH else 250
                found += drawn.attacked(model, drawn.others(rounds * size), [size], ON_ARCHITECTURES, chunk=chunk)
        return tally.averaged(found)


def images(name: str, split: Literal["train", "test"], classes: int | None = None) -> data.Dataset:
    """Return a split of a dataset, with only its first `classes` classes if given; the splits share no image."""
    if classes is None:
        return tally.load(name, split)
    whole = data.load(name, split, size=SIDE if name == "flowers17" else None)
    own = [(whole.labels == label).nonzero()[:, 0] for label in range(classes)]
    if name == "flowers17":
        # The dataset's two splits hold the same images, so each class is divided here.
        own = [one[:PRIVATE] if split == "train" else one[PRIVATE:] for one in own]
    kept = torch.cat(own)
    named = whole.class_names[:classes]
    return replace(whole, images=whole.images[kept], labels=whole.labels[kept], class_names=named)


def summary(record: Record) -> Summary:
    """Return the finding: labels that the gradient reveals alone, with labelled samples, and on the LeNet."""
    known = claims.judgements(record)
    alone, knowing, lenet = known["llg-mnist-llg"], known["llg-mnist-llg+"], known["architectures-llg-lenet"]
    stated = record.stated(Parameters)
    largest, auxiliary = max(stated.sizes), stated.auxiliary
    rows = record.frame()
    rows = rows[rows["success"].notna() & ~rows["attack"].isin([tally.GUESS, GRADIENTS])]
    others = rows["part"].map({AttackedArchitecture.part: ", auxiliary batches of the same size"}).fillna("")
    return Summary(
        f"From the gradient of an unbalanced batch of up to {largest} MNIST images (untrained CNN), a server finds "
        f"{alone.text} of the labels at the worst batch size, with {auxiliary} labelled samples per class "
        f"{knowing.text}; on a LeNet, with more samples, only {lenet.text}.",
        true=bool(alone.agrees and knowing.agrees and lenet.agrees is False),
        claim="llg-mnist-llg+",
        what="labels that LLG+ finds at its worst batch size (untrained CNN, unbalanced batches of MNIST)",
        figure=figure_success,
        of="batches",
        leaks=Leaks(
            "label counts (LLG+)",
            f"batches of up to {largest} MNIST images; untrained CNN, {auxiliary} samples per class",
            f"{knowing.text} of labels at the worst batch size, {alone.text} without the samples (LLG); "
            f"{knowing.count:,} batches",
            f"{milliseconds(record)['LLG+']} ms elapsed",
            kind="labels",
            attack="LLG+",
            batch=largest,
        ),
        outcomes=collected(
            record, rows, "labels", FOUND, chance=(rows["success"] - rows["over_guess"]).fillna(0),
            attack=rows["attack"], network=rows["network"].fillna(CNN), data=rows["dataset"], batch=rows["size"],
            detail=rows["balance"] + " classes" + others,
        ),
    )  # fmt: skip


def figure_properties(record: Record) -> Figure:
    """Draw row sums against the number of samples of their class, before and after the offset is subtracted.

    One column of panels for each batch size. Lines are medians; bands hold 50 % and 90 % of the row sums.
    """
    rows = select(record.rows(RowsOfClasses), what="spread")
    rows = rows[rows["row_sums"] >= FEWEST].sort_values(["kind", "size", "occurs"], ascending=[False, True, True])
    return show.drawn(
        rows,
        _draw_quantiles,
        panels=["kind", "size"],
        title=lambda kind, size: f"batches of {size:.0f}",
        xlabel="samples of the class",
        ylabel=lambda kind, size: "row sum" if kind == ROW_SUMS else "row sum − offset",
        across=rows["size"].nunique(),
        height=2.2,
        sharey=False,
    )


def _draw_quantiles(axis: Axes, rows: pd.DataFrame) -> None:
    colour = figures.COLOURS[KINDS.index(rows["kind"].iloc[0])]
    for low, high, alpha in (("q05", "q95", 0.15), ("q25", "q75", 0.3)):
        axis.fill_between(rows["occurs"], rows[low], rows[high], color=colour, alpha=alpha, linewidth=0)
    axis.plot(rows["occurs"], rows["q50"], color=colour, marker="o", markersize=3)
    axis.axhline(0, color="0.4", linewidth=0.8)
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def milliseconds(record: Record) -> pd.Series[str]:
    """Return the mean time (ms) per batch of each attack, and of the gradients, on the first dataset, as text."""
    rows = _on_datasets(record)
    sums = select(rows, dataset=rows["dataset"].iloc[0]).groupby("attack", sort=False)[["seconds", "count"]].sum()
    each = 1000 * sums["seconds"] / sums["count"]
    return each.map(lambda one: f"{float(f'{one:.2g}'):,g}")


def _on_datasets(record: Record) -> pd.DataFrame:
    """Return the rows of Figures 2 and 6, and of the time of gradients."""
    frame = record.frame()
    return frame[frame["part"].isin([kind.part for kind in (CountedLabels, CountedByDLG, TimedGradients)])]


def figure_success(record: Record, balance: str = "unbalanced") -> Figure:
    """Draw the share of labels found (%) against the batch size: Figure 2, or Figure 6 for balanced batches.

    The guess gives all classes the same share.
    """
    frame, attacks = select(_on_datasets(record), balance=balance), [*tally.ATTACKS, DLG]
    return tally.draw_success(frame, attacks, "dataset", title=data.title, across=2, height=2.6, legend=4)


def figure_architectures(record: Record) -> Figure:
    """Draw the share of labels found (%) against the batch size, a panel per network and a line per attack."""
    rows = record.rows(AttackedArchitecture)
    return tally.draw_success(rows, ON_ARCHITECTURES, "network", title=network_in_words, across=3, height=2.7, legend=6)
