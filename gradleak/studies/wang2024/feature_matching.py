"""Images from LeNet by matching the last layer's input as well

wang2024, section 5.1: Table 4.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pandas as pd
from matplotlib.figure import Figure

from gradleak.images import Distance
from gradleak.runs.records import Record
from gradleak.studies.shared import matched_runs
from gradleak.studies.shared.matched_runs import (
    compared,
    draw_curves,
    draw_strips,
    interval_table,
    optimizer,
    paired,
    paired_table,
    prior,
    private,
    psnr_table,
    read_by,
    row_trials,
)

__all__ = ["paired_table", "table"]
PLACE = "Section 5.1, Table 4"
SMALLEST: dict[str, Any] = {}
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
    """What a rerun may change."""

    paper: ClassVar[dict[str, Any]] = matched_runs.Parameters.paper | {"stages": ["untrained"]}


def scale(parameters: Parameters) -> str:
    """Return in a few words how many samples of what a run is about."""
    return matched_runs.scale(parameters)


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return read_by(parameters.dataset, parameters.stages)


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: rows of Table 4 with the paper's weights, and as its code runs them.

    Its code takes the steps of L2 whole.
    """
    rows = row_trials(parameters)
    coded = [inputs | {"which": "as coded"} for inputs in rows if inputs["distance"] == "cosine"]
    most, starts = parameters.whole, parameters.whole_starts
    whole = [
        inputs | {"which": "whole steps", "samples": min(most, inputs["samples"]), "restarts": starts}
        for inputs in rows
        if most and inputs["distance"] == "l2"
    ]
    return rows + coded + whole


def trial(
    *,
    labels: str,
    distance: str,
    stage: str,
    samples: int,
    steps: int,
    restarts: int,
    dataset: str,
    seed: int,
    device: str,
    which: Which = "as stated",
) -> list[dict[str, Any]]:
    """Match gradients and features of one row of the table with pairs of weights, labels recovered.

    `which`: the paper's five with steps that are searched along, what its code runs as the last of them, or three of
    these with whole L-BFGS steps, as the code has them.
    """
    model, accuracy, inputs, targets = private(labels, stage, samples, dataset, seed, device)
    chosen = optimizer(distance, steps, whole=which == "whole steps")
    common = {"labels": "recovered", "prior": prior(stage), "optimizer": chosen}
    told = ", whole steps" if which == "whole steps" else ""
    runs = {
        f"{name}{told}": common | {"distance": Distance(distance, head=head, feature=feature)}  # type: ignore[arg-type]
        for name, (head, feature) in RUNS[which].items()
    }
    rows = compared(model, inputs, targets, runs, label_prior=labels, restarts=restarts, seed=seed)
    if which == "as stated":
        return [*rows, *paired(rows, PAIRS, seed), {"what": "network", "accuracy": accuracy}]
    pairs = [(f"{BEST}{told}", f"{BASE}{told}")] if told else []
    # The private images stand among the rows of the paper's weights.
    return [row for row in rows if row["run"] != "private"] + paired(rows, pairs, seed)


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
