"""The explorer in a browser, as it opens from a file: choices, links, keys, and a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from gradleak import paths, studies
from gradleak.book import explorer
from gradleak.book.browser import chromium, executable
from tests.book.made_up import outcome

REQUIRED = os.environ.get("GRADLEAK_REQUIRE_BROWSER") == "1"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not REQUIRED and executable() is None, reason="no Chromium on this machine"),
]
OUTCOMES = [
    outcome(value=99.5, low=98.0, high=99.9, count=1000),
    outcome(defense="clip/1", value=60.0, batch=1),
    outcome(defense="dp/1", value=2.0, training="trained"),
    outcome(
        leak="images", attack="matcher", network="AlexNet", unit="dB", measure="PSNR", value=25.0, page="fcn-inversion"
    ),
    *(outcome(attack="counter", value=float(value), batch=16) for value in range(40)),
]
HEAD = '<!doctype html><html lang="en" data-theme="{}"><meta name="viewport" content="width=device-width">'
STYLE = '<link rel="stylesheet" href="explorer.css"><style>[data-theme=dark] { background: #111; color: #eee }</style>'
BODY = '<main><div id="explorer"></div></main><script src="data.js"></script><script src="explorer.js"></script>'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a page with the explorer, and return its address."""
    folder = tmp_path_factory.mktemp("explorer")
    own = [studies.load(name) for name in ("noise", "fcn-inversion")]
    (folder / "data.js").write_text(explorer.script(own, OUTCOMES))
    for name in ("explorer.js", "explorer.css"):
        (folder / name).write_bytes((paths.book() / "_static" / name).read_bytes())
    for theme in ("light", "dark"):
        (folder / f"{theme}.html").write_text(HEAD.format(theme) + STYLE + BODY)
    return (folder / "light.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def view(browser: Any, page: str) -> Iterator[Any]:
    """The explorer in a window; anything that it says on the console is an error."""
    own = browser.new_page(viewport={"width": 1200, "height": 900})
    said: list[str] = []
    own.on("console", lambda message: said.append(message.text))
    own.on("pageerror", lambda error: said.append(str(error)))
    own.goto(page)
    yield own
    own.close()
    assert said == []


def choose(view: Any, axis: str, word: str) -> None:
    """Choose the option that starts with a word."""
    options = view.locator(f"#explorer-{axis} option").all_text_contents()
    view.select_option(f"#explorer-{axis}", label=next(option for option in options if option.startswith(word)))


def summary(view: Any) -> str:
    return str(view.inner_text(".explorer-summary"))


def test_everything_is_shown_first_the_most_severe_on_top(view: Any) -> None:
    assert summary(view).startswith("44 outcomes from 2 pages: 1 leak everything, 1 leak most, 31 leak some")
    first = view.locator(".explorer-results tbody tr").first.inner_text()
    for part in ("everything", "guesser", "99.5 %", "98 to 99.9", "n = 1,000 batches", "LeNet, untrained", "B = 8"):
        assert part in first
    assert view.locator(".explorer-results tbody tr").count() == 25
    view.click(".explorer-more")
    assert view.locator(".explorer-results tbody tr").count() == 44
    assert not view.locator(".explorer-more").is_visible()


def test_choices_narrow_the_outcomes_and_stay_in_the_link(view: Any, browser: Any) -> None:
    choose(view, "leak", "labels")
    choose(view, "family", "clipping (")
    assert summary(view).startswith("1 outcome from 1 page: 1 leak most")
    assert view.url.endswith("#leak=labels&family=clipping")
    other = browser.new_page()
    other.goto(view.url)
    assert summary(other) == summary(view)
    other.close()
    view.click(".explorer-reset")
    assert summary(view).startswith("44 outcomes")
    assert "#" not in view.url


def test_options_count_what_is_left_and_say_what_was_not_run(view: Any) -> None:
    choose(view, "network", "AlexNet")
    options = view.locator("#explorer-leak option").all_text_contents()
    assert options == ["any", "labels (not run)", "images (1)"]


def test_what_was_not_run_says_so_and_offers_what_was(view: Any) -> None:
    choose(view, "family", "clipping and noise")
    choose(view, "batch", "B = 16")
    assert summary(view).startswith("Not run: no page of the book measures this setting.")
    assert view.locator(".explorer-results").inner_text() == ""
    view.click("text=any batch size (1)")
    assert summary(view).startswith("1 outcome")


def test_the_table_greys_what_was_not_run_and_its_cells_choose(view: Any) -> None:
    table = view.locator(".explorer-map table")
    assert table.locator("td.not-run").first.inner_text() == "not run"
    rows = table.locator("tbody tr", has_text="guesser")
    assert [cell.strip() for cell in rows.first.locator("td").all_inner_texts()] == ["99.5 %", "60 %", "2 %"]
    rows.first.locator("button").nth(1).click()
    assert summary(view).startswith("1 outcome")
    # The choice is a mark: what lies beside it stays visible.
    assert [cell.strip() for cell in rows.first.locator("td").all_inner_texts()] == ["99.5 %", "60 %", "2 %"]
    assert rows.first.locator("button").nth(1).get_attribute("aria-pressed") == "true"


def test_the_columns_can_be_another_axis(view: Any) -> None:
    view.select_option("#explorer-columns", "batch")
    heads = view.locator(".explorer-map thead th").all_inner_texts()
    assert heads == ["attack", "B = 1", "B = 8", "B = 16"]
    assert view.url.endswith("#columns=batch")


def test_it_works_by_keyboard_and_keeps_the_focus(view: Any) -> None:
    view.focus("#explorer-leak")
    view.keyboard.press("ArrowDown")
    assert "leak=labels" in view.url
    assert view.evaluate("document.activeElement.id") == "explorer-leak"
    view.locator(".explorer-map tbody button").first.focus()
    key = view.evaluate("document.activeElement.dataset.key")
    view.keyboard.press("Enter")
    assert "attack=" in view.url
    assert view.evaluate("document.activeElement.dataset.key") == key


def test_a_screen_reader_is_told_names_and_changes(view: Any) -> None:
    assert view.get_attribute(".explorer-summary", "aria-live") == "polite"
    assert view.locator("#explorer select").count() == view.locator("#explorer label").count()
    for box in view.locator("#explorer select").all():
        assert view.locator(f"label[for='{box.get_attribute('id')}']").inner_text()
    button = view.locator(".explorer-map tbody button").first
    assert "outcomes" in button.get_attribute("aria-label")
    assert view.locator("#explorer table > caption").count() == 2


def test_results_link_to_their_pages(view: Any) -> None:
    choose(view, "leak", "images")
    assert view.locator(".explorer-results a").first.get_attribute("href") == "executed/wang2024/fcn-inversion.html"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, page: str, theme: str) -> None:
    view = browser.new_page(viewport={"width": 400, "height": 800})
    view.goto(page.replace("light.html", f"{theme}.html"))
    assert view.evaluate("document.documentElement.scrollWidth") == 400
    # Text and ground of every badge and coloured cell differ enough (WCAG AA).
    contrasts = view.eval_on_selector_all("#explorer .leaks, #explorer .explorer-map td", CONTRAST)
    assert contrasts
    assert min(contrasts) >= 4.5
    view.close()


CONTRAST = """all => all.map(one => {
    const light = text => {
        const parts = text.match(/[\\d.]+/g).slice(0, 3).map(part => {
            const share = part / 255
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4
        })
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    }
    const style = getComputedStyle(one)
    const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x)
    return (a + 0.05) / (b + 0.05)
})"""
