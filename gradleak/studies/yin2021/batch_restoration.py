"""Batch restoration: labels from the lowest rows of a gradient

yin2021, section 4.1.1: Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import model_validator

from gradleak import claims, data, metrics, studies
from gradleak.labels.hard.gradinversion import Rule, gradinversion
from gradleak.show.aggregate import select
from gradleak.show.drawn import crossed, drawn, lines
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Record, Sees, setting
from gradleak.studies.shared.last_layers import TRAINED, OnLastLayer, Seen, ShownImages
from gradleak.studies.shared.outcomes import average_of, collected
from gradleak.studies.yin2021.columns import COLUMNS

PLACE = "Section 4.1.1, Table 1"
RULES: dict[str, Rule] = {"row sums": "sum", "GradInversion": "minimum"}
# The two kinds of batches, by whether their labels may repeat.
BATCHES = {False: "distinct labels", True: "labels repeat"}


class Parameters(studies.Parameters):
    """Parameters of the page: networks and images, batch sizes and the number of samples."""

    rows: list[ShownImages] = setting(
        paper=[
            {"dataset": "imagenet-sample", "network": network, "classes": 1000}
            for network in (TRAINED, "resnet50", "efficientnet-b0")
        ],
        smallest=[{"dataset": "photos", "network": "lenet5", "activation": "relu", "classes": 50}],
    )
    sizes: list[int] = setting(smallest=[1, 8])
    samples: int = setting(paper=10_000, smallest=16, ge=1, le=1_000_000)

    def sees(self) -> list[Sees]:
        """Return the networks of all rows with their images."""
        return [row.sees for row in self.rows]

    @model_validator(mode="after")
    def _classes_enough(self) -> Self:
        most, fewest = max(self.sizes), min(row.classes for row in self.rows)
        if most > fewest:
            raise ValueError(f"{most} samples without repeats need as many classes; got {fewest}")
        return self

    def experiments(self) -> Iterator[Experiment]:
        """Yield an experiment for each network."""
        for row in self.rows:
            yield RestoredLabels.of(self, **dict(row))

    def about(self) -> str:
        """Return the size of a run and its data in a few words."""
        images = ", ".join(map(data.title, dict.fromkeys(row.dataset for row in self.rows)))
        return f"{len(self.rows)} networks, {self.samples:,} samples at each batch size, {images}"


class RestoredLabels(OnLastLayer):
    """Labels of many batches, restored by both rules.

    No batch repeats a class. For untrained networks, whose samples get random labels, further batches may repeat
    classes.
    """

    sizes: list[int]
    samples: int

    def run(self) -> Iterator[Columns]:
        """Restore the labels of batches of every size: the mean share and its deviation for each rule, in percent."""
        seen = self.seen()
        generator = torch.Generator().manual_seed(self.seed)
        for repeats in (False, True) if seen.labels is None else (False,):
            for size in self.sizes:
                count = -(-self.samples // size)
                shares = [self._shares(seen, size, repeats, generator) for _ in range(count)]
                for rule, values in zip(RULES, torch.tensor(shares, dtype=torch.float64).T, strict=True):
                    yield {
                        "rule": rule,
                        "size": size,
                        "repeats": repeats,
                        "accuracy": float(values.mean()),
                        "spread": float(values.std()) if count > 1 else 0.0,
                        "count": count,
                    }

    def _shares(self, seen: Seen, size: int, repeats: bool, generator: torch.Generator) -> list[float]:
        """Return the share of a new batch's labels that each rule restores, in percent."""
        chosen = torch.randperm(len(seen.features), generator=generator)[:size].to(self.device)
        labels = seen.labels_of(chosen, generator, repeats=repeats)
        gradient = seen.gradient(chosen, labels).unsqueeze(0)
        truth = torch.bincount(labels, minlength=self.classes).unsqueeze(0)
        found = [gradinversion(gradient, size, rule) for rule in RULES.values()]
        return [100 * float(metrics.count_overlap(counts, truth)[0]) for counts in found]


