"""Tables and figures of restored batches, which several pages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.shared.mosaics import show
from gradleak.studies.shared.restored_batches import interval_of, values_of

# The measures whose gains are shown: name, unit, factor from a difference to a gain in this unit, and digits.
MEASURES = {
    "psnr": ("PSNR", ", dB", 1, 2),
    "lpips": ("LPIPS", "", -1, 3),
    "identified": ("IIP", ", %", 100, 0),
    "identified_by_own": ("IIP by the attacked network", ", %", 100, 0),
}


def rows_of(record: Record, what: str, part: str) -> pd.DataFrame:
    """Return a record's rows of one kind in one of its parts, possibly none.

    A baseline image "unrelated" that is equal to the private one by chance is left out.
    """
    frame = record.frame()
    own = frame[(frame["what"] == what) & (frame["part"] == part)]
    return own[~((own["run"] == "unrelated") & (own["psnr"].astype(float) == math.inf))] if what == "image" else own


def quality_line(images: pd.DataFrame, size: int, seed: int) -> dict[str, str]:
    """Return the cells of one run's table row: every measure, the 95 % interval of PSNR, and the number of images.

    Args:
        images: The rows of the run's images.
        size: The number of images in each group that the bootstrap resamples.
        seed: Seed of the bootstrap.
    """
    rows: list[Any] = images.to_dict("records")
    run = rows[0]["run"]
    psnr = values_of(rows, run, "psnr")
    lpips = values_of(rows, run, "lpips")
    assert psnr is not None
    low, high = interval_of(psnr, size, seed)
    # Records from before 2026-11-25 have only the relative L2 distance, under the name FFT2D.
    told = {"FFT2D": f"{images['frequencies'].astype(float).median():.2f}"} if "frequencies" in images else {}
    apart = images["relative_l2" if told else "fft2d"].astype(float).median()
    return told | {
        "relative L2": f"{apart:.2f}",
        "PSNR, dB": f"{psnr.mean():.1f} ({low:.1f} … {high:.1f})",
        "SSIM": f"{images['ssim'].astype(float).mean():.3f}",
        "LPIPS": "n/a" if lpips is None else f"{lpips.mean():.3f}",
        "IIP, %": f"{100 * images['identified'].astype(float).mean():.0f}",
        "by the attacked network, %": f"{100 * images['identified_by_own'].astype(float).mean():.0f}",
        "n": f"{len(images)}",
    }


def gain_table(
    images: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    size: int,
    seed: int,
    measures: Sequence[str] = tuple(MEASURES),
) -> pd.DataFrame:
    """Return the gains of the first run of each pair over the second, on the same images.

    One row for each pair. Columns: the mean gain in each measure with its 95 % interval, the number of images n, and
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
        line: dict[str, Any] = {"compared": f"{first} against {second}"}
        decided = []
        for measure in measures:
            name, unit, scale, digits = MEASURES[measure]
            own, other = (values_of(rows, run, measure) for run in (first, second))
            if own is None or other is None:
                continue
            gain = scale * (own - other)
            low, high = interval_of(gain, size, seed)
            line |= {name + unit: f"{gain.mean():+.{digits}f} ({low:+.{digits}f} … {high:+.{digits}f})", "n": len(gain)}
            if low > 0 or high < 0:
                decided.append(f"{name} {'better' if low > 0 else 'worse'}")
        if "n" in line:
            count = line.pop("n")
            lines.append(line | {"n": count, "decided": ", ".join(decided) or "–"})
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
    axis: Axes,
    images: pd.DataFrame,
    lines: Mapping[str, tuple[str, Callable[[int], str]]],
    column: str,
    sizes: Sequence[int],
    most: int,
    seed: int,
) -> None:
    """Draw the mean of a measure against the batch size, with its 95 % bootstrap interval over groups of images.

    Args:
        axis: The axes to draw on.
        images: The rows of all images.
        lines: For each line, by its label: the kind of images, and the name of its run at every batch size.
        column: The measure.
        sizes: The batch sizes.
        most: The number of images in each group that the bootstrap resamples.
        seed: Seed of the bootstrap.
    """
    scale = MEASURES[column][2]
    for number, (label, (kind, run_of)) in enumerate(lines.items()):
        rows: list[Any] = images[images["kind"] == kind].to_dict("records")
        told = [(size, values_of(rows, run_of(size), column)) for size in sizes]
        known = [(size, scale * values) for size, values in told if values is not None]
        means = [values.mean() for _, values in known]
        ends = [interval_of(values, most, seed) for _, values in known]
        apart = [[mean - low for mean, (low, _) in zip(means, ends, strict=True)]]
        apart += [[high - mean for mean, (_, high) in zip(means, ends, strict=True)]]
        # Shift the lines sideways, so that no interval hides another.
        where = [size * (1 + 0.12 * ((number + 0.5) / len(lines) - 0.5)) for size, _ in known]
        style: dict[str, Any] = {"color": figures.COLOURS[number], "marker": "osD^"[number], "capsize": 3}
        axis.errorbar(where, means, apart, label=label, linestyle=figures.DASHES[number], **style)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("images in a batch, B")
