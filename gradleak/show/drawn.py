"""Figures that are declared: a panel for each group of rows, and in each panel marks that show columns of its rows.

    drawn(rows, lines("size", "accuracy", by="attack"), panels="network", xlabel="batch size", ylabel="labels found, %")

draws a panel for each `network`, and in it the mean `accuracy` against `size`, a line for each `attack`. A figure that
needs something else combines these marks with a function of its own, which takes the axes and the panel's rows. If the
panels show different things, `arranged` draws a list of them:

    arranged([panel(rows, lines("size", name, by="attack"), ylabel=name) for name in ("psnr", "ssim")], across=2)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.show import figures
from gradleak.show.aggregate import select

# The style of a line or a point, as `Axes.plot` takes it.
Look = dict[str, Any]
# Draws some columns of a panel's rows.
Mark = Callable[[Axes, pd.DataFrame], None]
# The rows of a panel, the marks that show them, and what `Axes.set` takes.
Panel = tuple[pd.DataFrame, Sequence[Mark], Mapping[str, Any]]
# The values of the columns that make a group, as one text.
Named = Callable[..., str]
MARKERS = "osD^vx"
DASHED = (0, (4, 2))


def listed(*values: object) -> str:
    """Return the values as one text, separated by commas."""
    return ", ".join(map(str, values))


def grouped(rows: pd.DataFrame, by: str | Sequence[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Return groups of rows with the values of the columns `by`, in their order; without columns, all rows."""
    keys = [by] if isinstance(by, str) else list(by)
    return list(rows.groupby(keys, sort=False)) if keys else [((), rows)]


def styled_groups(
    rows: pd.DataFrame,
    by: str | Sequence[str],
    *,
    label: Named = listed,
    order: Collection[str] = (),
    looks: Mapping[str, Look] | None = None,
    **style: Any,
) -> Iterator[tuple[int, str, pd.DataFrame, Look]]:
    """Yield the number, the label, the rows and the style of each group that is drawn.

    Args:
        rows: The rows of a panel.
        by: The columns whose values make the groups.
        label: Makes the label of a group of its values.
        order: The groups that are drawn, by their label, in this order; all of them if it is empty.
        looks: The style of a group by its label, where the house's order of colours, dashes and markers will not do.
        style: The style of all groups, as `Axes.plot` takes it.
    """
    named = {label(*values): group for values, group in grouped(rows, by)}
    for number, name in enumerate(order or named):
        if name in named:
            yield number, name, named[name], look_of(number) | style | dict((looks or {}).get(name, {}))


