"""Feature matching: images from LeNet by matching the last layer's input as well

wang2024, section 5.1: Table 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pandas as pd
from matplotlib.figure import Figure

from gradleak import claims
from gradleak.runs.records import Record
from gradleak.show.headline import Headline
from gradleak.show.summaries import select
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.matched_runs import (
    Matched,
    OfRun,
    Private,
    Trained,
    draw_curves,
    draw_strips,
    interval_table,
    paired,
    paired_table,
    psnr_table,
    rows_of,
)
from gradleak.studies.shared.outcomes import PSNR, Outcome, collected

__all__ = ["paired_table", "table"]
PLACE = "Section 5.1, Table 4"
# The paper's columns: α is the weight of the last layer's gradient, β is the weight of the last layer's input.
WEIGHTS: dict[str, tuple[float, float]] = {
    "α=1 β=0": (1, 0),
    "α=0 β=1": (0, 1),
    "α=1 β=1": (1, 1),
    "α=0 β=2": (0, 2),
    "α=2 β=2": (2, 2),
}
BASE, BEST = "α=1 β=0", "α=0 β=2"
PAIRS = (
    (BEST, BASE),
    *((BEST, name) for name in WEIGHTS if name not in (BASE, BEST)),
    ("α=0 β=1", "α=1 β=1"),
)
# The weights that the paper's code uses for the last column: the code does not apply α, so α stays 1.
CODED: dict[str, tuple[float, float]] = {"α=1 β=2": (1, 2)}
WHOLE: dict[str, tuple[float, float]] = {BASE: WEIGHTS[BASE], BEST: WEIGHTS[BEST]} | CODED


class Parameters(matched_runs.Parameters):
    """Parameters of the page: images, starts, networks and steps for each row of Table 4."""

    stages: list[Stage] = setting(["untrained"], about="states of LeNet: untrained, trained")

    def experiments(self) -> Iterator[Experiment]:
        """Yield the rows of Table 4 with the weights of the paper, with those of its code, and without line search."""
        yield from Stated.every(self)
        yield from (row for row in Coded.every(self) if row.distance == "cosine")
        if self.whole:
            for row in WholeSteps.every(self, restarts=self.whole_starts):
                if row.distance == "l2":
                    yield row.model_copy(update={"samples": min(self.whole, row.samples)})


class Weighted(Matched):
    """Match gradients and features for a row of Table 4 with several pairs of weights and the recovered labels."""

    def weighted(self, shown: Private, pairs: Mapping[str, tuple[float, float]], *, whole: bool = False) -> list[OfRun]:
        """Match with every pair of weights.

        Args:
            shown: The network with the private images.
            pairs: The weights of the last layer's gradient and of its input, by the name of the run.
            whole: Whether L-BFGS takes full steps, without a line search.
        """
        runs = {
            f"{name}{', full steps' * whole}": self.matching(
                labels="recovered", whole=whole, head=head, feature=feature
            )
            for name, (head, feature) in pairs.items()
        }
        return self.compared(shown, runs)


class Stated(Weighted):
    """Match with the paper's five pairs of weights."""

    part: ClassVar[str] = "as stated"

    def run(self) -> list[Row]:
        """Match with every pair of weights, and compare the results."""
        shown = self.private()
        rows = self.weighted(shown, WEIGHTS)
        return [*rows, *paired(rows, PAIRS, self.seed), Trained(what="network", accuracy=shown.accuracy)]


class Coded(Weighted):
    """Match with the weights that the paper's code uses for the last pair."""

    part: ClassVar[str] = "as coded"

    def run(self) -> list[Row]:
        """Match, and leave out the private images, which `Stated` has."""
        return [row for row in self.weighted(self.private(), CODED) if row.run != "private"]


class WholeSteps(Weighted):
    """Match with three pairs of weights without line search (full L-BFGS steps), as in the paper's code."""

    part: ClassVar[str] = "full steps"

    def run(self) -> list[Row]:
        """Match with every pair of weights, and compare the results."""
        rows = self.weighted(self.private(), WHOLE, whole=True)
        pairs = [(f"{BEST}, full steps", f"{BASE}, full steps")]
        return [*(row for row in rows if row.run != "private"), *paired(rows, pairs, self.seed)]


def headline(record: Record) -> Headline:
    """Return the finding: matching the input instead of the last layer's gradient helps with the cosine distance."""
    known = claims.judgements(record)
    mixed, smoothed = (known[f"s51-{labels}-cosine-β-2-over-α-1"] for labels in ("mixup", "label-smoothing"))
    (undecided,) = select(
        rows_of(record, "paired"), labels="smoothing", distance="l2", run=f"{BEST} against {BASE}"
    ).to_dict("records")
    return Headline(
        f"With the cosine distance, matching the last layer's input instead of its gradient gains at least "
        f"{mixed.text} PSNR for mixed images and at least {smoothed.text} for smoothed labels (lower confidence "
        "bounds); with the L2 distance the gain for smoothed labels is uncertain.",
        true=bool(mixed.agrees and smoothed.agrees and undecided["low"] < 0 < undecided["high"]),
        claim="t4-mixup-cosine-α-0-β-2-psnr",
        what="mean PSNR of mixed CIFAR-10 images, untrained LeNet, cosine, input matched instead of gradient",
        figure=figure_curves,
        of="images",
    )


def table(record: Record) -> pd.DataFrame:
    """Return the mean PSNR (dB) of Table 4, ours and the paper's.

    Rows: kinds of label, distances and states of LeNet. Columns: pairs of weights.
    """
    return psnr_table(record, list(WEIGHTS))


def coded_table(record: Record) -> pd.DataFrame:
    """Return the 95 % confidence intervals of the mean PSNR with the weights and the full steps of the paper's code."""
    whole = [f"{name}, full steps" for name in WHOLE]
    return interval_table(record, {name: name for name in ("α=2 β=2", *CODED, *whole)}, "weights")


def detail_table(record: Record) -> pd.DataFrame:
    """Return the other measures of Table 4, such as SSIM and LPIPS. Rows: rows of Table 4 and pairs of weights."""
    return matched_runs.detail_table(record, "weights")


def figure_images(record: Record) -> Figure:
    """Show the first images of every row of Table 4, private and as restored with each pair of weights."""
    return draw_strips(record, list(WEIGHTS))


def figure_curves(record: Record) -> Figure:
    """Plot the PSNR against the step, one panel for each row of Table 4, one line for each pair of weights."""
    return draw_curves(record, list(WEIGHTS))


def figure_losses(record: Record) -> Figure:
    """Plot the loss against the step, one panel for each row of Table 4, one line for each pair of weights."""
    return draw_curves(record, list(WEIGHTS), "loss")


def outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    rows = record.frame()
    rows = rows[rows["what"] == "image"]
    return collected(
        record, rows, "images", PSNR, attack="gradient and feature matching, " + rows["distance"], network="lenet",
        training=rows["stage"], data=rows["dataset"], detail=rows["labels"] + " labels, " + rows["run"],
    )  # fmt: skip
