"""Images from LeNet by matching the last layer's input as well

wang2024, section 5.1: Table 4.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure
from pydantic import Field

from gradleak import claims, studies
from gradleak.errors import InputError
from gradleak.images import Distance
from gradleak.records import Record
from gradleak.studies._reconstruction import (
    DISTANCES,
    KINDS,
    STAGES,
    compared,
    detail_table,
    draw_curves,
    draw_strips,
    mean_text,
    optimizer,
    paired,
    paired_table,
    prior,
    private,
    published,
    read_by,
    rows_of,
)

__all__ = ["detail_table", "paired_table", "table"]
PAPER = "wang2024"
PLACE = "Section 5.1, Table 4"
SMALLEST: dict[str, Any] = {"pairs": 2, "images": 2, "l2_steps": 1, "cosine_steps": 2}
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


class Parameters(studies.Parameters):
    """What a rerun may change."""

    pairs: int = Field(3, ge=2, le=10_000, description="mixed images, one a pair of classes")
    images: int = Field(3, ge=2, le=10_000, description="images with smoothed labels")
    restarts: int = Field(1, ge=1, le=100, description="random starts an image")
    l2_steps: int = Field(10, ge=1, le=100_000, description="L-BFGS steps of L2 matching, 20 gradients each")
    cosine_steps: int = Field(200, ge=1, le=1_000_000, description="Adam steps of cosine matching")
    stages: list[str] = Field(["untrained"], description="networks: untrained, trained")
    dataset: str = Field("photos", description="private images, test split")

    paper: ClassVar[dict[str, Any]] = {
        "pairs": 45,
        "images": 30,
        "l2_steps": 300,
        "cosine_steps": 4800,
        "dataset": "cifar10",
    }


def datasets(parameters: Parameters) -> list[str]:
    """Return the names of the datasets this study reads."""
    return read_by(parameters.dataset, parameters.stages)


def trials(parameters: Parameters) -> list[dict[str, Any]]:
    """Return the inputs of every trial: one a row of Table 4."""
    for stage in parameters.stages:
        if stage not in STAGES:
            raise InputError(f"stages are {' and '.join(STAGES)}; got '{stage}'")
    device = studies.resolve_device(parameters.device)
    counts = {"mixup": parameters.pairs, "smoothing": parameters.images}
    steps = {"l2": parameters.l2_steps, "cosine": parameters.cosine_steps}
    common = {"restarts": parameters.restarts, "dataset": parameters.dataset, "seed": parameters.seed, "device": device}
    return [
        {"labels": labels, "distance": distance, "stage": stage, "samples": counts[labels], "steps": steps[distance]}
        | common
        for labels in KINDS
        for distance in DISTANCES
        for stage in parameters.stages
    ]


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
) -> list[dict[str, Any]]:
    """Match gradients and features of one row of the table with every pair of weights, labels recovered."""
    model, _, inputs, targets = private(labels, stage, samples, dataset, seed, device)
    common = {"labels": "recovered", "prior": prior(stage), "optimizer": optimizer(distance, steps)}
    runs = {
        name: common | {"distance": Distance(distance, head=head, feature=feature)}  # type: ignore[arg-type]
        for name, (head, feature) in WEIGHTS.items()
    }
    rows = compared(model, inputs, targets, runs, label_prior=labels, restarts=restarts, seed=seed)
    return rows + paired(rows, PAIRS, seed)


def table(record: Record) -> pd.DataFrame:
    """Return Table 4's PSNR: clipped, as the paper's code counts, and the paper's."""
    cells = published(claims.load("feature-matching"))
    lines = []
    for keys, group in rows_of(record, "image").groupby(["labels", "distance", "stage"], sort=False):
        line: dict[str, Any] = dict(zip(("labels", "distance", "LeNet"), keys, strict=True))
        for name in WEIGHTS:
            own = group[group["run"] == name]
            stated = cells.get((*keys, name, "psnr"), "–")
            line[name] = f"{mean_text(own['psnr'])} / {mean_text(own['eight_bit'])} / {stated}"
        lines.append(line | {"n": group["image"].nunique()})
    return pd.DataFrame(lines)


def figure_images(record: Record) -> Figure:
    """Draw the first images of every row as each pair of weights restored them."""
    return draw_strips(record, list(WEIGHTS))


def figure_curves(record: Record) -> Figure:
    """Draw PSNR over the steps of every row, a line a pair of weights."""
    return draw_curves(record, list(WEIGHTS))