def drawn(
    rows: pd.DataFrame,
    *marks: Mark,
    panels: str | Sequence[str] = (),
    title: Named = listed,
    across: int = 4,
    height: float = 3.0,
    ylabel: str | Named = "",
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
        ylabel: What the vertical axis shows, or makes it of a panel's values.
        legend: The number of columns of the legend below the figure; 0 for no legend.
        empty: What the figure says where there are no rows.
        sharey: Whether all panels have one vertical scale.
        settings: What `Axes.set` takes, for every panel: xlabel, xscale, ylim and the like.
    """
    if rows.empty:
        return figures.nothing(empty)
    shown = [
        panel(group, *marks, title=title(*values), ylabel=ylabel(*values) if callable(ylabel) else ylabel, **settings)
        for values, group in grouped(rows, panels)
    ]
    return arranged(shown, across, height=height, legend=legend, sharey=sharey)


def lines(
    x: str,
    y: str,
    by: str | Sequence[str] = (),
    *,
    middle: Literal["mean", "median"] = "mean",
    band: str = "",
    aside: float = 0.0,
    **groups: Any,
) -> Mark:
    """Draw the mean of a column against another one, a line for each group.

    Args:
        x: The column on the horizontal axis.
        y: The column whose mean is drawn at each value of `x`.
        by: The columns whose values make the groups.
        middle: Whether the mean or the median is drawn.
        band: "range" for a band from the least to the greatest value, or the column whose mean is half its height.
        aside: If it is not 0, the values of `x` are placed at 0, 1, 2 …, and lines are shifted sideways, this far from
            each other, so that none hides another. `places` labels these places.
        groups: The labels, order and style of the groups, as in `styled_groups`.
    """

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        every, count = sorted(rows[x].unique()), len(grouped(rows, by))
        for number, name, group, look in styled_groups(rows, by, **groups):
            values = group.groupby(x)
            shown = values[y].agg(middle).astype(float)
            at = shown.index.to_numpy()
            if aside:
                at = np.array([every.index(value) for value in at]) + aside * (number - (count - 1) / 2)
            axis.plot(at, shown.to_numpy(), label=name, **look)
            if band == "range":
                low, high = values[y].min(), values[y].max()
            elif band:
                low, high = shown - values[band].mean(), shown + values[band].mean()
            if band:
                ends = low.astype(float), high.astype(float)
                axis.fill_between(at, *ends, color=look["color"], alpha=0.15, linewidth=0)

    return draw


def look_of(number: int) -> Look:
    """Return the colour, dashes and marker of a figure's lines by their number."""
    return {
        "color": figures.COLOURS[number % len(figures.COLOURS)],
        "linestyle": figures.DASHES[number % len(figures.DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
    }


def points(x: str, y: str, label: str = "", colour: str = figures.COLOURS[0], **style: Any) -> Mark:
    """Draw a point for each row."""

    look: Look = {"s": 9, "color": colour, "label": label, "linewidth": 0} | style

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        axis.scatter(rows[x], rows[y], **look)

    return draw


def scattered(x: str, y: str, by: str | Sequence[str], **groups: Any) -> Mark:
    """Draw a point for each row; the colour and the marker tell its group.

    Args:
        x: The column on the horizontal axis.
        y: The column on the vertical axis.
        by: The columns whose values make the groups.
        groups: The labels, order and style of the groups, as in `styled_groups`.
    """

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        for number, name, group, look in styled_groups(rows, by, **{"markersize": 0} | groups):
            # Large and small markers take turns, so that points in the same place are seen.
            size = look["markersize"] or (7, 4.5)[number % 2]
            own = group[[x, y]].astype(float)
            axis.plot(own[x], own[y], label=name, **look | {"linestyle": "none", "markersize": size})

    return draw


def crossed(colours: Iterable[str], dashes: Iterable[str]) -> dict[str, Look]:
    """Return the looks of groups named "first, second": the first word sets the colour, the second dashes and marker.

    Args:
        colours: The first words, in the order of the colours.
        dashes: The second words, in the order of the dashes and markers.
    """
    seconds = [(name, look_of(number)) for number, name in enumerate(dashes)]
    return {
        f"{first}, {second}": {
            "color": look_of(number)["color"], "linestyle": look["linestyle"], "marker": look["marker"],
        }
        for number, first in enumerate(colours)
        for second, look in seconds
    }  # fmt: skip


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


def level(value: float | str, label: str = "", *, upright: bool = False, **style: Any) -> Mark:
    """Draw a dashed horizontal (or upright) line at a value, or at the mean of a column."""

    look: Look = {"color": figures.TRUTH, "linestyle": DASHED, "linewidth": 1.4, "label": label} | style

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        place = float(rows[value].mean()) if isinstance(value, str) else value
        (axis.axvline if upright else axis.axhline)(place, **look)

    return draw


def powers_of_two(column: str) -> Mark:
    """Scale the horizontal axis by powers of two, with a tick at each value of a column."""

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(rows[column].unique()))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()

    return draw


def panel(rows: pd.DataFrame, *marks: Mark, **settings: Any) -> Panel:
    """Return a panel for `arranged`; `settings` is what `Axes.set` takes, such as title, xlabel and ylim."""
    return rows, marks, settings


def arranged(
    panels: Sequence[Panel], across: int, *, height: float = 3.0, legend: int = 0, sharey: bool = True, **options: Any
) -> Figure:
    """Draw panels in rows. A title or label that neighbours have in common is drawn once.

    Args:
        panels: The panels, row by row.
        across: The number of panels side by side.
        height: The height of a panel (inches).
        legend: The number of columns of the legend below the figure; 0 for no legend.
        sharey: Whether all panels have one vertical scale.
        options: What `plt.subplots` takes: sharex, width_ratios and the like.
    """
    figure, axes = figures.grid(len(panels), across, height=height, sharey=sharey, **options)
    names = [{"title": "", "xlabel": "", "ylabel": ""} | dict(settings) for _, _, settings in panels]
    for place, (axis, (rows, marks, _)) in enumerate(zip(axes, panels, strict=True)):
        for mark in marks:
            mark(axis, rows)
        beside = {"title": place - across, "xlabel": place + across, "ylabel": place - 1 if place % across else -1}
        same = {
            name: ""
            for name, other in beside.items()
            if 0 <= other < len(names) and names[other][name] == names[place][name]
        }
        axis.set(**names[place] | same)
    if legend:
        figures.legend_below(figure, legend)
    return figure


def only_rows(mark: Mark, **where: Hashable) -> Mark:
    """Apply a mark only to the rows in which columns have these values."""
    return lambda axis, rows: mark(axis, select(rows, **where))


def places(column: str, text: Callable[[Any], str]) -> Mark:
    """Label the places 0, 1, 2 … of the horizontal axis with the values of a column in order."""

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        values = sorted(rows[column].unique())
        axis.set_xticks(range(len(values)), list(map(text, values)))

    return draw


def dots(x: str, y: str, colour: Callable[[str], str]) -> Mark:
    """Draw a dot for each row and a tick at their mean, on a line for each value of `y`, from top to bottom.

    Args:
        x: The column on the horizontal axis.
        y: The column whose values name the lines.
        colour: Returns the colour of a line by its name.
    """

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        named_lines(axis, list(rows[y].unique()))
        for place, (name, group) in enumerate(rows.groupby(y, sort=False)):
            values = group[x].dropna().astype(float)
            look: Look = {"color": colour(str(name))}
            axis.scatter(values, np.full(len(values), place), s=9, alpha=0.55, **look)
            if len(values):
                axis.scatter(values.mean(), place, s=170, marker="|", linewidth=2.4, **look)

    return draw


def proportions(
    x: str,
    y: str,
    by: str | Sequence[str] = (),
    *,
    interval: Callable[[pd.Series[Any]], tuple[float, float]],
    aside: float = 0.0,
    **groups: Any,
) -> Mark:
    """Draw the mean of a column with its confidence interval, on a line for each value of `y`, from top to bottom.

    Args:
        x: The column whose mean is drawn, such as whether an attack succeeded.
        y: The column whose values name the lines.
        by: The columns whose values make groups, each with a colour and marker, within a line.
        interval: Returns the ends of the confidence interval.
        aside: How far the groups are drawn from each other within a line.
        groups: The labels, order and style of the groups, as in `styled_groups`.
    """

    def draw(axis: Axes, rows: pd.DataFrame) -> None:
        names = list(rows[y].unique())
        named_lines(axis, names)
        count = len(grouped(rows, by))
        for number, label, own, look in styled_groups(rows, by, linestyle="", markersize=7, **groups):
            for name, group in own.groupby(y, sort=False):
                place = names.index(name) + aside * (number - (count - 1) / 2)
                axis.plot(interval(group[x]), [place, place], color=look["color"], linewidth=1.8)
                axis.plot([group[x].mean()], [place], label=label, **look)
        axis.grid(visible=False, axis="y")

    return draw


def named_lines(axis: Axes, names: Sequence[str]) -> None:
    """Label the places 0, 1, 2 … of the vertical axis, from top to bottom."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
