"""The common style of all figures: readable in grey, on a phone, and on a dark page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Neighbouring colours differ in lightness, so that they can be distinguished in grey and by colour-blind readers.
COLOURS = ("#14405c", "#c8553d", "#4f9dc9", "#e0a458", "#7a9e7e", "#8d6a9f")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), "-")
TRUTH = "#1a7f37"


def style() -> None:
    """Set the style of all figures that are drawn afterwards, and let a notebook show them for phones as well."""
    from gradleak.show import views

    views.register()
    sns.set_theme(
        context="notebook",
        style="ticks",
        palette=COLOURS,
        rc={
            "figure.dpi": 130,
            "figure.facecolor": "white",  # opaque, because the page around the figure may be dark
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
            "legend.handlelength": 3.0,  # long enough to show which dashes a line has
            "lines.linewidth": 1.8,
        },
    )


def panels(rows: int, columns: int, *, height: float = 3.0, width: float = 8.4, **options: Any) -> tuple[Figure, Any]:
    """Return a figure in the common style and its axes as a two-dimensional array.

    Args:
        rows: The number of rows of axes.
        columns: The number of columns of axes.
        height: The height of a row in inches.
        width: The width of the figure in inches.
        options: Further arguments of `plt.subplots`.
    """
    style()
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height * rows), squeeze=False, layout="constrained", **options
    )
    return figure, axes


def grid(count: int, columns: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure and a list of `count` axes in it, at most `columns` side by side; `options` as in `panels`."""
    columns = min(columns, count)
    figure, axes = panels(-(-count // columns), columns, **options)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def legend_below(figure: Figure, columns: int) -> None:
    """Add one legend below all panels, with at most this number of columns and each label once."""
    pairs = (pair for axis in figure.axes for pair in zip(*axis.get_legend_handles_labels(), strict=True))
    handles: dict[str, Any] = {}
    for handle, label in pairs:
        handles.setdefault(label, handle)
    for count in range(columns, 0, -1):
        legend = figure.legend(handles.values(), handles, loc="outside lower center", ncols=count)
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def swarms(axis: Axes, groups: Mapping[str, Any], *, size: float = 3.5) -> None:
    """Draw every value of each group as a dot, with the group's median and the range of its middle half."""
    values = pd.concat([pd.DataFrame({"group": name, "value": list(members)}) for name, members in groups.items()])
    options = {"data": values, "x": "group", "y": "value", "hue": "group", "order": list(groups), "ax": axis}
    # Colours are assigned by name, because seaborn would skip a group without values.
    options |= {"palette": dict(zip(groups, COLOURS, strict=False)), "legend": False}
    # Dots that do not fit beside others may overlap without a warning, since the median is drawn as well.
    sns.swarmplot(**options, size=size, warn_thresh=1)
    middle = {"estimator": "median", "errorbar": ("pi", 50), "linestyle": "none", "marker": "_", "markersize": 26}
    sns.pointplot(**options, **middle, err_kws={"linewidth": 1.2}, zorder=4)
    axis.set(xlabel="", ylabel="")


def nothing(text: str) -> Figure:
    """Return a figure that shows only a text, in place of a figure that cannot be drawn."""
    figure, axes = panels(1, 1, height=0.6)
    axes[0][0].axis("off")
    axes[0][0].text(0.5, 0.5, text, ha="center", va="center", color="0.4")
    return figure


def png(figure: Figure, **options: Any) -> bytes:
    """Return a figure as a PNG; `options` are those of `Figure.savefig`."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", **options)
    return stream.getvalue()


def titled(figure: Figure, text: str) -> Figure:
    """Add a small text above a figure that names the run it shows, such as `shown.caption("")`."""
    figure.suptitle(text.strip(), x=0.995, ha="right", fontsize=8.5, fontweight="normal", color="0.4")
    return figure


def mark_truth(axis: Axes, value: float, label: str = "true scalar λ*") -> None:
    """Mark the true value, which the server does not see, by a dashed vertical line."""
    axis.axvline(value, color=TRUTH, linewidth=1.6, linestyle=(0, (4, 2)), label=label, zorder=1)
