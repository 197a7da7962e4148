"""Draw a figure again for a phone and, if it shows photographs, for a dark page.

A notebook shows a figure as one picture. `register` lets it add another: of photographs one with a dark ground, of all
other figures one for a narrow screen, with the panels below each other and the letters as large as before. The colours
of these are changed for dark pages by the book's style sheet. The extension `figure_views` puts the pictures into the
book's pages.
"""

from __future__ import annotations

import base64
import importlib
import pickle
import textwrap
from typing import Any

import matplotlib.pyplot as plt
from IPython.core.getipython import get_ipython
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, ScalarFormatter

from gradleak.show import figures

# Where a notebook keeps the further pictures: beside the first one, in the metadata of the output.
KEY = "gradleak"
# The width of a phone's screen (inches), its resolution, and the letters of a line in it.
NARROW, FINE, LETTERS = 4.2, 190, 62
# Of more panels than MANY each gets at most the height LOW (inches).
MANY, LOW = 4, 2.2
GROUND, INK = "#14181e", "#ced6dd"


def register() -> None:
    """Add the further pictures to the output of every figure that this notebook shows."""
    formatter = getattr(get_ipython(), "display_formatter", None)
    if formatter:
        importlib.import_module("matplotlib_inline.backend_inline")
        formatter.mimebundle_formatter.for_type(Figure, views)
        # The picture that this module makes when it is imported would come after ours, and replace it.
        formatter.formatters["image/png"].pop(Figure, None)


def views(figure: Figure, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a figure's picture, and as metadata the further one."""
    again: Figure = pickle.loads(pickle.dumps(figure))
    if _has_photographs(figure):
        _darken(again)
        further = {"dark": _png(again)}
    else:
        stack(again)
        further = {"narrow": _png(again, dpi=FINE)}
    plt.close(again)
    return {"image/png": _png(figure)}, {KEY: further}


def _png(figure: Figure, dpi: float | str = "figure") -> str:
    return base64.b64encode(figures.png(figure, dpi=dpi, bbox_inches="tight")).decode()


def _has_photographs(figure: Figure) -> bool:
    pixels = (image.get_array() for axis in figure.axes for image in axis.get_images())
    return any(one is not None and one.ndim == 3 for one in pixels)


def _darken(figure: Figure) -> None:
    figure.set_facecolor(GROUND)
    for text in figure.findobj(Text):
        text.set_color(INK)


def stack(figure: Figure) -> None:
    """Put the panels of a figure below each other, at the width of a phone."""
    panels = {place: axis for axis in figure.axes if (place := _place(axis))}
    if not panels:
        return
    last = max(row for row, _ in panels)
    height = figure.get_figheight() / (last + 1)
    for (row, column), axis in panels.items():
        # Labels that neighbours had in common were drawn once.
        title = axis.get_title("left") or panels.get((0, column), axis).get_title("left")
        xlabel = axis.get_xlabel() or panels.get((last, column), axis).get_xlabel()
        ylabel = axis.get_ylabel() or panels.get((row, 0), axis).get_ylabel()
        axis.set(title=textwrap.fill(title, 44), xlabel=textwrap.fill(xlabel, 50), ylabel=ylabel)
        axis.tick_params(labelleft=True, labelbottom=True)
    turned = sum(map(_turn_names, panels.values()))
    height = min(height, LOW) if len(panels) > MANY else height
    figure.set_size_inches(NARROW, height * len(panels) + 0.7 * turned)
    below = GridSpec(len(panels), 1, figure=figure)
    for number, place in enumerate(sorted(panels)):
        panels[place].set_subplotspec(below[number])
    if title := figure.get_suptitle():
        figures.titled(figure, textwrap.fill(title, LETTERS))
    if figure.legends:
        figure.legends[0].remove()
        figures.legend_below(figure, 3)
        figure.set_figheight(figure.get_figheight() + figure.legends[0].get_window_extent().height / figure.dpi)


def _place(axis: Axes) -> tuple[int, int] | None:
    spec = axis.get_subplotspec()
    return (spec.rowspan.start, spec.colspan.start) if spec else None


def _turn_names(axis: Axes) -> bool:
    """Turn the names below a panel if they would meet; return whether they are turned."""
    names = [label.get_text() for label in axis.get_xticklabels()]
    meet = not isinstance(axis.xaxis.get_major_formatter(), ScalarFormatter | LogFormatter) and len("".join(names)) > 40
    if meet:
        axis.tick_params(axis="x", rotation=90)
    return meet
