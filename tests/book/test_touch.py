"""Interactive figures and enlarged images in a browser, from files, without a server and without the theme."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from gradleak.book.browser import chromium, executable
from gradleak.labels import label_loss
from gradleak.runs import records
from gradleak.show.touch import InteractiveFigure, LabelSlider
from gradleak.studies.dang2021 import sentences
from gradleak.studies.shared.samples import read
from gradleak.studies.wang2024 import theorem1

REQUIRED = os.environ.get("GRADLEAK_REQUIRE_BROWSER") == "1"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not REQUIRED and executable() is None, reason="no Chromium on this machine"),
]
STATIC = Path(__file__).parents[2] / "book" / "_static"
SCRIPTS = ("touch.css", "touch.js", "lightbox.js")
FIGURE = (
    '<figure><img src="figure.png" alt="A strip of images" style="max-width: 100%"><figcaption><p>'
    '<span class="caption-text">Private and recovered images.</span></p></figcaption></figure>'
)
PAGE = """<!doctype html><html data-theme="{theme}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="touch.css">
<script src="touch.js"></script><script src="lightbox.js"></script></head>
<body style="margin: 0"><article class="bd-article">{body}</article></body></html>"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a page of both figures and an image."""
    made = tmp_path_factory.mktemp("touch")
    for name in SCRIPTS:
        shutil.copy(STATIC / name, made)
    plt.imsave(made / "figure.png", np.random.default_rng(0).random((120, 1100)))
    theorem, reading = records.recorded("theorem1"), records.recorded("sentences")
    assert theorem is not None
    assert reading is not None
    found = [theorem1.slider(theorem), sentences.replay(reading)]
    body = "".join(one._repr_html_() for one in found if one) + FIGURE
    for theme in ("light", "dark"):
        (made / f"{theme}.html").write_text(PAGE.format(theme=theme, body=body))
    return made


@pytest.fixture
def view(browser: Any, folder: Path) -> Iterator[Any]:
    """Return the page, opened from a file; it complains of nothing."""
    page = opened(browser, folder / "light.html")
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    page.close()
    assert complaints == []


def opened(browser: Any, file: Path, **options: Any) -> Any:
    page = browser.new_page(**({"viewport": {"width": 1000, "height": 900}} | options))
    page.goto(file.as_uri())
    return page


def slide(view: Any, kind: str, position: int) -> None:
    view.locator(f"[data-kind={kind}] input").evaluate(
        "(range, position) => { range.value = position; range.dispatchEvent(new Event('input')) }", position
    )


def shown_label(view: Any) -> tuple[float, float, list[float]]:
    """Return the scalar, the loss and the label that the page shows."""
    container = view.locator("[data-kind=label-slider]")
    bars = container.locator("rect[data-entry]").evaluate_all("all => all.map(bar => Number(bar.dataset.value))")
    return float(container.get_attribute("data-scalar")), float(container.get_attribute("data-loss")), bars


