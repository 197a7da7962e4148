"""What a gradient's rows say about labels: sign and size

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

from gradleak import data, studies
from gradleak.labels.hard.llg import llg_estimate
from gradleak.leak import head_inputs, observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import Measure, among, joined, only, percent, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import BALANCES, drawn, load, others

PLACE = "Section 4, Figure 1"
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# The sum of a class's row of the gradient, and the same less the offset that LLG estimates for it.
ROW_SUMS, CALIBRATED = KINDS = ("row sums", "calibrated")
# Quantiles of fewer rows than this are left out of the figure: they are those of chance.
FEWEST = 20


class Parameters(studies.Parameters):
    """How many networks and batches there are, of which sizes, and the images."""

    repeats: int = setting(
        40, paper=1000, smallest=3, ge=1, le=100_000, about="networks, each with a batch of every size"
    )
    sizes: list[int] = setting([2, 8, 32, 128], smallest=[2, 8], about="samples in a batch")
    balance: str = setting(BALANCES[1], about="how batches are drawn: unbalanced, balanced")
    auxiliary: int = setting(10, ge=1, le=1000, about="samples of a class that offsets are estimated from")
    dataset: str = setting("digits", paper="mnist", about="private images, training split; auxiliary ones: test split")

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("llg-cnn", self.dataset)]

    def experiments(self) -> Iterator[Experiment]:
        """Give the batches of every size."""
        for size in self.sizes:
            yield RowsOfClasses.of(self, size=size)

    def about(self) -> str:
        """Return in a few words how many samples of what a run is about."""
        return f"{self.repeats:,} networks and {data.title(self.dataset)}"


class Signs(Row):
    """How often a row's sign misleads, in percent of the rows of absent and of present classes, and LLG's impact.

    `impact`: what one sample is estimated to change its class's row by, mean and standard deviation over networks.
    """

    what: Literal["sign"]
    count: int
    absent_negative: float
    present_positive: float
    impact: float
    impact_spread: float
    impact_variation: float


class Slopes(Row):
    """What one more sample of a class changes its row by: for the class with the least change, and with the most."""

    what: Literal["labels"]
    count: int
    variation: float
    least: float
    most: float


class InOneNetwork(Row):
    """How rows and counts correlate over all batches of one network."""

    what: Literal["one network"]
    kind: str
    count: int
    correlation: float


class OverNetworks(Row):
    """How rows and counts correlate within the batch of each network, and over the batches of all networks."""

    what: Literal["correlation"]
    kind: str
    count: int
    networks: int
    within: float
    within_spread: float
    correlation: float


class Spread(Row):
    """Quantiles of the rows whose class occurs so many times."""

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
    """How often each class occurs in some batches of one network, and its rows of each kind: all (N, C)."""

    counts: Tensor
    rows: dict[str, Tensor]
    impact: float


class RowsOfClasses(Experiment):
    """The rows of gradients of batches of one size, beside how often their classes occur."""

    size: int
    repeats: int
    balance: str
    auxiliary: int
    dataset: str

    def run(self) -> Iterator[Signs | Slopes | InOneNetwork | OverNetworks | Spread]:
        """Compare rows with counts: over many networks with one batch each, and over many batches of one network."""
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
        """Let clients send the gradients of `count` batches of one network, and take the offsets off their rows."""
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
    """Return how all values of all lines correlate with all counts."""
    return float(_correlations(counts.reshape(1, -1), values.reshape(1, -1)))


def _correlations(counts: Tensor, values: Tensor) -> Tensor:
    """Return the size of Pearson's correlation of each line's values with its counts, where these are not all equal."""
    varied = counts.amin(dim=1) < counts.amax(dim=1)
    counts, values = (part - part.mean(dim=1, keepdim=True) for part in (counts[varied].double(), values[varied]))
    found: Tensor = (counts * values).sum(dim=1) / (counts.norm(dim=1) * values.norm(dim=1))
    return found.abs()


def _slopes(counts: Tensor, values: Tensor) -> Tensor:
    """Return what one more sample of a label changes its row by, for every label: least squares over all networks."""
    counts, values = (part.double() - part.double().mean(dim=0) for part in (counts, values))
    return (counts * values).sum(dim=0) / counts.square().sum(dim=0)


def table(record: Record) -> pd.DataFrame:
    """Return what signs say, and how much a sample lowers its label's row, a line a batch size."""
    return summary(
        _by_size(record),
        {"B": "size"},
        {
            "rows": among(only("count", ".0f"), what="sign"),
            "absent, negative": among(only("absent_negative", percent(2)), what="sign"),
            "present, not negative": among(only("present_positive", percent(1)), what="sign"),
            "impact": among(joined(" ± ", only("impact", ".3g"), only("impact_spread", ".2g")), what="sign"),
            "by label": among(joined(" … ", only("most", ".3g"), only("least", ".3g")), what="labels"),
        },
    )


def correlation_table(record: Record) -> pd.DataFrame:
    """Return how rows and counts go together, in batches, over those of one network, and over all, by batch size."""
    measures: dict[str, Measure] = {"networks": among(only("networks", ".0f"), what="correlation")}
    for kind in KINDS:
        within = joined(" ± ", only("within", ".4f"), only("within_spread", ".3f"))
        whole = only("correlation", ".4f")
        measures[f"{kind}, in a batch"] = among(within, what="correlation", kind=kind)
        measures[f"{kind}, one network"] = among(whole, what="one network", kind=kind)
        measures[f"{kind}, over all"] = among(whole, what="correlation", kind=kind)
    return summary(_by_size(record), {"B": "size"}, measures)


def _by_size(record: Record) -> pd.DataFrame:
    return record.rows(RowsOfClasses).sort_values("size", kind="stable")


def figure_properties(record: Record) -> Figure:
    """Draw row sums against how often their class occurs, before and after the offset is taken away."""
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
        row[0].set_ylabel("row sum" if kind == ROW_SUMS else "less its offset")
    for axis, size in zip(axes[0], sizes, strict=True):
        axis.set_title(f"B = {size:.0f}")
    for axis in axes[1]:
        axis.set_xlabel("samples of the class")
    return figure
