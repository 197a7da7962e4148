"""The gallery: a card a page with its best figure, small, drawn once for each record and code."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from gradleak import studies
from gradleak.book import gallery
from gradleak.runs import records, runner
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies import Study
from tests.checkout import Toy

# A figure and a headline of a study's module.
FIGURES = """

from gradleak.show import figures


def figure_sums(record):
    with open("drawn", "a") as file:
        file.write("x")
    figure, axes = figures.panels(1, 1)
    axes[0][0].plot(record.frame()["sum"])
    return figure


class Chosen:
    sentence = "The sum grows."
    figure = staticmethod(figure_sums)


def headline(record):
    return Chosen
"""


@pytest.fixture
def toy(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Return a study with figures, in whose checkout the test is."""
    monkeypatch.chdir(checkout.root)
    monkeypatch.setenv("GRADLEAK_JOBS", "1")
    return changed(checkout, FIGURES)


def changed(checkout: Toy, code: str) -> Study:
    """Return the study with more code."""
    checkout.module.write_text(checkout.module.read_text() + code)
    sys.modules.pop(checkout.load().module_name, None)
    importlib.invalidate_caches()
    return studies.load("toy")


def record_of(checkout: Toy, study: Study, **changes: float) -> Record:
    return runner.run_study(study, checkout.parameters(**changes), jobs=1)


def drawn() -> int:
    file = Path("drawn")
    return len(file.read_text()) if file.is_file() else 0


def test_a_picture_is_drawn_again_when_the_record_or_the_code_changes(checkout: Toy, toy: Study) -> None:
    folder = checkout.root / "gallery"
    record = record_of(checkout, toy)
    cards = gallery.text([toy], ["toy2020", "empty2020"], {"toy": record}, folder)
    assert "## toy2020\n" in cards
    assert ":img-alt: The sum grows." in cards
    assert "empty2020" not in cards
    assert ":::{grid-item-card} A toy: draws and their sum\n:img-top: generated/gallery/toy.png\n" in cards
    assert ":link: executed/toy2020/toy\n:link-type: doc\n\ntoy2020, Table 1\n:::" in cards
    assert drawn() == 1
    assert gallery.text([toy], ["toy2020"], {"toy": record}, folder) == cards
    assert drawn() == 1, "nothing has changed"
    gallery.text([toy], ["toy2020"], {"toy": record_of(checkout, toy, scale=2)}, folder)
    assert drawn() == 2
    again = changed(checkout, "\n\nLATER = 1\n")
    gallery.text([again], ["toy2020"], {"toy": record_of(checkout, again, scale=2)}, folder)
    assert drawn() == 3


def test_pictures_of_pages_that_are_gone_are_removed(checkout: Toy, toy: Study) -> None:
    folder = checkout.root / "gallery"
    folder.mkdir()
    (folder / "gone.png").write_bytes(b"")
    gallery.put_pictures([toy], {"toy": record_of(checkout, toy)}, folder)
    assert {file.name for file in folder.iterdir()} == {"toy.png", "toy.key"}


@pytest.mark.parametrize("name", studies.names())
def test_every_page_has_a_figure(name: str) -> None:
    record = records.recorded(name)
    assert record is not None
    assert gallery.best(studies.load(name), record) is not None


def test_a_picture_is_small_and_not_blank() -> None:
    figure, axes = figures.panels(1, 1)
    axes[0][0].imshow(np.random.default_rng(0).random((32, 32, 3)))
    found = gallery.small(figure)
    assert not plt.fignum_exists(figure.number)
    picture = Image.open(io.BytesIO(found))
    assert picture.width == gallery.WIDTH
    assert np.asarray(picture.convert("L")).std() > 10
    # The worst picture is noise. All pages together have room even if a third of them were.
    assert len(found) < 3 * 2_500_000 / len(studies.names())


def test_several_pictures_are_drawn_at_once_and_are_the_same() -> None:
    pages = []
    for name in ("sentences", "words"):
        record = records.recorded(name)
        assert record is not None
        pages.append((name, record))
    assert list(gallery.pictures(pages, jobs=2)) == [gallery.picture(*page) for page in pages]
