"""What a gradient's rows say about labels: sign and size

wainakh2021, section 4: Figure 1.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pydantic import Field
from torch import Tensor

from gradleak import data, studies
from gradleak.labels.hard.llg import llg_estimate
from gradleak.leak import head_inputs, observe_heads
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.attacked_networks import built
from gradleak.studies.shared.tally import BALANCES, drawn, load, others

PLACE = "Section 4, Figure 1"
SMALLEST: dict[str, Any] = {"repeats": 3, "sizes": [2, 8]}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
KINDS = ("row sums", "calibrated")
# Counts that fewer rows have are not drawn: their quantiles are those of chance.
FEWEST = 20


class Parameters(studies.Parameters):
    """What a rerun may change."""

    repeats: int = Field(40, ge=1, le=100_000, description="networks, each with a batch of every size")
    sizes: list[int] = Field([2, 8, 32, 128], description="samples in a batch")
    balance: str = Field(BALANCES[1], description="how batches are drawn: unbalanced, balanced")
    auxiliary: int = Field(10, ge=1, le=1000, description="samples of a class that offsets are estimated from")
    dataset: str = Field("digits", description="private images, training split; auxiliary ones: test split")

    paper: ClassVar[dict[str, Any]] = {"repeats": 1000, "dataset": "mnist"}

    def sees(self) -> list[Sees]:
        """Return the network and the images that it is shown."""
        return [Sees("llg-cnn", self.dataset)]


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return [parameters.dataset]


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a batch size."""
    common = parameters.model_dump(include={"repeats", "balance", "auxiliary", "dataset", "seed"})
    return [
        {"size": size} | common | {"device": studies.resolve_device(parameters.device)} for size in parameters.sizes
    ]


def trial(
    *, size: int, repeats: int, balance: str, auxiliary: int, dataset: str, seed: int, device: str
) -> list[dict[str, Any]]:
    """Return how row sums are spread by how often their class occurs, before and after calibration."""
    private, public = load(dataset, "train"), load(dataset, "test")
    generator = torch.Generator().manual_seed(seed)
    sums, calibrated, impacts, occurrences = [], [], [], []
    for number in range(repeats):
        model = built("llg-cnn", private, seed + number, device)
        given, classes = others(public, auxiliary, generator)
        chosen = drawn(private.labels, size, balance, generator)
        heads = observe_heads(
            model, private.images[chosen].to(device), private.labels[chosen].to(device), batch_size=size
        )
        features, scores = head_inputs(model, given.to(device))
        estimate = llg_estimate(scores, features, classes.to(device), size)
        own = heads.weight_gradients[0].double().sum(dim=1).cpu()
        sums.append(own)
        calibrated.append(own - estimate.offset.cpu())
        impacts.append(estimate.impact)
        occurrences.append(torch.bincount(private.labels[chosen], minlength=private.classes))
    one = _one_network(private, public, size, repeats, balance, auxiliary, generator, seed, device)
    counts = torch.stack(occurrences)
    values = dict(zip(KINDS, (torch.stack(sums), torch.stack(calibrated)), strict=True))
    present, negative = counts > 0, values["row sums"] < 0
    rows: list[dict[str, Any]] = [
        {
            "what": "sign",
            "count": counts.numel(),
            "absent_negative": 100 * float((negative & ~present).sum()) / max(1, int((~present).sum())),
            "present_positive": 100 * float((~negative & present).sum()) / int(present.sum()),
            "impact": float(np.mean(impacts)),
            "impact_spread": float(np.std(impacts)),
            "impact_variation": float(np.std(impacts) / abs(np.mean(impacts))),
        }
    ]
    slopes = _slopes(counts, values["calibrated"])
    steady = {"what": "labels", "count": len(slopes), "variation": float(slopes.std() / slopes.mean().abs())}
    rows.append(steady | {"least": float(slopes.max()), "most": float(slopes.min())})
    rows += one
    for kind, own in values.items():
        within = _correlations(counts, own)
        rows.append(
            {"what": "correlation", "kind": kind, "count": counts.numel(), "networks": len(within)}
            | {"within": float(within.mean()), "within_spread": float(within.std())}
            | {"correlation": float(_correlations(counts.reshape(1, -1), own.reshape(1, -1)))}
        )
        for occurs in counts.unique().tolist():
            part = own[counts == occurs]
            quantiles = torch.quantile(part, torch.tensor(QUANTILES, dtype=part.dtype)).tolist()
            names = [f"q{100 * q:02.0f}" for q in QUANTILES]
            rows.append(
                {"what": "spread", "kind": kind, "occurs": occurs, "count": len(part)}
                | dict(zip(names, quantiles, strict=True))
            )
    return rows


