"""Declared figures: panels, lines, points, bars, and what they say."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from gradleak.show.drawn import (
    arranged,
    bars,
    drawn,
    level,
    lines,
    panel,
    points,
    powers_of_two,
    proportions,
    stacked,
)

ROWS = pd.DataFrame(
    [
        ("lenet", "ours", 2, 1.0), ("lenet", "ours", 2, 0.5), ("lenet", "ours", 8, 0.5),
        ("lenet", "theirs", 2, 0.25), ("resnet", "ours", 2, 1.0), ("resnet", "ours", 4, 0.0),
    ],
    columns=["network", "attack", "size", "right"],
)  # fmt: skip
STYLED = {"order": ("theirs", "ours", "absent"), "looks": {"ours": {"color": "0.6"}}}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def labels(axes: list[Axes]) -> list[tuple[str, str, str]]:
    """Return the title and the labels of each panel."""
    return [(axis.get_title(loc="left"), axis.get_xlabel(), axis.get_ylabel()) for axis in axes]


def test_a_line_is_the_mean_of_its_group_in_each_panel_and_styled_by_its_label() -> None:
    figure = drawn(ROWS, lines("size", "right", by="attack"), panels="network", xlabel="B", ylabel="right", legend=2)
    assert labels(figure.axes) == [("lenet", "B", "right"), ("resnet", "B", "")], "a common label stands once in a row"
    ours, theirs = figure.axes[0].lines
    assert (ours.get_label(), theirs.get_label()) == ("ours", "theirs")
    np.testing.assert_array_equal(np.column_stack(ours.get_data()), [[2, 0.75], [8, 0.5]])
    np.testing.assert_array_equal(np.column_stack(figure.axes[1].lines[0].get_data()), [[2, 1.0], [4, 0.0]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "theirs"], "each once"
    axis = drawn(ROWS, lines("size", "right", by="attack", band="range", middle="median", **STYLED)).axes[0]
    assert [line.get_label() for line in axis.lines] == ["theirs", "ours"]
    assert axis.lines[1].get_color() == "0.6"
    assert axis.lines[1].get_marker() == "s", "its place in the order decides what is not stated"
    band = axis.collections[1].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.0, 1.0)


def test_other_marks_show_the_rows_of_their_panel() -> None:
    figure = drawn(
        ROWS, points("size", "right", "a row"), level("right", "mean"), level(0.1), powers_of_two("size"),
        panels=["network", "attack"], title=lambda network, attack: f"{attack} on {network}", across=2,
    )  # fmt: skip
    first = figure.axes[0]
    assert (first.get_title(loc="left"), len(figure.axes)) == ("ours on lenet", 3)
    assert len(first.collections[0].get_offsets()) == 3
    assert [line.get_ydata()[0] for line in first.lines] == [pytest.approx(2 / 3), 0.1]
    assert list(first.get_xticks()) == [2, 8]
    marks = bars("size", "right", by="attack"), level(6, "most", upright=True)
    axis = drawn(ROWS, *marks).axes[0]
    assert sorted({round(bar.get_height(), 3) for bar in axis.patches if bar.get_height()}) == [0.25, 0.5, 0.833]
    assert [line.get_xdata()[0] for line in axis.lines] == [6]
    assert "most" in axis.get_legend_handles_labels()[1]
    assert drawn(ROWS[:0], *marks, empty="no batches").axes[0].texts[0].get_text() == "no batches"
    mark = proportions(
        "right", "network", by="attack", interval=lambda values: (values.min(), values.max()), aside=0.2, **STYLED
    )
    interval, mean = drawn(ROWS, mark).axes[0].lines[2:4]
    assert (list(interval.get_xdata()), list(interval.get_ydata())) == ([0.5, 1.0], [0.1, 0.1])
    assert (mean.get_xdata()[0], mean.get_label(), mean.get_color()) == (pytest.approx(2 / 3), "ours", "0.6")
    both = arranged([panel(ROWS, points("size", "right"), xlabel="B", ylabel="right") for _ in range(2)], across=2)
    assert labels(both.axes) == [("", "B", "right"), ("", "B", "")], "a common label stands once"


def test_stacked_bars_are_shares_of_their_sum() -> None:
    rows = pd.DataFrame({"attack": ["b", "a", "b"], "right": [1, 0, 2], "failed": [1, 0, 0]})
    parts = {"labels found": "right", "none found": "failed"}
    flat, upright = (drawn(rows, stacked("attack", parts, upright=upright)).axes[0] for upright in (False, True))
    assert [label.get_text() for label in flat.get_yticklabels()] == ["b", "a"], "in the order of the rows"
    assert flat.yaxis_inverted(), "from top to bottom"
    expected = [(0, 75), (0, 0), (75, 25), (0, 0)]
    assert [(bar.get_x(), bar.get_width()) for bar in flat.patches] == expected
    assert [(bar.get_y(), bar.get_height()) for bar in upright.patches] == expected
    assert upright.get_ylim() == (0, 100)