def agree(view: Any, data: LabelSlider) -> None:
    """Compare what the page shows with what Python computes at the same scalar."""
    scalar, loss, bars = shown_label(view)
    expected = read(data.logits, data.ratios).labels(torch.tensor([[scalar]], dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(bars, dtype=torch.float64), expected[0, 0], rtol=1e-12, atol=1e-14)
    assert loss == pytest.approx(float(label_loss(expected)[0, 0]), rel=1e-9, abs=1e-20)
    sentence = view.locator("[data-kind=label-slider] [role=status]").inner_text()
    assert ("The label is valid" in sentence) == bool((expected >= -1e-9).all())


def test_the_slider_shows_the_labels_that_python_computes(view: Any) -> None:
    record = records.recorded("theorem1")
    assert record is not None
    figure = theorem1.slider(record)
    assert figure is not None
    data = figure.data
    assert isinstance(data, LabelSlider)
    verdicts = set()
    for position in (0, 40, 120, 200, 300, 360, 400):
        slide(view, "label-slider", position)
        agree(view, data)
        verdicts.add(view.locator("[data-kind=label-slider]").get_attribute("data-valid"))
    assert verdicts == {"true", "false"}
    assert "Not a label: entr" in view.locator("[data-kind=label-slider] [role=status]").inner_text()
    assert shown_label(view)[0] == pytest.approx(data.first)

    view.get_by_role("button", name="Find the smallest loss").click()
    agree(view, data)
    scalar, loss, _ = shown_label(view)
    assert scalar == pytest.approx(data.truth, rel=1e-5)
    assert loss < 1e-9
    sentence = view.locator("[data-kind=label-slider] [role=status]").inner_text()
    assert "The label is valid" in sentence
    assert "This is the true scalar" in sentence


def test_the_arrow_keys_move_the_slider(view: Any) -> None:
    view.get_by_role("slider", name="scalar").focus()
    before = shown_label(view)[0]
    view.keyboard.press("ArrowRight")
    after = shown_label(view)[0]
    assert after > before, "the right arrow makes the scalar larger, although it is negative"
    view.keyboard.press("End")
    assert view.locator("[data-kind=label-slider] .touch-wrong[data-entry]").count() > 0


def test_a_positive_scalar_whose_interval_has_no_end(browser: Any, folder: Path) -> None:
    logits, ratios = [3.0, 0.5, -1.0], [-1.0, 0.6, 0.4]
    data = LabelSlider(logits, ratios, free=1, truth=2.0, low=1.5, high=None, first=1.2, last=8.0)
    file = folder / "endless.html"
    figure = InteractiveFigure(data, title="a label", says="move")
    file.write_text(PAGE.format(theme="light", body=figure._repr_html_()))
    page = opened(browser, file)
    for position in (0, 150, 400):
        slide(page, "label-slider", position)
        agree(page, data)
    assert shown_label(page)[0] == pytest.approx(8.0)
    page.close()


def test_the_replay_steps_and_ends_with_the_recorded_sentence(view: Any) -> None:
    record = records.recorded("sentences")
    assert record is not None
    words = list(record.rows(sentences.OneSentence)["word"])
    whole = "".join(words).replace("▁", " ").strip()
    container = view.locator("[data-kind=reading-replay]")
    columns = container.locator("svg g")
    forward = view.get_by_role("button", name="Forward")
    forward.focus()
    for step in range(1, len(words) + 1):
        read_so_far = "".join(words[:step]).replace("▁", " ").strip()
        assert container.get_attribute("data-text") == read_so_far
        assert container.locator("p[lang=en]").inner_text() == read_so_far + (" …" if step < len(words) else ".")
        assert container.locator("svg g:not(.touch-hidden)").count() == step
        if step < len(words):
            view.keyboard.press("Enter")
    assert columns.count() == len(words)
    assert whole == container.get_attribute("data-text")
    assert "The sentence is over" in container.locator("[role=status]").inner_text()
    assert forward.is_disabled()
    assert view.evaluate("document.activeElement.textContent") == "Back", "the focus is not lost"
    view.keyboard.press("Enter")
    assert container.get_attribute("data-step") == str(len(words) - 1)


def test_the_replay_plays_only_when_asked_and_stops(browser: Any, folder: Path) -> None:
    page = browser.new_page()
    page.clock.install()
    page.goto((folder / "light.html").as_uri())
    container = page.locator("[data-kind=reading-replay]")
    page.clock.run_for(10_000)
    assert container.get_attribute("data-step") == "1", "nothing plays by itself"
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(3_000)
    assert container.get_attribute("data-step") == "3"
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(10_000)
    assert container.get_attribute("data-step") == "3"
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(60_000)
    last = container.locator("svg g").count()
    assert container.get_attribute("data-step") == str(last)
    page.get_by_role("button", name="Play").click()
    assert container.get_attribute("data-step") == "1", "it begins anew"
    page.close()


def test_a_figure_enlarges_and_closes_by_keyboard(view: Any) -> None:
    image, dialog = view.locator("figure img"), view.locator("dialog")
    image.focus()
    view.keyboard.press("Enter")
    assert dialog.is_visible()
    assert dialog.locator("img").get_attribute("alt") == "A strip of images"
    assert dialog.locator("img").bounding_box()["width"] >= 1100
    assert "Private and recovered images." in dialog.inner_text()
    view.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert view.evaluate("document.activeElement.alt") == "A strip of images"
    image.click()
    assert dialog.is_visible()
    view.mouse.click(5, 5)
    assert not dialog.is_visible(), "a click beside the dialog closes it"


def test_without_scripts_the_static_figure_is_there(browser: Any, folder: Path) -> None:
    page = opened(browser, folder / "light.html", java_script_enabled=False)
    assert page.locator("figure img").is_visible()
    assert page.locator("svg, input, button").count() == 0
    assert page.locator(".gradleak-touch-instead").first.is_visible()
    assert not page.locator(".gradleak-touch-says").first.is_visible()
    page.close()


def test_in_print_the_static_figure_stands_alone(view: Any) -> None:
    view.emulate_media(media="print")
    assert view.locator("figure img").is_visible()
    assert view.locator(".gradleak-touch:visible").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_all_of_it(browser: Any, folder: Path, theme: str) -> None:
    page = opened(browser, folder / f"{theme}.html", viewport={"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    sizes = page.locator(".gradleak-touch svg text").evaluate_all(
        "all => all.map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"
    )
    assert min(sizes) >= 9, "the words of the drawings are legible"
    page.locator("figure img").click()
    assert page.locator("dialog").bounding_box()["width"] <= 400
    box = page.locator("dialog div")
    assert box.evaluate("box => box.scrollWidth > 2 * box.clientWidth"), "the strip is larger than the window"
    page.close()


def test_words_differ_from_the_ground_in_light_and_dark(browser: Any, folder: Path) -> None:
    for theme in ("light", "dark"):
        page = opened(browser, folder / f"{theme}.html")
        ground = luminance(
            page.locator(".gradleak-touch").first.evaluate("one => getComputedStyle(one).backgroundColor")
        )
        for words in (".gradleak-touch-says", ".gradleak-touch-now", ".gradleak-touch button"):
            ink = luminance(page.locator(words).first.evaluate("one => getComputedStyle(one).color"))
            brighter, darker = max(ink, ground), min(ink, ground)
            assert (brighter + 0.05) / (darker + 0.05) > 4.5, f"{words} in {theme}"
        page.close()


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as "rgb(1, 2, 3)"."""
    parts = np.array([float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))
