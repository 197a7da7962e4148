"""A figure is drawn again for a phone, or with a dark ground if it shows photographs, and the book shows both."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gradleak import paths
from gradleak.show import figures, views


def png(pictures: dict[str, str], kind: str) -> np.ndarray:
    return plt.imread(io.BytesIO(base64.b64decode(pictures[kind])))


def lines() -> Figure:
    """Return three panels side by side, of which only the first has the label that all share, and a legend below."""
    figure, axes = figures.panels(1, 3, sharey=True)
    for number, axis in enumerate(axes[0]):
        axis.plot([1, 2], [number, 2], label=f"line {number}")
        axis.set(title=f"panel {number}", xlabel="steps")
    axes[0][0].set_ylabel("loss")
    figures.legend_below(figure, 3)
    return figures.titled(figure, "Recorded: " + "a thousand images of a dataset, " * 4)


def test_panels_stand_below_each_other_with_their_labels() -> None:
    figure = lines()
    bundle, more = views.views(figure)
    wide, narrow = png(bundle, "image/png"), png(more[views.KEY], "narrow")
    assert wide.shape[1] > wide.shape[0]
    assert narrow.shape[0] > narrow.shape[1]
    assert narrow.shape[1] / views.FINE == pytest.approx(views.NARROW, abs=0.3), "nothing sticks out"
    assert figure.get_figwidth() > views.NARROW, "the figure itself stays as it is"
    views.stack(figure)
    figure.draw_without_rendering()
    places = [axis.get_position() for axis in figure.axes]
    assert len({round(place.x0, 3) for place in places}) == 1
    assert [place.y0 for place in places] == sorted((place.y0 for place in places), reverse=True)
    assert [axis.get_ylabel() for axis in figure.axes] == ["loss"] * 3
    assert [axis.get_title("left") for axis in figure.axes] == ["panel 0", "panel 1", "panel 2"]
    assert "\n" in figure.get_suptitle()
    plt.close(figure)


def test_photographs_keep_their_colours_on_a_dark_ground() -> None:
    figure, axes = figures.panels(1, 1)
    axes[0][0].imshow(np.full((8, 8, 3), (1.0, 0.0, 0.0)))
    bundle, more = views.views(figure)
    light, dark = png(bundle, "image/png"), png(more[views.KEY], "dark")
    assert light[0, 0, :3].min() == 1
    assert dark[0, 0, :3].max() < 0.2
    middle = [one[one.shape[0] // 2, one.shape[1] // 2, :3].tolist() for one in (light, dark)]
    assert middle[0] == middle[1] == [1, 0, 0]
    plt.close(figure)


def test_pages_offer_the_further_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(paths.book() / "_ext")
    import figure_views

    assert figure_views.KEY == views.KEY
    first, other = base64.b64encode(b"wide").decode(), base64.b64encode(b"more").decode()
    for kind, expected in (
        ("narrow", 'media="(max-width: 600px)" srcset="../_images/{}-narrow.png"'),
        ("dark", "{}-dark.png"),
    ):
        outputs = [{"data": {"image/png": first}, "metadata": {views.KEY: {kind: other}}}]
        (tmp_path / "page.ipynb").write_text(json.dumps({"cells": [{"outputs": outputs}, {}]}))
        found = figure_views.gathered(tmp_path)
        name = hashlib.sha256(b"wide").hexdigest()
        assert found == {name: {kind: b"more"}}
        image = f'<img alt="A chart" src="../_images/{name}.png" />'
        page = figure_views.IMAGE.sub(lambda one, found=found: figure_views.pictured(one, found), f"<p>{image}</p>")
        assert image in page
        assert expected.format(name) in page
