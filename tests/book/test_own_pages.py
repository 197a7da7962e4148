"""What the book's own pages show: its first picture, the scale of images, the picture of imports, growth of time."""

from __future__ import annotations

import io
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import gradleak
from benchmarks.growth import ALL
from gradleak import metrics, paths
from gradleak.book import architecture, constants, cover, growth
from gradleak.show import figures
from tests.recorded import record_of


def test_photographs_come_back_in_the_first_picture() -> None:
    private, rows, recovered = cover.expose()
    assert private.shape == rows.shape == recovered.shape == (cover.IMAGES, 3, 64, 64)
    assert metrics.psnr(recovered, private).min() > 100
    assert private.flatten(1).std(dim=1).min() > 0.1, "a photograph worth looking at"
    figure = cover.draw()
    assert plt.imread(io.BytesIO(figures.png(figure)))[..., :3].mean(axis=2).std() > 0.1
    plt.close(figure)


def test_images_are_graded_on_one_scale() -> None:
    text = constants.scale()
    for word, least in metrics.SCALE.items():
        assert f"| {word} | {least:.0f} dB | " in text
    assert "generated/scale.md" in (paths.book() / "reading.md").read_text("utf-8")
    assert constants.levels(metrics.EXACT) < 0.5 < constants.levels(metrics.INDISTINGUISHABLE)
    for page in ("gradinversion", "gradinversion-many"):
        rows = record_of(page).frame()
        flat = rows[(rows["what"] == "image") & (rows["run"] == "mean colour")]
        assert metrics.grade(flat["psnr"].astype(float).mean()) == "not recognisable"


def test_growth_is_that_of_the_largest_sizes_and_trials_go_to_the_worker_that_is_free_first() -> None:
    assert growth.exponent([1, 10, 100, 1000], [5.0, 1e-3, 1e-1, 10.0]) == pytest.approx(2)
    assert math.isnan(growth.exponent([1], [1.0]))
    assert {(series.attack.partition(",")[0], series.grows) for series in ALL} == set(growth.DERIVED)
    assert [growth.finish(times, 2) for times in ([3, 1, 1, 1], [1, 1, 1, 3])] == [3, 4], "in their order"
    assert growth.finish([1, 2, 3], 100) == growth.finish([1, 1], 1, each=0.5) == 3


def test_the_picture_of_the_imports_shows_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    found = architecture.imports()
    assert {("cli", "book"), ("book", "studies"), ("labels", "leak"), ("leak", "losses")} <= found
    monkeypatch.setattr(architecture, "imports", lambda: found)
    files = Path(gradleak.__file__).parent.iterdir()
    parts = {file.stem for file in files if file.suffix == ".py" or (file / "__init__.py").is_file()}
    figure = architecture.draw()
    assert {part for part in parts if part[0] != "_"} <= {text.get_text() for text in figure.axes[0].texts}
    plt.close(figure)
