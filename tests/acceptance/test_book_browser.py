"""The built book, opened in a browser as a reader would."""

from __future__ import annotations

import io
import os
import statistics
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

from gradleak import studies

BOOK = Path(os.environ.get("GRADLEAK_BOOK") or Path(__file__).parents[2] / "_build" / "html")
pytestmark = pytest.mark.browser
WIDTHS = (1400, 400)


# Tables wider than the box that scrolls them: by how much, and what they are.
OVER = """all => all.flatMap(table => {
    let box = table.parentElement
    const scrolls = one => ['auto', 'scroll'].includes(getComputedStyle(one).overflowX)
    while (box.tagName !== 'MAIN' && !scrolls(box)) box = box.parentElement
    const over = box.scrollWidth - box.clientWidth
    return over > 1 ? [`${over}: ${table.caption?.textContent.trim().slice(0, 40)}`] : []
})"""

# Where the first number of a page's box, its verdicts and its first figure are, and how long the page is (px).
PLACES = """() => {
    const top = one => one ? one.getBoundingClientRect().top + window.scrollY : null
    const figures = [...document.querySelectorAll('article img')].filter(one => one.getBoundingClientRect().height > 60)
    return {
        number: top(document.querySelector('.gradleak-numbers b')),
        verdict: top(document.querySelector('.gradleak-verdicts')),
        figure: top(figures[0]),
        height: document.querySelector('article').scrollHeight,
    }
}"""
LONGEST = 12_000


@pytest.fixture(scope="module")
def site(browser: Any) -> tuple[str, Any]:
    if not (BOOK / "index.html").is_file() and os.environ.get("GRADLEAK_REQUIRE_BROWSER") != "1":
        pytest.skip("no built book: run `make book` first")
    return BOOK.resolve().as_uri(), browser


@pytest.fixture(scope="module")
def visits(site: tuple[str, Any]) -> dict[str, dict[str, Any]]:
    """Every page visited once: what it said on the console, its links, anchors and pictures, how wide it is."""
    address, browser = site
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900})
    view = context.new_page()
    said: list[str] = []
    view.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    view.on("pageerror", lambda error: said.append(str(error)))

    def failed(request: Any) -> None:
        # A picture is given up for another one when the window changes its width.
        if request.failure != "net::ERR_ABORTED":
            said.append(f"failed: {request.url}")

    view.on("requestfailed", failed)
    found = {}
    for page in sorted(file.relative_to(BOOK).as_posix() for file in (BOOK / "book").rglob("*.html")):
        said.clear()
        view.goto(f"{address}/{page}", wait_until="load")
        view.evaluate("() => window.MathJax?.startup.promise")
        found[page] = {
            "text": view.inner_text("main"),
            "links": view.eval_on_selector_all("a[href]", "all => all.map(a => a.href)"),
            "anchors": set(view.eval_on_selector_all("[id]", "all => all.map(a => a.id)")),
            "pictures": view.eval_on_selector_all("main img", "all => all.map(i => [i.src, i.naturalWidth, i.alt])"),
            "formulas": view.locator("main mjx-container").count(),
            "raw": view.locator("main .math:not(:has(mjx-container))").count(),
            "places": view.evaluate(PLACES),
            "numbers": view.eval_on_selector_all("main .caption-number", "all => all.map(c => c.textContent)"),
            "wide": view.evaluate("document.documentElement.scrollWidth"),
        }
        # Before the window narrows: filtered tables take their new width some time after it.
        opens = "all => all.forEach(one => { one.dataset.closed = true; one.open = true })"
        view.eval_on_selector_all("main details:not([open])", opens)
        found[page]["over"] = view.eval_on_selector_all("main table", OVER)
        view.eval_on_selector_all("[data-closed]", "all => all.forEach(one => { one.open = false })")
        # The layout is the same in both schemes: a phone shows the page with a dark ground.
        view.emulate_media(color_scheme="dark")
        view.wait_for_function("document.documentElement.dataset.theme === 'dark'")
        view.set_viewport_size({"width": WIDTHS[1], "height": 900})
        found[page]["narrow"] = view.evaluate("document.documentElement.scrollWidth")
        view.emulate_media(color_scheme="light")
        view.set_viewport_size({"width": WIDTHS[0], "height": 900})
        found[page]["said"] = list(said)
    context.close()
    return found


def page_of(name: str) -> str:
    return f"book/executed/{studies.paper_of(name)}/{name}.html"


def test_the_named_pages_are_there_and_complain_of_nothing(visits: dict[str, Any]) -> None:
    prose = "index start attacks reading scoreboard explorer around performance architecture api"
    named = {f"book/{name}.html" for name in (*prose.split(), *map(studies.paper_of, studies.names()))}
    assert named | set(map(page_of, studies.names())) == set(visits)
    assert {page: visit["said"] for page, visit in visits.items() if visit["said"]} == {}
    for page, visit in visits.items():
        for sign in ("Traceback (most recent call last)", "Error:", "{numref}", "{cite", ":::", "UserWarning"):
            assert sign not in visit["text"], f"{page} shows {sign}"


