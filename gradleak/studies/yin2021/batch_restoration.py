"""Batch restoration: labels from the lowest rows of a gradient

yin2021, section 4.1.1: Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import model_validator

from gradleak import claims, data, metrics, studies
from gradleak.labels.hard.gradinversion import gradinversion
from gradleak.runs.fitting import Sees
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.headline import Headline
from gradleak.show.leaks import Leaks, line
from gradleak.show.summaries import among, joined, only, select, summary
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared.last_layers import TRAINED, OnLastLayer, Seen, SeenNetwork
from gradleak.studies.shared.outcomes import Outcome, average_of, collected

PLACE = "Section 4.1.1, Table 1"
RULES = {"row sums": "sum", "GradInversion": "minimum"}
REPEATS = "with repeats"


class Parameters(studies.Parameters):
    """Parameters of the page: networks and images, batch sizes and the number of samples."""

    rows: list[SeenNetwork] = setting(
        paper=[
            f"imagenet-sample/{TRAINED}//1000",
            "imagenet-sample/resnet50//1000",
            "imagenet-sample/efficientnet-b0//1000",
        ],
        smallest=["photos/lenet5/relu/50"],
        validate_default=True,
    )
    sizes: list[int] = setting(smallest=[1, 8])
    samples: int = setting(paper=10_000, smallest=16, ge=1, le=1_000_000)

    def sees(self) -> list[Sees]:
        """Return the networks of all rows with their images."""
        return [row.sees for row in self.rows]

    @model_validator(mode="after")
    def _classes_enough(self) -> Self:
        for row in self.rows:
            if max(self.sizes) > row.classes:
                raise ValueError(
                    f"{max(self.sizes)} samples without repeats need as many classes; got {row.classes} in '{row}'"
                )
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each network."""
        for row in self.rows:
            yield RestoredLabels.of(self, **dict(row))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        images = ", ".join(map(data.title, dict.fromkeys(row.dataset for row in self.rows)))
        return f"{len(self.rows)} networks, {self.samples:,} samples at each batch size, {images}"


class Accuracy(Row):
    """The share of labels that a rule restores, in percent: mean and deviation over `count` batches of one size."""

    rule: str
    size: int
    repeats: bool
    accuracy: float
    spread: float
    count: int


