"""The book's first picture is computed, and its attack sees the gradient alone."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt

from gradleak import metrics
from gradleak.book import cover
from gradleak.show import figures


def test_photographs_come_back_and_the_picture_is_drawn() -> None:
    private, rows, recovered = cover.expose()
    assert private.shape == rows.shape == recovered.shape == (cover.IMAGES, 3, 64, 64)
    assert metrics.psnr(recovered, private).min() > 100
    assert private.flatten(1).std(dim=1).min() > 0.1, "a photograph worth looking at"
    figure = cover.draw()
    pixels = plt.imread(io.BytesIO(figures.png(figure)))
    assert pixels.shape[1] > 1200
    assert pixels.std() > 0.1
    plt.close(figure)
