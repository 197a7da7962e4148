"""Tables and figures of restored batches, which several pages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.drawn import Mark, arranged, level, look_of, panel
from gradleak.show.summaries import NOTHING, Measure, count, mean, median
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.restored_batches import FLOORS, interval_of, values_of

# The measures whose gains are shown: name, unit, factor from a difference to a gain in this unit, and digits.
MEASURES = {
    "psnr": ("PSNR", " (dB)", 1, 2),
    "lpips": ("LPIPS", "", -1, 3),
    "identified": ("IIP", " (%)", 100, 0),
    "identified_by_own": ("IIP by the attacked network", " (%)", 100, 0),
}


def rows_of(record: Record, what: str, part: str) -> pd.DataFrame:
    """Return a record's rows of one kind in one of its parts, possibly none.

    A baseline image "unrelated" that is equal to the private one by chance is left out.
    """
    frame = record.frame()
    own = frame[(frame["what"] == what) & (frame["part"] == part)]
    return own[~((own["run"] == "unrelated") & (own["psnr"].astype(float) == math.inf))] if what == "image" else own


def quality(images: pd.DataFrame, size: int, seed: int) -> dict[str, Measure]:
    """Return the measures of a run's images by their heads in a table; the PSNR has its 95 % bootstrap interval.

    Args:
        images: The rows that are measured.
        size: The number of images in each group that the bootstrap resamples.
        seed: Seed of the bootstrap.
    """

    def psnr(rows: pd.DataFrame) -> str:
        values = measured(rows, "psnr")
        assert values is not None
        low, high = interval_of(values, size, seed)
        return f"{values.mean():.1f} ({low:.1f} … {high:.1f})"

    def lpips(rows: pd.DataFrame) -> str:
        values = measured(rows, "lpips")
        return "n/a" if values is None else f"{values.mean():.3f}"

    def measured(rows: pd.DataFrame, measure: str) -> np.ndarray | None:
        lines: list[Any] = rows.to_dict("records")
        return values_of(lines, lines[0]["run"], measure)

    # Records from before 2026-11-25 have only the relative L2 distance, under the name FFT2D.
    new = "frequencies" in images
    measures = {"FFT2D": median("frequencies", ".2f")} if new else {}
    return measures | {
        "relative L2": median("relative_l2" if new else "fft2d", ".2f"),
        "PSNR (dB), 95 % interval": psnr,
        "SSIM": mean("ssim", ".3f"),
        "LPIPS": lpips,
        "identified by another network (%)": mean("identified", hundredths),
        "identified by the attacked network (%)": mean("identified_by_own", hundredths),
        "images": count(),
    }


def hundredths(share: float) -> str:
    """Return a share in percent, without the sign."""
    return f"{100 * share:.0f}"


def restored(measure: Measure) -> Measure:
    """Apply a measure to an attack's images; show a dash for a baseline."""
    return lambda rows: NOTHING if rows["run"].iloc[0] in FLOORS else measure(rows)


def gain_table(
    images: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    size: int,
    seed: int,
    measures: Sequence[str] = tuple(MEASURES),
) -> pd.DataFrame:
    """Return the gains of the first run of each pair over the second, on the same images.

    One row for each pair. Columns: the mean gain in each measure with its 95 % interval, the number of images, and
    the measures whose interval excludes 0.

    Args:
        images: The rows of all runs' images.
        pairs: The names of the runs to compare.
        size: The number of images in each group that the bootstrap resamples.
        seed: Seed of the bootstrap.
        measures: The measures to compare.
    """
    rows: list[Any] = images.to_dict("records")
    lines = []
    for first, second in pairs:
        names = (f"“{name}”" if "," in name else name for name in (first, second))
        line: dict[str, Any] = {"compared": " against ".join(names)}
        decided = []
        for measure in measures:
            name, unit, scale, digits = MEASURES[measure]
            own, other = (values_of(rows, run, measure) for run in (first, second))
            if own is None or other is None:
                continue
            gain = scale * (own - other)
            low, high = interval_of(gain, size, seed)
            line |= {
                f"gain in {name}{unit}": f"{gain.mean():+.{digits}f} ({low:+.{digits}f} … {high:+.{digits}f})",
                "images": len(gain),
            }
            if low > 0 or high < 0:
                decided.append(f"{name} {'better' if low > 0 else 'worse'}")
        if "images" in line:
            count = line.pop("images")
            lines.append(line | {"images": count, "decided at 95 %": ", ".join(decided) or "–"})
    return pd.DataFrame(lines)


def strips(record: Record, part: str, **where: object) -> Figure:
    """Draw the first images of a part: the private ones above those of each attack and baseline."""
    pictures = rows_of(record, "picture", part)
    for column, value in where.items():
        pictures = pictures[pictures[column] == value]
    if pictures.empty:
        return figures.nothing("Not run with these parameters")
    first = pictures[pictures["first"] == pictures["first"].min()]
    own = first.set_index("run")["picture"]
    figure, axes = figures.panels(1, 1, height=0.55 * len(own) + 0.4)
    figure.set_layout_engine("compressed")
    show(axes[0][0], list(own), list(own.index))
    return figure


def draw_sizes(
    images: pd.DataFrame,
    runs: Mapping[str, tuple[str, Callable[[int], str]]],
    shown: Mapping[str, tuple[str, float]],
    *,
    floor: str,
    sizes: Sequence[int],
    most: int,
    seed: int,
) -> Figure:
    """Draw the means of measures against the batch size, with 95 % bootstrap intervals over groups of images.

    Args:
        images: The rows of all images.
        runs: For each line, by its label: the kind of images, and the name of its run at every batch size.
        shown: For each measure, its title and its floor, the value of a baseline.
        floor: What the floor is called.
        sizes: The batch sizes.
        most: The number of images in each group that the bootstrap resamples.
        seed: Seed of the bootstrap.
    """

    def against_size(column: str) -> Mark:
        def draw(axis: Axes, images: pd.DataFrame) -> None:
            for number, (label, (kind, run_of)) in enumerate(runs.items()):
                rows: list[Any] = images[images["kind"] == kind].to_dict("records")
                told = [(size, values_of(rows, run_of(size), column)) for size in sizes]
                known = [(size, MEASURES[column][2] * values) for size, values in told if values is not None]
                means = np.array([values.mean() for _, values in known])
                ends = np.array([interval_of(values, most, seed) for _, values in known]).reshape(-1, 2).T
                # Shift the lines sideways, so that no interval hides another.
                where = [size * (1 + 0.12 * ((number + 0.5) / len(runs) - 0.5)) for size, _ in known]
                look = look_of(number) | {"markersize": 6, "capsize": 3}
                axis.errorbar(where, means, abs(ends - means), label=label, **look)
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()

        return draw

    panels = [
        panel(images, against_size(column), level(value, floor), xlabel="images in a batch", title=label)
        for column, (label, value) in shown.items()
    ]
    return arranged(panels, len(panels), height=3.2, legend=3, sharey=False)