def test_every_internal_link_leads_somewhere(visits: dict[str, Any], site: tuple[str, Any]) -> None:
    address, _ = site
    broken = []
    for page, visit in visits.items():
        for link in visit["links"]:
            target, anchor = urldefrag(urljoin(f"{address}/{page}", link))
            if not target.startswith(address):
                continue
            path = unquote(target.removeprefix(address).partition("?")[0]).lstrip("/") or "index.html"
            asks = bool(anchor) and path in visits
            if not (BOOK / path).is_file() or (asks and unquote(anchor) not in visits[path]["anchors"]):
                broken.append((page, link))
    assert broken == []


def test_a_page_answers_first_with_named_figures_and_drawn_formulas(visits: dict[str, Any]) -> None:
    """The key number, the verdicts and a figure are on the first screen, and no page is long with its folds closed."""
    figures = []
    for visit in (visits[page_of(name)] for name in studies.names()):
        places = visit["places"]
        assert places["number"] <= 600
        assert places["verdict"] <= 900
        assert places["figure"] <= 1000
        figures.append(places["figure"])
        assert places["height"] <= LONGEST
        assert visit["formulas"] > 5
        assert visit["raw"] == 0
        assert sum("Figure" in number for number in visit["numbers"]) >= 1
        assert sum("Table" in number for number in visit["numbers"]) >= 2
    assert statistics.median(figures) <= 900
    first = visits["book/index.html"]
    assert len({link for link in first["links"] if "/executed/" in link}) >= len(studies.names())
    assert "cover" in first["pictures"][0][0]
    assert first["text"].index("start here") < first["text"].index("What leaks")


def test_no_table_scrolls_on_a_screen_and_no_page_is_wider_than_the_window(visits: dict[str, Any]) -> None:
    assert {page: visit["over"] for page, visit in visits.items() if visit["over"]} == {}
    assert {page for page, visit in visits.items() if visit["wide"] > WIDTHS[0] + 1} == set()
    assert {page for page, visit in visits.items() if visit["narrow"] > WIDTHS[1] + 1} == set()


def test_pictures_are_described_and_not_blank(visits: dict[str, Any]) -> None:
    for page, visit in visits.items():
        for source, width, alt in visit["pictures"]:
            assert width > 100, f"{page}: {source} was not shown"
            assert alt, f"{page}: {source} has no description"
            pixels = np.asarray(Image.open(io.BytesIO(urlopen(source).read())).convert("L"), dtype=float)
            assert pixels.std() > 5, f"{page}: {source} is blank"


def test_a_claim_is_two_clicks_from_its_number_in_the_paper(site: tuple[str, Any]) -> None:
    address, browser = site
    view = browser.new_page(viewport={"width": WIDTHS[0], "height": 900})
    view.goto(f"{address}/search.html?q=softmax", wait_until="networkidle")
    view.locator("#search-results li p.context").nth(3).wait_for()
    found = view.locator("#search-results").inner_text()
    assert not [sign for sign in ("\\(", "\\[", "\\frac", "\\operatorname") if sign in found], "no LaTeX in excerpts"
    view.goto(f"{address}/search.html?q=wang2024, Table 3", wait_until="networkidle")
    view.locator("#search-results li a").first.click()
    number = view.locator("table.cells:has-text('wang2024, Table 3') td a").first
    number.click()
    view.get_by_text("Behind the measured value").wait_for()
    assert "/claims/" in view.url
    view.close()
    view = browser.new_context(offline=True).new_page()
    view.goto((BOOK / "book" / "scoreboard.html").as_uri() + "#claim-theorem1-bias")
    view.locator(".dt-info", has_text="filtered").wait_for()
    assert view.locator("table.all-claims tbody a[href='../claims/theorem1-bias.html']").count() == 1
    view.close()


def test_figures_and_verdicts_are_drawn_for_phones_and_for_dark_pages(site: tuple[str, Any]) -> None:
    address, browser = site
    ground = "all => [...new Set(all.map(one => getComputedStyle(one).backgroundColor))]"
    verdicts = ("reproduced", "better", "not-reproduced", "stand-in-agrees", "trend-agrees")
    for width, scheme in ((1200, "light"), (400, "dark")):
        view = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        view.goto(f"{address}/book/executed/wang2024/batches.html", wait_until="networkidle")
        chart = view.locator("picture.gradleak-chart img").first
        assert chart.evaluate("one => one.currentSrc").endswith("-narrow.png") == (width == 400)
        assert ("invert" in chart.evaluate("one => getComputedStyle(one).filter")) == (scheme == "dark")
        photographs = view.locator(".gradleak-dark img")
        assert photographs.count() == 1
        assert photographs.is_visible() == (scheme == "dark")
        view.goto(f"{address}/book/scoreboard.html", wait_until="networkidle")
        seen = {verdict: view.eval_on_selector_all(f".legend .badge-{verdict}", ground) for verdict in verdicts}
        colours = [colour for found in seen.values() for colour in found if colour != "rgba(0, 0, 0, 0)"]
        assert len(colours) == len(set(colours)), f"two verdicts look alike: {seen}"
        view.close()
