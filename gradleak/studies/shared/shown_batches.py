"""Figures of restored batches, which several pages share."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.show import figures
from gradleak.show.aggregate import select
from gradleak.show.drawn import MARKERS, Mark, arranged, level, panel
from gradleak.studies import Record
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.restored_batches import FLOORS, KINDS, PSNRS, interval_of


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


def draw_sizes(record: Record, part: str, titles: Mapping[str, str]) -> Figure:
    """Draw the means of measures against the batch size, a line for each kind of image and attack.

    Bars are 95 % bootstrap intervals over groups of images, each as large as the largest batch. Dashed: the share of
    images that are identified by chance, and the mean PSNR of random images' mean colours.

    Args:
        record: The record.
        part: The part with the images.
        titles: The title of each measure's panel: PSNR in dB, others in percent.
    """
    images = rows_of(record, "image", part).astype(dict.fromkeys([*titles, "batch_size"], float))
    images = images.assign(
        psnr=images["psnr"].clip(*PSNRS),
        line=images["run"].str.replace(r", B = \d+", "", regex=True),
        **{name: 100 * images[name] for name in titles if name != "psnr"},
    ).sort_values("image", kind="stable")
    floors = dict.fromkeys(titles, rows_of(record, "batches", part)["chance"].astype(float).iloc[0])
    floors["psnr"] = select(images, run="mean colour", kind=KINDS[0])["psnr"].mean()
    images = images[~images["run"].isin(FLOORS)]
    sizes = sorted(images["batch_size"].unique())
    seed: Any = record.parameters["seed"]

    def against_size(column: str) -> Mark:
        def draw(axis: Axes, rows: pd.DataFrame) -> None:
            sns.pointplot(
                rows, x="batch_size", y=column, hue="line", ax=axis, native_scale=True, log_scale=(2, None), dodge=0.1,
                palette=figures.COLOURS[: rows["line"].nunique()], markers=list(MARKERS), linestyles=[*figures.DASHES],
                markersize=6, capsize=0.05, linewidth=1.6, err_kws={"linewidth": 1.2},
                errorbar=lambda values: interval_of(values.to_numpy(), int(sizes[-1]), seed),
            )  # fmt: skip
            if legend := axis.get_legend():
                legend.remove()  # the figure has one for all panels
            axis.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
            axis.minorticks_off()

        return draw

    floor = "chance, or mean colour of random images"
    panels = [
        panel(images, against_size(column), level(floors[column], floor), xlabel="images in a batch", title=title)
        for column, title in titles.items()
    ]
    return arranged(panels, len(panels), height=3.2, legend=3, sharey=False)
