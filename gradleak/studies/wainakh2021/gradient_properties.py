"""Gradient properties: what the sign and the size of a row say about labels

wainakh2021, section 4: Figure 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from gradleak import claims, data, studies
from gradleak.labels.hard.llg import llg_estimate
from gradleak.leak import head_inputs, observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.plain import Columns
from gradleak.runs.records import Record
from gradleak.show import drawn as show
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.summaries import among, cells, joined, only, select, summary
from gradleak.studies import Experiment, setting
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import drawn, load, others
from gradleak.studies.wainakh2021.columns import COLUMNS

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


class RowsOfClasses(Experiment):
    """Compare the row sums of the gradients of batches of one size with the counts of the classes."""

    size: int
    repeats: int
    balance: str
    auxiliary: int
    dataset: str

    def run(self) -> Iterator[Columns]:
        """Compare row sums with counts: for many networks with one batch each, and for many batches of one network."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)

        def batches(number: int, count: int) -> tuple[Tensor, Tensor, float]:
            model = built("llg-cnn", private, self.seed + number, self.device)
            return self._batches(model, count, private, public, generator)

        networks = [batches(number, 1) for number in range(self.repeats)]
        counts_of_one, rows_of_one, _ = batches(0, self.repeats)
        counts = torch.cat([counts for counts, _, _ in networks])
        rows = torch.cat([rows for _, rows, _ in networks], dim=1)
        present, negative = counts > 0, rows[0] < 0
        impacts = [impact for _, _, impact in networks]
        yield {
            "what": "sign",
            "count": counts.numel(),
            "absent_negative": 100 * float((negative & ~present).sum()) / max(1, int((~present).sum())),
            "present_positive": 100 * float((~negative & present).sum()) / int(present.sum()),
            "impact": float(np.mean(impacts)),
            "impact_spread": float(np.std(impacts)),
            "impact_variation": float(np.std(impacts) / abs(np.mean(impacts))),
        }
        slopes = _slopes(counts, rows[1])
        yield {
            "what": "labels",
            "count": len(slopes),
            "variation": float(slopes.std() / slopes.mean().abs()),
            "least": float(slopes.max()),
            "most": float(slopes.min()),
        }
        for kind, values in zip(KINDS, rows_of_one, strict=True):
            correlation = _over_all(counts_of_one, values)
            yield {"what": "one network", "kind": kind, "count": len(values), "correlation": correlation}
        for kind, values in zip(KINDS, rows, strict=True):
            within = _correlations(counts, values)
            yield {
                "what": "correlation",
                "kind": kind,
                "count": counts.numel(),
                "networks": len(within),
                "within": float(within.mean()),
                "within_spread": float(within.std()),
                "correlation": _over_all(counts, values),
            }
            for occurs in counts.unique().tolist():
                own = values[counts == occurs]
                quantiles = own.quantile(own.new_tensor(list(QUANTILES.values()))).tolist()
                named = dict(zip(QUANTILES, quantiles, strict=True))
                yield {"what": "spread", "kind": kind, "occurs": occurs, "count": len(own)} | named

    def _batches(
        self, model: nn.Module, count: int, private: data.Dataset, public: data.Dataset, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, float]:
        """Return the classes' counts (N, C) in N batches, the row sums of both KINDS (2, N, C), and LLG's impact."""
        given, classes = others(public, self.auxiliary, generator)
        chosen = torch.cat([drawn(private.labels, self.size, self.balance, generator) for _ in range(count)])
        inputs, labels = private.images[chosen], private.labels[chosen]
        heads = observe_heads(model, inputs.to(self.device), labels.to(self.device), batch_size=self.size)
        features, scores = head_inputs(model, given.to(self.device))
        estimate = llg_estimate(scores, features, classes.to(self.device), self.size)
        sums = heads.weight_gradients.double().sum(dim=2).cpu()
        counts = torch.stack([own.bincount(minlength=private.classes) for own in labels.split(self.size)])
        return counts, torch.stack([sums, sums - estimate.offset.cpu()]), estimate.impact


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
    best, worst = (known[f"properties-{size}-correlation-in-a-network"] for size in (2, 128))
    least = select(record.rows(RowsOfClasses), what="correlation", kind=CALIBRATED)["within"].min()
    return Headline(
        "In untrained CNNs a negative row sum always belongs to a class of the batch; after an offset is subtracted, "
        "row sums are almost exactly proportional to their classes’ numbers of samples "
        f"(mean correlation within a batch {worst.text} to {best.text}).",
        true=bool(known["properties-sign"].value == 0 and best.agrees and least > 0.98),
        claim="properties-8-correlation-in-a-network",
        what="mean correlation between row sums (after subtracting the offset) and sample counts, batches of 8, MNIST",
        figure=figure_properties,
        of="row sums",
    )


def table(record: Record) -> pd.DataFrame:
    """Return what signs and sizes of row sums say about labels, one line for each batch size.

    Columns: the share of negative row sums among absent classes and of nonnegative ones among present classes, the
    estimated impact, and the correlation of each kind of row sums with the counts within a batch; the last three with
    their standard deviations over networks.
    """
    within = joined(" ± ", only("within", COLUMNS["within"].text), only("within_spread", COLUMNS["within_spread"].text))
    impact = joined(" ± ", only("impact", COLUMNS["impact"].text), only("impact_spread", COLUMNS["impact_spread"].text))
    shares = cells(COLUMNS, "absent_negative", "present_positive")
    return summary(
        record.rows(RowsOfClasses).sort_values("size", kind="stable"),
        {"batch size": "size"},
        {head: among(measure, what="sign") for head, measure in (shares | {COLUMNS["impact"].head: impact}).items()}
        | {f"{COLUMNS['within'].head}, {kind}": among(within, what="correlation", kind=kind) for kind in KINDS},
    )


def figure_properties(record: Record) -> Figure:
    """Draw row sums against the number of samples of their class, before and after the offset is subtracted.

    One column of panels for each batch size. Lines are medians; bands hold 50 % and 90 % of the row sums.
    """
    rows = select(record.rows(RowsOfClasses), what="spread")
    rows = rows[rows["count"] >= FEWEST].sort_values(["kind", "size", "occurs"], ascending=[False, True, True])
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
