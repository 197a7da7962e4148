"""Tables and figures of restored batches, which several pages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.runs.columns import Columns, Text
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import Mark, arranged, dots, level, look_of, only_rows, panel
from gradleak.show.summaries import NOTHING, Measure, cells, count, mean, median, select, summary
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.outcomes import BASELINES, PUBLISHED
from gradleak.studies.shared.restored_batches import FLOORS, KINDS, LATENT, OF_ANOTHER, interval_of, values_of

# The notes on a table of the quality of images.
NOTES = (
    "PSNR: mean with a 95 % bootstrap interval over batches and images. Relative L2: median, because it is unbounded "
    "for dark images. LPIPS: a learned distance between images (lower is better), computed on images enlarged four "
    "times; n/a without a pretrained network.",
    "Identified: the private image is the nearest neighbour of the restored one among all test images.",
)


def rows_of(record: Record, what: str, part: str) -> pd.DataFrame:
    """Return a record's rows of one kind in one of its parts, possibly none.

    A baseline image "unrelated" that is equal to the private one by chance is left out.
    """
    own = select(record.frame(), what=what, part=part)
    return own[~((own["run"] == "unrelated") & (own["psnr"].astype(float) == math.inf))] if what == "image" else own


def quality_table(
    columns: Columns,
    groups: Mapping[str, tuple[pd.DataFrame, int]],
    seed: int,
    more: Mapping[str, Measure] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return the quality of the images of each run, with one row for each group of images and run.

    Args:
        columns: The columns of the paper's pages.
        groups: For each group, by its name: the rows of its images, and the number of images that the bootstrap
            resamples together.
        seed: Seed of the bootstrap.
        more: Further measures, by their heads in the table.
    """

    def psnr(rows: pd.DataFrame) -> str:
        values = measured(rows, "psnr")
        assert values is not None
        low, high = interval_of(values, rows["together"].iloc[0], seed)
        return f"{values.mean():.1f} ({low:.1f} … {high:.1f})"

    def lpips(rows: pd.DataFrame) -> str:
        values = measured(rows, "lpips")
        return "n/a" if values is None else f"{values.mean():.3f}"

    def measures(summarise: Callable[[str, Text], Measure], *names: str) -> dict[str, Measure]:
        """Return a measure of columns, which shows a dash for a group without them."""

        def known(name: str, text: Text) -> Measure:
            return lambda rows: summarise(name, text)(rows) if rows[name].notna().any() else NOTHING

        return cells(columns, *names, by=known)

    images = pd.concat([own.assign(group=name, together=size) for name, (own, size) in groups.items()])
    return summary(
        images,
        {"images": "group", columns["run"].head: "run"},
        {
            **measures(median, "frequencies", "relative_l2"),
            "PSNR (dB), 95 % interval": psnr,
            **measures(mean, "ssim"),
            "LPIPS": lpips,
            **measures(mean, "identified", "identified_by_own"),
            "number of images": count(),
            **more,
        },
    )


def measured(rows: pd.DataFrame, measure: str) -> np.ndarray | None:
    """Return a measure of the images (N,) of a single run, as `values_of`."""
    lines: list[Any] = rows.to_dict("records")
    return values_of(lines, lines[0]["run"], measure) if lines else None


def restored(measure: Measure) -> Measure:
    """Apply a measure to an attack's images; show a dash for a baseline."""
    return lambda rows: NOTHING if rows["run"].iloc[0].endswith(FLOORS) else measure(rows)


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


def draw_runs(images: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw measures of every image for each run, with means; dashed: the mean of the mean colour.

    Runs of ours are blue, other attacks red; baselines and controls, which show nothing of the image, are grey.

    Args:
        images: The rows of all images.
        titles: The label of each measure.
    """

    def colour(run: str) -> str:
        if run in BASELINES or run.endswith(OF_ANOTHER):
            return "0.6"
        return figures.COLOURS[1 if run in (*PUBLISHED, LATENT) else 0]

    images = images.astype(dict.fromkeys(titles, float))
    images = images.assign(psnr=images["psnr"].clip(0, 200))
    dashed = {column: level(column, "mean colour", upright=True) for column in titles}
    panels = [
        panel(images, dots(column, "run", colour), only_rows(dashed[column], run="mean colour"), xlabel=title)
        for column, title in titles.items()
    ]
    return arranged(panels, len(panels), height=0.3 * images["run"].nunique() + 0.9, legend=1)


def draw_sizes(
    record: Record,
    part: str,
    sizes: Sequence[int],
    seed: int,
    runs: Mapping[str, tuple[str, Callable[[int], str]]],
    titles: Mapping[str, str],
) -> Figure:
    """Draw the means of measures against the batch size, with 95 % bootstrap intervals over groups of images.

    Dashed: the share of images that are identified by chance, and the mean PSNR of random images' mean colours.

    Args:
        record: The record.
        part: The part with the images.
        sizes: The batch sizes; groups of the largest size are resampled.
        seed: Seed of the bootstrap.
        runs: For each line, by its label: the kind of images, and the name of its run at every batch size.
        titles: The title of each measure's panel: PSNR in dB, others in percent.
    """
    images = rows_of(record, "image", part)
    floors = dict.fromkeys(titles, rows_of(record, "batches", part)["chance"].astype(float).iloc[0])
    floors["psnr"] = select(images, run="mean colour", kind=KINDS[0])["psnr"].astype(float).mean()

    def against_size(column: str) -> Mark:
        def draw(axis: Axes, images: pd.DataFrame) -> None:
            for number, (label, (kind, run_of)) in enumerate(runs.items()):
                found = {size: measured(select(images, kind=kind, run=run_of(size)), column) for size in sizes}
                known = {
                    size: values * (1 if column == "psnr" else 100)
                    for size, values in found.items()
                    if values is not None
                }
                means = np.array([values.mean() for values in known.values()])
                intervals = [interval_of(values, max(sizes), seed) for values in known.values()]
                ends = np.array(intervals).reshape(-1, 2).T
                # Shift the lines sideways, so that no interval hides another.
                where = [size * (1 + 0.12 * ((number + 0.5) / len(runs) - 0.5)) for size in known]
                look = look_of(number) | {"markersize": 6, "capsize": 3}
                axis.errorbar(where, means, abs(ends - means), label=label, **look)
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()

        return draw

    floor = "chance, or mean colour of random images"
    panels = [
        panel(images, against_size(column), level(floors[column], floor), xlabel="images in a batch", title=title)
        for column, title in titles.items()
    ]
    return arranged(panels, len(panels), height=3.2, legend=3, sharey=False)