class RestoredLabels(OnLastLayer):
    """Labels of many batches, restored by both rules.

    No batch repeats a class. For untrained networks, whose samples get random labels, further batches may repeat
    classes.
    """

    sizes: list[int]
    samples: int

    def run(self) -> Iterator[Accuracy]:
        """Restore the labels of batches of every size."""
        seen = self.seen()
        generator = torch.Generator().manual_seed(self.seed)
        for repeats in (False, True) if seen.labels is None else (False,):
            for size in self.sizes:
                for rule, shares in self._shares(seen, size, repeats, generator).items():
                    values = torch.tensor(shares, dtype=torch.float64)
                    yield Accuracy(
                        rule=rule,
                        size=size,
                        repeats=repeats,
                        accuracy=float(values.mean()),
                        spread=float(values.std()) if len(values) > 1 else 0.0,
                        count=len(values),
                    )

    def _shares(self, seen: Seen, size: int, repeats: bool, generator: torch.Generator) -> dict[str, list[float]]:
        """Return the share of labels that each rule restores in every batch, in percent."""
        shares: dict[str, list[float]] = {name: [] for name in RULES}
        for _ in range(-(-self.samples // size)):
            chosen = torch.randperm(len(seen.features), generator=generator)[:size].to(self.device)
            own = seen.labels_of(chosen, generator, repeats=repeats)
            gradient = seen.gradient(chosen, own).unsqueeze(0)
            truth = torch.bincount(own, minlength=self.classes).unsqueeze(0)
            for name, rule in RULES.items():
                found = gradinversion(gradient, size, rule)  # type: ignore[arg-type]
                shares[name].append(100 * float(metrics.count_overlap(found, truth)[0]))
        return shares


def headline(record: Record) -> Headline:
    """Return the finding: the least entries of rows find nearly all labels of batches without repeated classes."""
    known = claims.judgements(record)
    least, sums = known["restoration-96-gradinversion"], known["restoration-96-row-sums"]
    rows = record.rows(RestoredLabels)
    both = rows[rows["network"].eq(TRAINED) & rows["size"].eq(96)].set_index("rule")["accuracy"]
    return Headline(
        f"In batches of {least.claim.measure.where['size']} images of different classes the least entry of each row "
        f"of the last layer’s gradient reveals {least.text} of the labels, and the sum of each row {sums.text} "
        "(trained EfficientNet-Lite0); neither rule can find a class twice.",
        true=bool(least.agrees and both["GradInversion"] > both["row sums"]),
        claim="restoration-96-gradinversion",
        what="labels restored by GradInversion’s rule in batches of 96 (trained EfficientNet-Lite0, ImageNet)",
        figure=figure_accuracy,
        of="batches",
    )


def table(record: Record) -> pd.DataFrame:
    """Return Table 1: the share of labels that each rule restores (%) in batches without repeated classes.

    One row for each network and batch size B. Cells are mean ± standard deviation over batches.
    """
    return _table(record, repeats=False)


def repeats_table(record: Record) -> pd.DataFrame:
    """Return the same for batches that may repeat a class, with the limit for rules that return a set of classes."""
    return _table(record, repeats=True)


def _table(record: Record, *, repeats: bool) -> pd.DataFrame:
    rows = select(record.rows(RestoredLabels), repeats=repeats)
    rows = rows.assign(network=[_title(*one) for one in zip(rows["network"], rows["activation"], strict=True)])
    share = joined(" ± ", only("accuracy", ".2f"), only("spread", ".1f"))
    measures = {f"{name} (%)": among(share, rule=name) for name in RULES}
    if repeats:
        measures["limit (%)"] = lambda group: f"{limit(group['classes'].iloc[0], group['size'].iloc[0]):.1f}"
    return summary(rows, {"network": "network", "batch size": "size"}, {**measures, "batches": only("count", ".0f")})


def _title(network: object, activation: object) -> str:
    return f"{network} {activation}".strip() + (", trained" if network == TRAINED else ", untrained")


def limit(classes: int, size: int) -> float:
    """Return the expected share of distinct classes among `size` random labels, in percent."""
    return 100 * classes * (1 - (1 - 1 / classes) ** size) / size


def figure_accuracy(record: Record) -> Figure:
    """Draw the share of labels restored (%) against the batch size, a panel for each network and a line for each rule.

    Dashed lines are batches that may repeat a class. The wide grey line is the limit for rules that return a set.
    """
    frame = record.rows(RestoredLabels)
    groups = list(frame.groupby(["network", "activation"], sort=False))
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
            axis.plot(
                sizes, most, color="0.55", linewidth=4, alpha=0.35, label="limit of a set of classes, with repeats"
            )
        axis.set(xticks=sorted(group["size"].unique()), xlabel="batch size")
        axis.set_title(_title(network, activation))
    axes[0][0].set_ylabel("labels restored (%)")
    axes[0][0].set_ylim(min(50.0, 10 * math.floor(frame["accuracy"].min() / 10)), 102)
    figures.legend_below(figure, 3)
    return figure


def leaks(record: Record) -> Leaks:
    """Return this page's row in the book's first table."""
    distinct = line(table(record), "efficientnet-lite0, trained", "96")
    repeated = line(repeats_table(record), "efficientnet-b0, untrained", "96")
    return Leaks(
        "labels of a batch (GradInversion)",
        f"batches of {distinct['batch size']}; trained EfficientNet-Lite0",
        f"{distinct['GradInversion (%)']} % of labels; where classes repeat, {repeated['GradInversion (%)']} % "
        f"(untrained EfficientNet-B0); {distinct['batches']} batches each",
        "",
        kind="labels",
        attack="GradInversion's rule",
        batch=int(distinct["batch size"]),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    found = average_of("accuracy", "labels found", "batches", spread="spread")
    return collected(
        record, rows, "labels", found, attack=rows["rule"].replace("GradInversion", "GradInversion's rule"),
        network=rows["network"], training=["trained" if name in TRAINED else "untrained" for name in rows["network"]],
        data=rows["dataset"], batch=rows["size"],
        detail=["labels repeat" if repeats else "distinct labels" for repeats in rows["repeats"]],
    )  # fmt: skip
