"""Gradient properties: what the sign and the size of a row say about labels

wainakh2021, section 4: Figure 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from gradleak import claims, data, studies
from gradleak.labels.hard.llg import llg_estimate
from gradleak.leak import head_inputs, observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.summaries import Measure, among, joined, only, percent, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import drawn, load, others

PLACE = "Section 4, Figure 1"
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# The sum of a class's row of the gradient, and the same minus the offset that LLG estimates for it.
ROW_SUMS, CALIBRATED = KINDS = ("row sums", "calibrated")
# The figure omits quantiles of fewer rows than this, which are mostly chance.
FEWEST = 20


class Parameters(studies.Parameters):
    """Parameters of the page: networks, batch sizes, the way of drawing batches, and data."""

    repeats: int = setting(paper=1000, smallest=3, ge=1, le=100_000)
    sizes: list[int] = setting(smallest=[2, 8])
    balance: str
    auxiliary: int = setting(ge=1, le=1000)
    dataset: str = setting(paper="mnist")

    def sees(self) -> list[Sees]:
        """Return the network with its images."""
        return [Sees("llg-cnn", self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each batch size."""
        for size in self.sizes:
            yield RowsOfClasses.of(self, size=size)

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        return f"{self.repeats:,} networks and {data.title(self.dataset)}"


class Signs(Row):
    """How often the sign of a row sum is misleading, and LLG's estimate of the impact.

    Attributes:
        what: The kind of row.
        count: The number of row sums.
        absent_negative: The share of negative sums among rows of absent classes, in percent.
        present_positive: The share of nonnegative sums among rows of present classes, in percent.
        impact: The estimated change of a row sum by one sample of its class, mean over networks.
        impact_spread: The standard deviation of the impact over networks.
        impact_variation: The same, divided by the absolute mean.
    """

    what: Literal["sign"]
    count: int
    absent_negative: float
    present_positive: float
    impact: float
    impact_spread: float
    impact_variation: float


class Slopes(Row):
    """The change of a class's row sum by one more sample of the class, fitted over all networks.

    Attributes:
        what: The kind of row.
        count: The number of classes.
        variation: The standard deviation over classes, divided by the absolute mean.
        least: The slope of the class with the smallest decrease.
        most: The slope of the class with the largest decrease.
    """

    what: Literal["labels"]
    count: int
    variation: float
    least: float
    most: float


class InOneNetwork(Row):
    """The absolute correlation of row sums with counts over all batches of one network."""

    what: Literal["one network"]
    kind: str
    count: int
    correlation: float


class OverNetworks(Row):
    """The absolute correlation of row sums with counts for many networks with one batch each.

    Attributes:
        what: The kind of row.
        kind: Row sums, or calibrated ones.
        count: The number of row sums.
        networks: The number of batches in which the counts are not all equal.
        within: The correlation within each batch, mean over networks.
        within_spread: Its standard deviation.
        correlation: The correlation over all networks together.
    """

    what: Literal["correlation"]
    kind: str
    count: int
    networks: int
    within: float
    within_spread: float
    correlation: float


class Spread(Row):
    """Quantiles of the `count` row sums whose class occurs `occurs` times in its batch."""

    what: Literal["spread"]
    kind: str
    occurs: int
    count: int
    q05: float
    q25: float
    q50: float
    q75: float
    q95: float


@dataclass(frozen=True)
class Batches:
    """Batches of one network: the counts (N, C) of the classes, the row sums (N, C) of each kind, and the impact."""

    counts: Tensor
    rows: dict[str, Tensor]
    impact: float