def _one_network(
    private: data.Dataset,
    public: data.Dataset,
    size: int,
    repeats: int,
    balance: str,
    auxiliary: int,
    generator: torch.Generator,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Return how rows and counts go together over all batches of one network, as the paper's figure has it."""
    model = built("llg-cnn", private, seed, device)
    given, classes = others(public, auxiliary, generator)
    chosen = torch.cat([drawn(private.labels, size, balance, generator) for _ in range(repeats)])
    heads = observe_heads(model, private.images[chosen].to(device), private.labels[chosen].to(device), batch_size=size)
    features, scores = head_inputs(model, given.to(device))
    estimate = llg_estimate(scores, features, classes.to(device), size)
    sums = heads.weight_gradients.double().sum(dim=2).cpu()
    counts = torch.stack([own.bincount(minlength=private.classes) for own in private.labels[chosen].split(size)])
    pairs = zip(KINDS, (sums, sums - estimate.offset.cpu()), strict=True)
    return [
        {"what": "one network", "kind": kind, "count": len(counts)}
        | {"correlation": float(_correlations(counts.reshape(1, -1), own.reshape(1, -1)))}
        for kind, own in pairs
    ]


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


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    return f"{parameters.repeats:,} networks and {data.title(parameters.dataset)}"


def table(record: Record) -> pd.DataFrame:
    """Return what signs say, and how much a sample lowers its label's row, a line a batch size."""
    frame = record.frame()
    lines = []
    for size, group in frame.groupby("size"):
        sign, labels = (group[group["what"] == what].iloc[0] for what in ("sign", "labels"))
        lines.append(
            {
                "B": f"{size:.0f}",
                "rows": f"{sign['count']:.0f}",
                "absent, negative": f"{sign['absent_negative']:.2f} %",
                "present, not negative": f"{sign['present_positive']:.1f} %",
                "impact": f"{sign['impact']:.3g} ± {sign['impact_spread']:.2g}",
                "by label": f"{labels['most']:.3g} … {labels['least']:.3g}",
            }
        )
    return pd.DataFrame(lines)


def correlation_table(record: Record) -> pd.DataFrame:
    """Return how rows and counts go together, in batches, over those of one network, and over all, by batch size."""
    frame = record.frame()
    lines = []
    single = frame[frame["what"] == "one network"].set_index(["size", "kind"])["correlation"]
    for size, group in frame[frame["what"] == "correlation"].groupby("size"):
        line = {"B": f"{size:.0f}", "networks": f"{group['networks'].iloc[0]:.0f}"}
        for own in group.to_dict("records"):
            line[f"{own['kind']}, in a batch"] = f"{own['within']:.4f} ± {own['within_spread']:.3f}"
            line[f"{own['kind']}, one network"] = f"{single[size, own['kind']]:.4f}"
            line[f"{own['kind']}, over all"] = f"{own['correlation']:.4f}"
        lines.append(line)
    return pd.DataFrame(lines)


def figure_properties(record: Record) -> Figure:
    """Draw row sums against how often their class occurs, before and after the offset is taken away."""
    frame = record.frame()
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
        row[0].set_ylabel("row sum" if kind == KINDS[0] else "less its offset")
    for axis, size in zip(axes[0], sizes, strict=True):
        axis.set_title(f"B = {size:.0f}")
    for axis in axes[1]:
        axis.set_xlabel("samples of the class")
    return figure
