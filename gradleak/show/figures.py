"""The house style of every figure: readable in grey, on a phone, and on a dark page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Ordered so that the lightness alone tells neighbours apart, in print and to colour-blind readers.
COLOURS = ("#14405c", "#c8553d", "#4f9dc9", "#e0a458", "#7a9e7e", "#8d6a9f")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), "-")
TRUTH = "#1a7f37"


def style() -> None:
    """Set the style for all figures drawn from here on."""
    sns.set_theme(
        context="notebook",
        style="ticks",
        palette=COLOURS,
        rc={
            "figure.dpi": 130,
            "figure.facecolor": "white",  # opaque on purpose: the page around it may be dark
            "savefig.facecolor": "white",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e3e6e8",
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 10.5,
            "xtick.labelsize": 9.5,
            "ytick.labelsize": 9.5,
            "legend.fontsize": 9.5,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
        },
    )


def panels(rows: int, columns: int, *, height: float = 3.0, width: float = 8.4, **options: Any) -> tuple[Figure, Any]:
    """Return a figure in the house style with a grid of axes (always a two-dimensional array)."""
    style()
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height * rows), squeeze=False, layout="constrained", **options
    )
    return figure, axes


def grid(count: int, columns: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, at most `columns` side by side, as a list."""
    columns = min(columns, count)
    figure, axes = panels(-(-count // columns), columns, **options)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def legend_below(figure: Figure, columns: int) -> None:
    """Explain below all panels what is drawn in any of them."""
    pairs = (pair for axis in figure.axes for pair in zip(*axis.get_legend_handles_labels(), strict=True))
    handles: dict[str, Any] = {}
    for handle, name in pairs:
        handles.setdefault(name, handle)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns)


def swarms(axis: Axes, groups: Mapping[str, Any], *, size: float = 3.5) -> None:
    """Draw every value of each group as a dot of its own, and beside them their median and middle half."""
    values = pd.concat([pd.DataFrame({"group": name, "value": list(own)}) for name, own in groups.items()])
    keys = {"data": values, "x": "group", "y": "value", "hue": "group", "order": list(groups), "ax": axis}
    # A colour by name: a group may have no values.
    keys |= {"palette": dict(zip(groups, COLOURS, strict=False)), "legend": False}
    # What does not fit beside the others is drawn on top of them; the median tells.
    sns.swarmplot(**keys, size=size, warn_thresh=1)
    middle = {"estimator": "median", "errorbar": ("pi", 50), "linestyle": "none", "marker": "_", "markersize": 26}
    sns.pointplot(**keys, **middle, err_kws={"linewidth": 1.2}, zorder=4)
    axis.set(xlabel="", ylabel="")


def nothing(text: str) -> Figure:
    """Return a figure that says why there is none."""
    figure, axes = panels(1, 1, height=0.6)
    axes[0][0].axis("off")
    axes[0][0].text(0.5, 0.5, text, ha="center", va="center", color="0.4")
    return figure


def titled(figure: Figure, text: str) -> Figure:
    """Say small above a figure what it is drawn from, as `shown.caption("")` puts it."""
    figure.suptitle(text.strip(), x=0.995, ha="right", fontsize=8.5, fontweight="normal", color="0.4")
    return figure


def mark_truth(axis: Axes, value: float, label: str = "true scalar λ*") -> None:
    """Mark the true value on the horizontal axis, the one thing on a figure that the server does not see."""
    axis.axvline(value, color=TRUTH, linewidth=1.6, linestyle=(0, (4, 2)), label=label, zorder=1)


def gray_table(figure: Figure) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the figure as luminance (H, W) in [0, 1], for checks of contrast and blankness."""
    canvas = figure.canvas
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba(), dtype=np.float64)[..., :3] / 255  # type: ignore[attr-defined]
    luminance: np.ndarray[Any, np.dtype[np.float64]] = pixels @ np.array([0.2126, 0.7152, 0.0722])
    return luminance