class RowsOfClasses(Experiment):
    """The row sums of the gradients of batches of one size, compared with the counts of the classes."""

    size: int
    repeats: int
    balance: str
    auxiliary: int
    dataset: str

    def run(self) -> Iterator[Signs | Slopes | InOneNetwork | OverNetworks | Spread]:
        """Compare row sums with counts: for many networks with one batch each, and for many batches of one network."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)

        def batches(number: int, count: int) -> Batches:
            model = built("llg-cnn", private, self.seed + number, self.device)
            return self._batches(model, count, private, public, generator)

        networks = [batches(number, 1) for number in range(self.repeats)]
        one = batches(0, self.repeats)
        counts = torch.cat([own.counts for own in networks])
        rows = {kind: torch.cat([own.rows[kind] for own in networks]) for kind in KINDS}
        yield _signs(counts, rows[ROW_SUMS], [own.impact for own in networks])
        slopes = _slopes(counts, rows[CALIBRATED])
        yield Slopes(
            what="labels",
            count=len(slopes),
            variation=float(slopes.std() / slopes.mean().abs()),
            least=float(slopes.max()),
            most=float(slopes.min()),
        )
        for kind in KINDS:
            correlation = _over_all(one.counts, one.rows[kind])
            yield InOneNetwork(what="one network", kind=kind, count=len(one.counts), correlation=correlation)
        for kind in KINDS:
            within = _correlations(counts, rows[kind])
            yield OverNetworks(
                what="correlation",
                kind=kind,
                count=counts.numel(),
                networks=len(within),
                within=float(within.mean()),
                within_spread=float(within.std()),
                correlation=_over_all(counts, rows[kind]),
            )
            for occurs in counts.unique().tolist():
                own = rows[kind][counts == occurs]
                quantiles = torch.quantile(own, torch.tensor(list(QUANTILES.values()), dtype=own.dtype)).tolist()
                named = dict(zip(QUANTILES, quantiles, strict=True))
                yield Spread.of(what="spread", kind=kind, occurs=occurs, count=len(own), **named)

    def _batches(
        self, model: nn.Module, count: int, private: data.Dataset, public: data.Dataset, generator: torch.Generator
    ) -> Batches:
        """Return the row sums and counts of `count` batches of one network."""
        given, classes = others(public, self.auxiliary, generator)
        chosen = torch.cat([drawn(private.labels, self.size, self.balance, generator) for _ in range(count)])
        inputs, labels = private.images[chosen], private.labels[chosen]
        heads = observe_heads(model, inputs.to(self.device), labels.to(self.device), batch_size=self.size)
        features, scores = head_inputs(model, given.to(self.device))
        estimate = llg_estimate(scores, features, classes.to(self.device), self.size)
        sums = heads.weight_gradients.double().sum(dim=2).cpu()
        counts = torch.stack([own.bincount(minlength=private.classes) for own in labels.split(self.size)])
        return Batches(counts, {ROW_SUMS: sums, CALIBRATED: sums - estimate.offset.cpu()}, estimate.impact)


def _signs(counts: Tensor, sums: Tensor, impacts: list[float]) -> Signs:
    present, negative = counts > 0, sums < 0
    return Signs(
        what="sign",
        count=counts.numel(),
        absent_negative=100 * float((negative & ~present).sum()) / max(1, int((~present).sum())),
        present_positive=100 * float((~negative & present).sum()) / int(present.sum()),
        impact=float(np.mean(impacts)),
        impact_spread=float(np.std(impacts)),
        impact_variation=float(np.std(impacts) / abs(np.mean(impacts))),
    )


def _over_all(counts: Tensor, values: Tensor) -> float:
    """Return the absolute correlation of all values with all counts."""
    return float(_correlations(counts.reshape(1, -1), values.reshape(1, -1)))


def _correlations(counts: Tensor, values: Tensor) -> Tensor:
    """Return the absolute Pearson correlation of each line's values with its counts, for lines whose counts vary."""
    varied = counts.amin(dim=1) < counts.amax(dim=1)
    counts, values = (part - part.mean(dim=1, keepdim=True) for part in (counts[varied].double(), values[varied]))
    found: Tensor = (counts * values).sum(dim=1) / (counts.norm(dim=1) * values.norm(dim=1))
    return found.abs()


def _slopes(counts: Tensor, values: Tensor) -> Tensor:
    """Return the change of each class's row sum by one more sample of the class: least squares over all networks."""
    counts, values = (part.double() - part.double().mean(dim=0) for part in (counts, values))
    return (counts * values).sum(dim=0) / counts.square().sum(dim=0)


