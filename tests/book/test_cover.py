"""The book's first picture is computed, and its attack sees the gradient alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from gradleak.book import cover


def test_photographs_and_labels_come_back() -> None:
    shown = cover.expose()
    assert len(shown) == 6
    for exposure in shown:
        psnr, error = cover.quality(exposure)
        assert psnr > 100
        assert error < 1e-5
        assert exposure.private.std() > 0.1, "a photograph worth looking at"


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    cover.make_cover(tmp_path / "folder" / "cover.png")
    pixels = np.asarray(Image.open(tmp_path / "folder" / "cover.png").convert("L"), dtype=float)
    assert pixels.shape[1] > 1200
    assert pixels.std() > 30
