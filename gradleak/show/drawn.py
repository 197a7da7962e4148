"""Figures that are declared: a panel for each group of rows, and in each panel marks that show columns of its rows.

    drawn(rows, lines("size", "accuracy", by="attack"), panels="network", xlabel="batch size", ylabel="labels found, %")

draws a panel for each `network`, and in it the mean `accuracy` against `size`, a line for each `attack`. A figure that
needs something else combines these marks with a function of its own, which takes the axes and the panel's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.show import figures

# Draws some columns of a panel's rows.
Mark = Callable[[Axes, pd.DataFrame], None]
# The values of the columns that make a group, as one text.
Named = Callable[..., str]
MARKERS = "osD^vx"
DASHED = (0, (4, 2))


def drawn(
    rows: pd.DataFrame,
    *marks: Mark,
    panels: str | Sequence[str] = (),
    title: Named = lambda *values: ", ".join(map(str, values)),
    across: int = 4,
    height: float = 3.0,
    ylabel: str = "",
    legend: int = 0,
    empty: str = "Not run with these parameters",
    sharey: bool = True,
    **settings: Any,
) -> Figure:
    """Draw marks into a panel for each group of rows.

    Args:
        rows: The rows of an experiment.
        marks: What is drawn in every panel, in this order.
        panels: The columns whose values make the groups; none for a single panel.
        title: Makes the panel's title of these values.
        across: The most panels side by side.
        height: The height of a panel (inches).
        ylabel: What the vertical axis shows; it stands at the first panel of each row.
        legend: The number of columns of the legend below the figure; 0 for no legend.
        empty: What the figure says where there are no rows.
        sharey: Whether all panels have one vertical scale.
        settings: What `Axes.set` takes, for every panel: xlabel, xscale, ylim and the like.
    """
    if rows.empty:
        return figures.nothing(empty)
    keys = [panels] if isinstance(panels, str) else list(panels)
    groups = list(rows.groupby(keys, sort=False)) if keys else [((), rows)]
    figure, axes = figures.grid(len(groups), across, height=height, sharey=sharey)
    for place, (axis, (values, group)) in enumerate(zip(axes, groups, strict=True)):
        for mark in marks:
            mark(axis, group)
        axis.set(**{"xlabel": "", "title": title(*values)} | settings)
        axis.set_ylabel("" if place % across else ylabel)
    if legend:
        figures.legend_below(figure, legend)
    return figure


def lines(
    x: str,
    y: str,
    by: str | Sequence[str] = (),
    *,
    middle: Literal["mean", "median"] = "mean",
    band: Literal["", "range"] = "",
    label: Named = lambda *values: ", ".join(map(str, values)),
    order: Sequence[str] = (),
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    **style: Any,
) -> Mark:
    """Draw the mean of a column against another one, a line for each group.

    Args:
        x: The column on the horizontal axis.
        y: The column whose mean is drawn at each value of `x`.
        by: The columns whose values make the groups.
        middle: Whether the mean or the median is drawn.
        band: "range" for a band from the least to the greatest value.
        label: Makes the label of a line of its group's values.
        order: The groups that are drawn, by their label, in this order; all of them if it is empty.
        looks: The style of a line by its label, where the house's order of colours and dashes will not do.
        style: What `Axes.plot` takes, for every line.
    """
    keys = [by] if isinstance(by, str) else list(by)

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        groups = rows.groupby(keys, sort=False) if keys else [((), rows)]
        named = {label(*values): group for values, group in groups}
        for number, name in enumerate(order or named):
            if name not in named:
                continue
            values = named[name].groupby(x)[y]
            shown = values.agg(middle).astype(float)
            look = look_of(number) | style | dict((looks or {}).get(name, {}))
            axis.plot(shown.index, shown.to_numpy(), label=name, **look)
            if band:
                low, high = values.min().astype(float), values.max().astype(float)
                axis.fill_between(shown.index, low, high, color=look["color"], alpha=0.15, linewidth=0)

    return draw


def look_of(number: int) -> dict[str, Any]:
    """Return the colour, dashes and marker of a figure's lines by their number."""
    return {
        "color": figures.COLOURS[number % len(figures.COLOURS)],
        "linestyle": figures.DASHES[number % len(figures.DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
    }


def points(x: str, y: str, label: str = "", colour: str = figures.COLOURS[0], **style: Any) -> Mark:
    """Draw a point for each row."""

    look: dict[str, Any] = {"s": 9, "color": colour, "label": label, "linewidth": 0} | style

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        axis.scatter(rows[x], rows[y], **look)

    return draw


def bars(x: str, y: str, by: str) -> Mark:
    """Draw the mean of a column as bars beside each other, one for each value of `by`."""

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        sns.barplot(rows.astype({y: float}), x=x, y=y, hue=by, errorbar=None, width=0.7, ax=axis)
        if legend := axis.get_legend():
            legend.remove()  # the figure has one for all panels
        axis.grid(visible=False, axis="x")

    return draw


def stacked(
    names: str, columns: Mapping[str, str], colours: Sequence[str] = figures.COLOURS, *, upright: bool = False
) -> Mark:
    """Draw stacked bars of shares (%), one bar for each value of `names`.

    Args:
        names: The column whose values name the bars.
        columns: The columns whose sums are the parts of a bar, by their labels. Together they are 100 %.
        colours: The colours of the parts.
        upright: Whether the bars are vertical.
    """

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        sums = rows.groupby(names, sort=False)[list(columns.values())].sum().astype(float)
        shares = 100 * sums.div(sums.sum(axis=1), axis=0).fillna(0)
        start = np.zeros(len(shares))
        for (label, column), colour in zip(columns.items(), colours, strict=False):
            part = shares[column].to_numpy()
            if upright:
                axis.bar(shares.index, part, bottom=start, color=colour, label=label)
            else:
                axis.barh(shares.index, part, left=start, color=colour, label=label, height=0.7)
            start = start + part
        axis.set(**{"ylim" if upright else "xlim": (0, 100)})
        axis.yaxis.set_inverted(not upright)
        axis.grid(visible=False, axis="x" if upright else "y")

    return draw


def level(value: float | str, label: str = "", **style: Any) -> Mark:
    """Draw a dashed horizontal line at a value, or at the mean of a column."""

    look: dict[str, Any] = {"color": figures.TRUTH, "linestyle": DASHED, "linewidth": 1.4, "label": label} | style

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        axis.axhline(float(rows[value].mean()) if isinstance(value, str) else value, **look)

    return draw


def powers_of_two(column: str) -> Mark:
    """Scale the horizontal axis by powers of two, with a tick at each value of a column."""

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(rows[column].unique()))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()

    return draw