def headline(record: Record) -> Headline:
    """Return the finding: a negative row sum names a class of the batch, and its size follows the class's count."""
    known = claims.judgements(record)
    signs, best, worst = (
        known[name]
        for name in (
            "properties-sign",
            "properties-2-correlation-in-a-network",
            "properties-128-correlation-in-a-network",
        )
    )
    rows = record.rows(RowsOfClasses)
    least = rows[(rows["what"] == "correlation") & (rows["kind"] == CALIBRATED)]["within"].min()
    return Headline(
        "In untrained CNNs a negative row sum always belongs to a class of the batch; after an offset is subtracted, "
        "row sums are almost exactly proportional to their classes’ numbers of samples "
        f"(mean correlation within a batch {worst.text} to {best.text}).",
        true=bool(signs.value == 0 and best.agrees and least > 0.98),
        claim="properties-8-correlation-in-a-network",
        what="mean correlation between row sums (after subtracting the offset) and sample counts, batches of 8, MNIST",
        figure=figure_properties,
        of="row sums",
    )


def table(record: Record) -> pd.DataFrame:
    """Return how reliable the signs of row sums are, and how much one sample lowers a row sum.

    One row for each batch size. Columns: the number of row sums, the share of negative ones among absent classes and of
    nonnegative ones among present classes, the estimated impact (mean ± standard deviation over networks), and the
    fitted impact of the class with the largest and of the class with the smallest.
    """
    return summary(
        _by_size(record),
        {"batch size": "size"},
        {
            "number of row sums": among(only("count", ".0f"), what="sign"),
            "negative, class absent": among(only("absent_negative", percent(2)), what="sign"),
            "not negative, class present": among(only("present_positive", percent(1)), what="sign"),
            "impact, mean ± SD over networks": among(
                joined(" ± ", only("impact", ".3g"), only("impact_spread", ".2g")), what="sign"
            ),
            "impact by class, largest … smallest": among(
                joined(" … ", only("most", ".3g"), only("least", ".3g")), what="labels"
            ),
        },
    )


def correlation_table(record: Record) -> pd.DataFrame:
    """Return the absolute correlation of row sums with counts, before and after calibration.

    One row for each batch size. Columns: the correlation within a batch (mean ± standard deviation over networks), over
    all batches of one network, and over all networks together.
    """
    measures: dict[str, Measure] = {"networks": among(only("networks", ".0f"), what="correlation")}
    for kind in KINDS:
        within = joined(" ± ", only("within", ".4f"), only("within_spread", ".3f"))
        whole = only("correlation", ".4f")
        measures[f"{kind}: within a batch"] = among(within, what="correlation", kind=kind)
        measures[f"{kind}: one network"] = among(whole, what="one network", kind=kind)
        measures[f"{kind}: all networks"] = among(whole, what="correlation", kind=kind)
    return summary(_by_size(record), {"batch size": "size"}, measures)


def _by_size(record: Record) -> pd.DataFrame:
    return record.rows(RowsOfClasses).sort_values("size", kind="stable")


def figure_properties(record: Record) -> Figure:
    """Draw row sums against the number of samples of their class, before and after the offset is subtracted.

    One column of panels for each batch size. Lines are medians; bands hold 50 % and 90 % of the row sums.
    """
    frame = record.rows(RowsOfClasses)
    frame = frame[(frame["what"] == "spread") & (frame["count"] >= FEWEST)]
    sizes = sorted(frame["size"].unique())
    figure, axes = figures.panels(2, len(sizes), height=2.2, sharex="col")
    for row, kind in zip(axes, KINDS, strict=True):
        colour = figures.COLOURS[KINDS.index(kind)]
        for axis, size in zip(row, sizes, strict=True):
            own = frame[(frame["kind"] == kind) & (frame["size"] == size)].sort_values("occurs")
            axis.fill_between(own["occurs"], own["q05"], own["q95"], color=colour, alpha=0.15, linewidth=0)
            axis.fill_between(own["occurs"], own["q25"], own["q75"], color=colour, alpha=0.3, linewidth=0)
            axis.plot(own["occurs"], own["q50"], color=colour, marker="o", markersize=3)
            axis.axhline(0, color="0.4", linewidth=0.8)
            axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        row[0].set_ylabel("row sum" if kind == ROW_SUMS else "row sum − offset")
    for axis, size in zip(axes[0], sizes, strict=True):
        axis.set_title(f"batches of {size:.0f}")
    for axis in axes[1]:
        axis.set_xlabel("samples of the class")
    return figure
