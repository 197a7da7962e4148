"""Images from LeNet by matching the last layer's input as well

wang2024, section 5.1: Table 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from gradleak.runs.records import Record
from gradleak.studies import Experiment, Row, setting
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.attacked_networks import Stage
from gradleak.studies.shared.matched_runs import (
    Matched,
    Trained,
    draw_curves,
    draw_strips,
    interval_table,
    paired,
    paired_table,
    psnr_table,
)

__all__ = ["paired_table", "table"]
PLACE = "Section 5.1, Table 4"
# The paper's columns: α, the weight of the last layer's gradient, and β, that of its input.
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
# What the paper's code runs in the place of the last column: its α is not applied and stays 1.
CODED: dict[str, tuple[float, float]] = {"α=1 β=2": (1, 2)}
Which = Literal["as stated", "as coded", "whole steps"]
RUNS: dict[Which, dict[str, tuple[float, float]]] = {
    "as stated": WEIGHTS,
    "as coded": CODED,
    "whole steps": {BASE: WEIGHTS[BASE], BEST: WEIGHTS[BEST]} | CODED,
}


class Parameters(matched_runs.Parameters):
    """How many images and starts each row of Table 4 has, on which networks, and for how many steps."""

    stages: list[Stage] = setting(["untrained"], about="networks: untrained, trained")

    def experiments(self) -> Iterator[Experiment]:
        """Give the rows of Table 4 with the paper's weights, and as its code runs them: with whole steps of L2."""
        rows = list(Weighted.every(self))
        yield from rows
        for row in rows:
            if row.distance == "cosine":
                yield row.model_copy(update={"which": "as coded"})
        for row in rows:
            if self.whole and row.distance == "l2":
                samples = min(self.whole, row.samples)
                yield row.model_copy(update={"which": "whole steps", "samples": samples, "restarts": self.whole_starts})


class Weighted(Matched):
    """A row of Table 4: gradients and features matched with pairs of weights, labels recovered.

    `which`: the paper's five pairs with steps that are searched along, what its code runs as the last of them, or three
    of these with whole L-BFGS steps, as the code has them.
    """

    which: Which = "as stated"

    def run(self) -> list[Row]:
        """Match with every pair of weights, and compare the pairs."""
        shown, whole = self.private(), self.which == "whole steps"
        told = ", whole steps" if whole else ""
        runs = {
            f"{name}{told}": self.matching(labels="recovered", whole=whole, head=head, feature=feature)
            for name, (head, feature) in RUNS[self.which].items()
        }
        rows = self.compared(shown, runs)
        if self.which == "as stated":
            return [*rows, *paired(rows, PAIRS, self.seed), Trained(what="network", accuracy=shown.accuracy)]
        pairs = [(f"{BEST}{told}", f"{BASE}{told}")] if whole else []
        # The private images stand among the rows of the paper's weights.
        return [*(row for row in rows if row.run != "private"), *paired(rows, pairs, self.seed)]


def table(record: Record) -> pd.DataFrame:
    """Return Table 4's PSNR."""
    return psnr_table(record, list(WEIGHTS))


def coded_table(record: Record) -> pd.DataFrame:
    """Return where the means of the code's own runs lie: α of 1 beside the last column's 2, and steps taken whole."""
    whole = [f"{name}, whole steps" for name in RUNS["whole steps"]]
    return interval_table(record, ["α=2 β=2", *CODED, *whole], "weights")


def detail_table(record: Record) -> pd.DataFrame:
    """Return what Table 4 says besides PSNR, a line a row and pair of weights."""
    return matched_runs.detail_table(record, "weights")


def figure_images(record: Record) -> Figure:
    """Draw the first images of every row as each pair of weights restored them."""
    return draw_strips(record, list(WEIGHTS))


def figure_curves(record: Record) -> Figure:
    """Draw PSNR over the steps of every row, a line a pair of weights."""
    return draw_curves(record, list(WEIGHTS))


def figure_losses(record: Record) -> Figure:
    """Draw the loss over the steps of every row, a line a pair of weights."""
    return draw_curves(record, list(WEIGHTS), "loss")
