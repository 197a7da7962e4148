"""Figures of restored batches, which several pages share."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.drawn import arranged, level, panel, proportions
from gradleak.studies import Record
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.restored_batches import FLOORS, KINDS, PSNRS, interval_of

# What the panels of the figure of batch sizes show.
MEASURES = {
    "identified": "identified by\nanother network (%)",
    "identified_by_own": "identified by\nthe attacked network (%)",
    "psnr": "PSNR (dB)",
}


def rows_of(record: Record, what: str, part: str) -> pd.DataFrame:
    """Return a record's rows of one kind in one of its parts, possibly none.

    A baseline image "unrelated" that is equal to the private one by chance is left out.
    """
    own = select(record.frame(), what=what, part=part)
    return own[~((own["run"] == "unrelated") & (own["psnr"].astype(float) == math.inf))] if what == "image" else own


def strips(record: Record, part: str, **where: Hashable) -> Figure:
    """Draw the first images of a part: the private ones above those of each attack and baseline."""
    pictures = select(rows_of(record, "picture", part), **where)
    if pictures.empty:
        return figures.nothing("Not run with these parameters")
    first = pictures[pictures["first"] == pictures["first"].min()]
    own = first.set_index("run")["picture"]
    figure, axes = figures.panels(1, 1, height=0.55 * len(own) + 0.4)
    figure.set_layout_engine("compressed")
    show(axes[0][0], list(own), list(own.index))
    return figure


def draw_sizes(record: Record, part: str, *measures: str) -> Figure:
    """Draw the means of measures for each batch size, with a colour for each kind of image and attack.

    Bars are 95 % bootstrap intervals over groups of images, each as large as the largest batch. Dashed: the share of
    images that are identified by chance, and the mean PSNR of random images' mean colours.

    Args:
        record: The record.
        part: The part with the images.
        measures: The measures, a panel for each: keys of `MEASURES`.
    """
    images = rows_of(record, "image", part).astype(dict.fromkeys([*measures, "batch_size"], float))
    images = images.assign(
        psnr=images["psnr"].clip(*PSNRS),
        line=images["run"].str.replace(r", B = \d+", "", regex=True),
        size=images["batch_size"].map("{:.0f}".format),
        **{name: 100 * images[name] for name in measures if name != "psnr"},
    ).sort_values(["batch_size", "image"], kind="stable")
    floors = dict.fromkeys(measures, rows_of(record, "batches", part)["chance"].astype(float).iloc[0])
    floors["psnr"] = select(images, run="mean colour", kind=KINDS[0])["psnr"].mean()
    images = images[~images["run"].isin(FLOORS)]
    most, seed = int(images["batch_size"].max()), int(str(record.parameters["seed"]))

    def interval(values: Any) -> tuple[float, float]:
        return interval_of(values.to_numpy(), most, seed)

    panels = []
    for column in measures:
        means = proportions(column, "size", by="line", interval=interval, aside=0.15)
        floor = level(floors[column], "chance, or mean colour of random images", upright=True)
        panels.append(panel(images, means, floor, xlabel=MEASURES[column], ylabel="images in a batch"))
    return arranged(panels, len(panels), height=3.2, legend=3)
