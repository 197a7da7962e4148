"""A figure is drawn again for a phone, or with a dark ground if it shows photographs, and the book shows both."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from matplotlib import pyplot as plt

from gradleak.show import figures, views


def png(pictures: dict[str, str], kind: str) -> np.ndarray:
    return plt.imread(io.BytesIO(base64.b64decode(pictures[kind])))


def test_panels_stand_below_each_other_with_their_labels() -> None:
    figure, axes = figures.panels(1, 3, sharey=True)
    for number, axis in enumerate(axes[0]):
        axis.plot([1, 2], [number, 2], label=f"line {number}")
        axis.set(title=f"panel {number}", xlabel="steps")
    axes[0][0].set_ylabel("loss")
    figures.legend_below(figure, 3)
    figures.titled(figure, "Recorded: " + "a thousand images of a dataset, " * 4)
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
    texts = [(axis.get_ylabel(), axis.get_title("left")) for axis in figure.axes]
    assert texts == [("loss", f"panel {number}") for number in range(3)]
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
