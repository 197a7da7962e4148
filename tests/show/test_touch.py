"""Interactive figures: their data are the record's, no text breaks out of it, and what a browser shows of it.

The browser opens files, without a server and without the book's theme.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from gradleak import paths
from gradleak.labels import label_loss
from gradleak.show.touch import InteractiveFigure
from gradleak.studies.dang2021 import sentences
from gradleak.studies.shared.samples import read
from gradleak.studies.wang2024 import theorem1
from tests.recorded import record_of

SLIDER, REPLAY = "[data-kind=label-slider]", "[data-kind=reading-replay]"
FIGURE = '<figure><img src="figure.png" alt="A strip of images" style="max-width: 100%"></figure>'
PAGE = """<!doctype html><html data-theme="light"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="touch.css">
<script src="touch.js"></script><script src="gradleak.js"></script></head>
<body style="margin: 0"><article class="bd-article">{body}</article></body></html>"""


def slider() -> InteractiveFigure:
    figure = theorem1.slider(record_of("theorem1"))
    assert figure is not None
    return figure


def replay() -> InteractiveFigure:
    figure = sentences.replay(record_of("sentences"))
    assert figure is not None
    return figure


def test_the_slider_holds_the_recorded_path() -> None:
    case, data = record_of("theorem1").rows(theorem1.OneInterval).iloc[0], slider().data
    names = ("logits", "ratios", "truth", "low", "high")
    assert [data[name] for name in names] == [case[name] for name in names]
    assert data["free"] == 1, "smoothing leaves one entry free"
    assert abs(data["first"]) < abs(data["low"]) < abs(data["high"]) < abs(data["last"])


def test_the_replay_holds_the_recorded_sentence() -> None:
    record, data = record_of("sentences"), replay().data
    rows = record.rows(sentences.OneSentence)
    assert [step["piece"] for step in data["steps"]] == list(rows["word"])
    assert data["sentence"] == "".join(rows["word"]).replace("▁", " ").strip()
    assert all(step["miss"] is None or step["miss"] < data["fits"] for step in data["steps"])
    assert min(data["steps"][-1]["others"]) > data["fits"], "no word lies in the span at the end"
    others = [trial for trial in record.trials if trial.inputs["part"] != "figure"]
    assert sentences.replay(record.model_copy(update={"trials": others})) is None


def test_no_text_ends_the_data_or_the_markup() -> None:
    evil = "</script><b>"
    text = InteractiveFigure("reading-replay", {"sentence": evil}, title='a "b"', says="<i>", instead="&")._repr_html_()
    assert text.count("</script>") == 1
    assert "<b>" not in text
    assert "<i>" not in text
    assert 'aria-label="a &quot;b&quot;"' in text
    found = re.search(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["sentence"] == evil


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page with both figures and an image."""
    made = tmp_path_factory.mktemp("touch")
    for name in ("touch.css", "touch.js", "gradleak.js"):
        shutil.copy(paths.book() / "_static" / name, made)
    plt.imsave(made / "figure.png", np.random.default_rng(0).random((120, 1100)))
    body = slider()._repr_html_() + replay()._repr_html_() + FIGURE
    (made / "page.html").write_text(PAGE.format(body=body))
    return made


@pytest.fixture
def opened(browser: Any, folder: Path) -> Iterator[Any]:
    """Return a function that opens a page, which must not complain."""
    complaints: list[str] = []

    def opened(**options: Any) -> Any:
        page = browser.new_page(viewport={"width": 1000, "height": 900}, **options)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto((folder / "page.html").as_uri())
        return page

    yield opened
    assert complaints == []


def shown_label(view: Any, data: Mapping[str, Any]) -> tuple[float, float, str]:
    """Compare the label and loss on the page with Python's at the same scalar; return scalar, loss and the sentence."""
    container = view.locator(SLIDER)
    bars = container.locator("rect[data-entry]").evaluate_all("all => all.map(bar => Number(bar.dataset.value))")
    scalar, loss = float(container.get_attribute("data-scalar")), float(container.get_attribute("data-loss"))
    expected = read(data["logits"], data["ratios"]).labels(torch.tensor([[scalar]], dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(bars, dtype=torch.float64), expected[0, 0], rtol=1e-12, atol=1e-14)
    assert loss == pytest.approx(float(label_loss(expected)[0, 0]), rel=1e-9, abs=1e-20)
    sentence = container.locator("[role=status]").inner_text()
    assert ("The label is valid" in sentence) == bool((expected >= -1e-9).all())
    return scalar, loss, sentence


@pytest.mark.browser
def test_the_slider_shows_the_labels_that_python_computes(opened: Any) -> None:
    view, data = opened(), slider().data
    sentences = set()
    for position in (0, 120, 400):
        view.locator(f"{SLIDER} input").evaluate(
            "(range, position) => { range.value = position; range.dispatchEvent(new Event('input')) }", position
        )
        scalar, _, sentence = shown_label(view, data)
        sentences.add(sentence.partition(". ")[2].partition(":")[0][:18])
    assert len(sentences) == 2, "some labels are valid, and some are not"
    assert scalar == pytest.approx(max(data["first"], data["last"]))
    view.get_by_role("slider", name="scalar").focus()
    view.keyboard.press("ArrowLeft")
    assert shown_label(view, data)[0] < scalar
    view.get_by_role("button", name="Find the smallest loss").click()
    scalar, loss, sentence = shown_label(view, data)
    assert scalar == pytest.approx(data["truth"], rel=1e-5)
    assert loss < 1e-9
    assert "This is the true scalar" in sentence


@pytest.mark.browser
def test_the_replay_ends_with_the_recorded_sentence_and_plays_when_asked(opened: Any) -> None:
    words = list(record_of("sentences").rows(sentences.OneSentence)["word"])
    view = opened()
    container, forward = view.locator(REPLAY), view.get_by_role("button", name="Forward")
    forward.focus()
    for step in range(1, len(words) + 1):
        assert container.get_attribute("data-text") == "".join(words[:step]).replace("▁", " ").strip()
        assert container.locator("svg g:not(.touch-hidden)").count() == step
        if step < len(words):
            view.keyboard.press("Enter")
    assert "The sentence is over" in container.locator("[role=status]").inner_text()
    assert forward.is_disabled()
    assert view.evaluate("document.activeElement.textContent") == "Back", "the focus is not lost"
    view.clock.install()
    view.reload()
    view.clock.run_for(10_000)
    assert container.get_attribute("data-step") == "1", "nothing plays by itself"
    for milliseconds, step in ((3_000, 3), (60_000, len(words)), (0, 1)):
        view.get_by_role("button", name="Play").click()
        view.clock.run_for(milliseconds)
        assert container.get_attribute("data-step") == str(step)
        if step == 3:
            view.get_by_role("button", name="Pause").click()


@pytest.mark.browser
def test_without_scripts_and_in_print_the_static_figure_is_there_and_a_click_opens_an_image(opened: Any) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("figure img").is_visible()
    assert page.locator(".gradleak-touch-instead").first.is_visible()
    assert not page.locator(".gradleak-touch-says").first.is_visible()
    page.emulate_media(media="print")
    assert page.locator("figure img").is_visible()
    assert page.locator(".gradleak-touch:visible").count() == 0
    view = opened()
    view.locator("figure img").click()
    assert view.url.endswith("/figure.png")