def summary(record: Record) -> Summary:
    """Return the finding: the least entries of rows find nearly all labels of batches without repeated classes."""
    known = claims.judgements(record)
    least, sums = known["restoration-96-gradinversion"], known["restoration-96-row-sums"]
    rows = restored(record)
    large = select(rows, network=TRAINED, size=96).set_index("rule")
    distinct: Any = large.loc["GradInversion"]
    repeated = select(rows, network="efficientnet-b0", rule="GradInversion", size=96, repeats=True)["share"].item()
    return Summary(
        f"In batches of {least.claim.measure.where['size']} images of different classes the least entry of each row "
        f"of the last layer’s gradient reveals {least.text} of the labels, and the sum of each row {sums.text} "
        "(trained EfficientNet-Lite0); neither rule can find a class twice.",
        true=bool(least.agrees and distinct["accuracy"] > large["accuracy"]["row sums"]),
        claim="restoration-96-gradinversion",
        what="labels restored by GradInversion’s rule in batches of 96 (trained EfficientNet-Lite0, ImageNet)",
        figure=figure_accuracy,
        of="batches",
        leaks=Leaks(
            "labels of a batch (GradInversion)",
            f"batches of {distinct['size']}; trained EfficientNet-Lite0",
            f"{distinct['share']} of labels; where classes repeat, {repeated} (untrained EfficientNet-B0); "
            f"{distinct['count']} batches each",
            "",
            kind="labels",
            attack="GradInversion's rule",
            batch=int(distinct["size"]),
        ),
        outcomes=collected(
            record, rows, "labels", average_of("accuracy", "labels found", "batches", spread="spread"),
            attack=rows["rule"].replace("GradInversion", "GradInversion's rule"), network=rows["network"],
            training=rows["training"], data=rows["dataset"], batch=rows["size"], detail=rows["kind"],
        ),
    )  # fmt: skip


def restored(record: Record) -> pd.DataFrame:
    """Return the rows with words for network and batches, and the largest expected share of a rule's answers (%).

    A rule names no class twice, so it cannot find all labels if these repeat.
    """
    rows = record.rows(RestoredLabels)
    classes, sizes = rows["classes"].astype(float), rows["size"].astype(float)
    distinct = classes * (1 - (1 - 1 / classes) ** sizes)
    training = rows["network"].eq(TRAINED).map({True: "trained", False: "untrained"})
    return rows.assign(
        training=training,
        title=(rows["network"] + " " + rows["activation"]).str.strip() + ", " + training,
        kind=rows["repeats"].map(BATCHES),
        share=rows["accuracy"].map("{:.2f} ± ".format) + rows["spread"].map("{:.1f} %".format),
        limit=(100 * distinct / sizes).where(rows["repeats"].astype(bool), 100.0),
    )


def in_large_batches(record: Record) -> str:
    """Return in words the share of labels that GradInversion's rule restores from the largest batches."""
    rows = select(restored(record), rule="GradInversion")
    rows = rows[rows["size"] == rows["size"].max()]
    return (
        f"From batches of {rows['size'].iloc[0]}, GradInversion’s rule restores (mean ± standard deviation over "
        "batches): "
        f"{'; '.join(rows['title'] + ', ' + rows['kind'] + ': ' + rows['share'])}."
    )


def figure_accuracy(record: Record) -> Figure:
    """Draw the share of labels restored (%) against the batch size, a panel for each network and a line for each rule.

    Dashed lines are batches whose labels may repeat. The wide grey line is their limit.
    """
    rows = restored(record)
    limits = select(rows, repeats=True).assign(rule="limit", accuracy=lambda own: own["limit"])
    looks = crossed(RULES, BATCHES.values())
    looks |= {f"limit, {BATCHES[True]}": {"color": "0.55", "linewidth": 4, "alpha": 0.35, "marker": ""}}
    return drawn(
        pd.concat([rows, limits]),
        lines("size", "accuracy", by=["rule", "kind"], looks=looks),
        panels="title",
        legend=3,
        xlabel=COLUMNS["size"].head,
        ylabel=COLUMNS["accuracy"].head,
        xticks=rows["size"].unique(),
        ylim=(min(50.0, 10 * math.floor(rows["accuracy"].min() / 10)), 102),
    )
