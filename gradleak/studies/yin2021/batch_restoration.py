"""GradInversion's labels: the lowest rows of a batch's gradient

yin2021, section 4.1.1: Table 1.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import Field, model_validator

from gradleak import data, metrics, studies
from gradleak.labels.hard.gradinversion import gradinversion
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.last_layers import TRAINED, Row, seen

PLACE = "Section 4.1.1, Table 1"
SMALLEST: dict[str, Any] = {"rows": ["photos/lenet5/relu/50"], "sizes": [1, 8], "samples": 16}
RULES = {"row sums": "sum", "GradInversion": "minimum"}
REPEATS = "with repeats"
KEYS = ["network", "activation", "size"]


class Parameters(studies.Parameters):
    """What a rerun may change."""

    rows: list[Row] = Field(
        ["photos/lenet5/relu/200", "photos/lenet5/tanh/200"],
        validate_default=True,
        description="dataset/network/activation/classes; no activation where the network has its own",
    )
    sizes: list[int] = Field([1, 8, 32, 64, 96], description="samples in a batch")
    samples: int = Field(500, ge=1, le=1_000_000, description="samples in all batches of a size together")

    paper: ClassVar[dict[str, Any]] = {
        "rows": [
            f"imagenet-sample/{TRAINED}//1000",
            "imagenet-sample/resnet50//1000",
            "imagenet-sample/efficientnet-b0//1000",
        ],
        "samples": 10_000,
    }

    def sees(self) -> list[Sees]:
        """Return the networks of all rows, and the images that they are shown."""
        return [row.sees for row in self.rows]

    @model_validator(mode="after")
    def _classes_enough(self) -> Self:
        for row in self.rows:
            if max(self.sizes) > row.classes:
                raise ValueError(
                    f"{max(self.sizes)} samples without repeats need as many classes; got {row.classes} in '{row}'"
                )
        return self


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return list(dict.fromkeys(row.dataset for row in parameters.rows))


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a network."""
    common = parameters.model_dump(include={"sizes", "samples", "seed"})
    common["device"] = studies.resolve_device(parameters.device)
    return [dict(row) | common for row in parameters.rows]


def trial(
    *,
    dataset: str,
    network: str,
    activation: str,
    classes: int,
    sizes: list[int],
    samples: int,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    """Restore the labels of many batches by both rules, without repeats and, of images given any label, with."""
    run = seen(dataset, network, activation, classes, seed, device)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for repeats in (False, True) if run.labels is None else (False,):
        for size in sizes:
            shares: dict[str, list[float]] = {name: [] for name in RULES}
            for _ in range(-(-samples // size)):
                chosen = torch.randperm(len(run.features), generator=generator)[:size].to(device)
                own = run.labels_of(chosen, generator, repeats=repeats)
                gradient = run.gradient(chosen, own).unsqueeze(0)
                truth = torch.bincount(own, minlength=classes).unsqueeze(0)
                for name, rule in RULES.items():
                    found = gradinversion(gradient, size, rule)  # type: ignore[arg-type]
                    shares[name].append(100 * float(metrics.count_overlap(found, truth)[0]))
            for name, own_shares in shares.items():
                values = torch.tensor(own_shares, dtype=torch.float64)
                rows.append(
                    {"rule": name, "size": size, "repeats": repeats, "accuracy": float(values.mean())}
                    | {"spread": float(values.std()) if len(values) > 1 else 0.0, "count": len(values)}
                )
    return rows


def scale(parameters: Parameters) -> str:
    """Return what a run is about, in a few words."""
    images = ", ".join(data.title(name) for name in datasets(parameters))
    return f"{len(parameters.rows)} networks, {parameters.samples:,} samples at each batch size, {images}"


def table(record: Record) -> pd.DataFrame:
    """Return Table 1: the share of labels restored where no class comes twice, a line a network and batch size."""
    return _table(record, repeats=False)


def repeats_table(record: Record) -> pd.DataFrame:
    """Return the same of batches that may hold a class twice, beside what no set can pass."""
    return _table(record, repeats=True)


def _table(record: Record, *, repeats: bool) -> pd.DataFrame:
    frame = record.frame()
    lines = []
    for (network, activation, size), group in frame[frame["repeats"] == repeats].groupby(KEYS, sort=False):
        own = group.set_index("rule")
        line = {"network": f"{network} {activation}".strip(), "B": f"{size:.0f}"}
        line |= {f"{name}, %": f"{own['accuracy'][name]:.2f} ± {own['spread'][name]:.1f}" for name in RULES}
        if repeats:
            line["limit, %"] = f"{limit(group['classes'].iloc[0], group['size'].iloc[0]):.1f}"
        lines.append(line | {"batches": f"{group['count'].iloc[0]:.0f}"})
    return pd.DataFrame(lines)


def limit(classes: int, size: int) -> float:
    """Return the expected share of different classes among so many labels drawn at random, in percent."""
    return 100 * classes * (1 - (1 - 1 / classes) ** size) / size


def figure_accuracy(record: Record) -> Figure:
    """Draw the share of labels restored against the batch size, a panel a network."""
    frame = record.frame()
    groups = list(frame.groupby(KEYS[:2], sort=False))
    figure, axes = figures.panels(1, len(groups), height=3.0, sharey=True)
    for axis, ((network, activation), group) in zip(axes[0], groups, strict=True):
        for index, name in enumerate(RULES):
            for repeats, part in group[group["rule"] == name].groupby("repeats"):
                axis.plot(
                    part["size"],
                    part["accuracy"],
                    color=figures.COLOURS[index],
                    linestyle=figures.DASHES[2 if repeats else 0],
                    marker="s" if repeats else "o",
                    markersize=4,
                    label=f"{name}, {REPEATS}" if repeats else name,
                )
        if group["repeats"].any():
            sizes = sorted(group["size"].unique())
            most = [limit(group["classes"].iloc[0], size) for size in sizes]
            axis.plot(sizes, most, color="0.55", linewidth=4, alpha=0.35, label="no set passes this, with repeats")
        axis.set(xticks=sorted(group["size"].unique()), xlabel="batch size")
        axis.set_title(f"{network} {activation}".strip())
    axes[0][0].set_ylabel("labels restored, %")
    axes[0][0].set_ylim(min(50.0, 10 * math.floor(frame["accuracy"].min() / 10)), 102)
    figures.legend_below(figure, 3)
    return figure
