"""The scoreboard in a browser, opened as a file: filter, sort, links to claims, keyboard, phone, without scripts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradleak.book import scoreboard
from gradleak.book.browser import chromium, executable
from gradleak.claims import Line, listed
from gradleak.claims.listed import Fact
from tests.book.test_scoreboard import page
from tests.claims.test_judging import ROWS, record
from tests.claims.test_shown import line

STATIC = Path(__file__).parents[2] / "book" / "_static"
REQUIRED = os.environ.get("GRADLEAK_REQUIRE_BROWSER") == "1"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not REQUIRED and executable() is None, reason="no Chromium on this machine"),
]
PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><link rel="stylesheet" href="../_static/gradleak.css">
<script src="../_static/gradleak.js"></script></head><body><main><article class="bd-article">{content}
<table id="tab-small"><caption>Small</caption><tr><th>a</th></tr><tr><td>x "y", z</td></tr></table>
</article></main></body></html>"""
VISIBLE = "#claims tbody tr[id]:visible"


def judged() -> list[Line]:
    """Return forty claims of two papers, of which every fourth fails and every second was changed."""
    return [
        line(
            id=f"c-{number}", paper="pq"[number % 2], place=f"Table {number}", statement=f"statement {number}",
            published=9.0 if number % 4 == 0 else 2.0 + number / 100, note="why",
            cause="chance" if number % 4 == 0 else None,
            changed=[{"kind": "scale", "why": "on a day"}] if number % 2 else [],
        )
        for number in range(1, 41)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a small book with a scoreboard, and return the address of its file."""
    root, claims = tmp_path_factory.mktemp("a book"), judged()
    for folder in ("_static", "book", "claims"):
        (root / folder).mkdir()
    for name in ("gradleak.css", "gradleak.js", "scoreboard.js"):
        shutil.copy(STATIC / name, root / "_static")
    own = {name: [one for one in claims if one.claim.paper == paper] for name, paper in (("one", "p"), ("two", "q"))}
    content = scoreboard._all_claims(["p", "q"], [page("one", "p"), page("two", "q")], own)
    (root / "book" / "scoreboard.html").write_text(PAGE.format(content=content))
    links = [Fact(head="Page", text="A page", link="executed/p/one.html")]
    details = {
        one.claim.id: listed.detail(
            one, listed.listed(one, "current"), links, listed.rows_behind(one.claim, record(ROWS))
        )
        for one in own["one"]
    }
    # The details of page two are missing.
    (root / "claims" / "one.js").write_text(listed.as_script("one", details))
    return (root / "book" / "scoreboard.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert executable(), "a browser is required here, and there is none"
    with chromium() as view:
        yield view


@pytest.fixture
def view(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    made = context.new_page()
    said: list[str] = []
    made.on("pageerror", lambda error: said.append(str(error)))
    yield made
    assert said == []
    context.close()


def shown(view: Any) -> list[str]:
    return [str(row) for row in view.eval_on_selector_all(VISIBLE, "all => all.map(row => row.id)")]


def test_claims_are_filtered_and_counted_and_the_filter_is_in_the_address(view: Any, address: str) -> None:
    view.goto(address)
    assert view.inner_text(".claims-count") == "40 of 40 claims"
    assert len(shown(view)) == 25
    view.get_by_role("button", name="Show all 40").click()
    assert len(shown(view)) == 40
    view.get_by_label("Verdict").select_option("not reproduced")
    assert view.inner_text(".claims-count") == "10 of 40 claims"
    view.get_by_label("Search").fill("statement c-1")
    assert shown(view) == ["claim-c-12", "claim-c-16"]
    assert view.get_by_label("Cause").locator("option").all_inner_texts() == ["all", "any (2)", "chance (2)"]
    assert view.url.endswith("#q=statement+c-1&verdict=not+reproduced")
    view.goto("about:blank")
    view.goto(f"{address}#paper=p&changed=any&sort=claim&down=1")
    assert view.inner_text(".claims-count") == "0 of 40 claims"
    view.get_by_label("Paper").select_option("q")
    assert view.inner_text(".claims-count") == "20 of 40 claims"
    assert shown(view)[:2] == ["claim-c-39", "claim-c-37"]
    view.get_by_role("button", name="Clear all").click()
    assert view.inner_text(".claims-count") == "40 of 40 claims"
    assert "#" not in view.url


def test_claims_are_sorted_by_text_and_by_number(view: Any, address: str) -> None:
    view.goto(f"{address}#sort=place")
    assert shown(view)[:3] == ["claim-c-2", "claim-c-4", "claim-c-6"], "paper p first, and Table 10 after Table 2"
    view.get_by_role("button", name="published").click()
    assert shown(view)[0] == "claim-c-1"
    view.get_by_role("button", name="published").click()
    assert view.locator("th[aria-sort=descending]").inner_text().startswith("published")
    assert set(shown(view)[:10]) == {f"claim-c-{number}" for number in range(4, 41, 4)}
    assert view.get_by_label("Sort by").input_value() == "published"


def test_the_address_of_a_claim_opens_it(view: Any, address: str) -> None:
    view.goto(f"{address}#claim-c-38")
    details = view.get_by_role("region", name="Details of the claim c-38")
    details.get_by_text("Behind the measured value").wait_for()
    facts = dict(
        zip(details.locator("dt").all_inner_texts(), details.locator("dd").all_inner_texts(), strict=True)
    )  # fmt: skip
    assert facts["Paper"] == "p, Table 38"
    assert (facts["Published"], facts["Recorded"], facts["Holds if"]) == ("2.38", "2 ± 1.41 (n = 2)", "± 0.5")
    assert facts["Remark"] == "why"
    assert facts["Address"] == "#claim-c-38"
    assert details.locator("table.claim-rows tbody tr").count() == 2
    assert view.evaluate("document.activeElement.tagName") == "H3"
    top = view.locator("#claim-c-38").bounding_box()["y"]
    assert 0 <= top < 900, "the claim lies where it is seen"
    # A link to another claim on the same page, as from a table of failing claims.
    view.evaluate("location.hash = '#claim-c-2'")
    view.get_by_role("region", name="Details of the claim c-2").wait_for()
    assert view.locator(".claim-panel").count() == 1
    view.evaluate("location.hash = '#claim-c-1'")
    view.get_by_text("lie in a file that is missing").wait_for()


def test_a_claim_opens_and_closes_by_keyboard(view: Any, address: str) -> None:
    view.goto(f"{address}#q=c-12")
    claim = view.get_by_role("button", name="statement 12")
    claim.focus()
    view.keyboard.press("Enter")
    view.get_by_role("region", name="Details of the claim c-12").wait_for()
    assert claim.get_attribute("aria-expanded") == "true"
    assert view.url.endswith("#q=c-12&claim=c-12")
    view.keyboard.press("Escape")
    assert view.locator(".claim-panel").count() == 0
    assert view.evaluate("document.activeElement.textContent") == "statement 12"
    view.keyboard.press("Space")
    view.get_by_role("region").get_by_text("Behind the measured value").wait_for()
    view.get_by_role("button", name="Close").click()
    assert claim.get_attribute("aria-expanded") == "false"


def test_the_way_back_leads_through_the_opened_claims(view: Any, address: str) -> None:
    view.goto(address)
    view.get_by_role("button", name="statement 2", exact=True).click()
    view.get_by_role("button", name="statement 4", exact=True).click()
    assert view.url.endswith("#claim-c-4")
    view.go_back()
    view.get_by_role("region", name="Details of the claim c-2").wait_for()


def test_without_scripts_the_tables_stand_in_folds(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1200, "height": 900})
    plain = context.new_page()
    plain.goto(f"{address}#claim-c-39")
    assert plain.locator("summary").count() == 2
    assert plain.locator("#claim-c-39").is_visible(), "the address of a claim opens its fold"
    assert not plain.locator("#claim-c-2").is_visible()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_cards(browser: Any, address: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme=scheme)
    phone = context.new_page()
    phone.goto(f"{address}#claim-c-2")
    phone.get_by_text("Behind the measured value").wait_for()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 400
    assert phone.locator("#claim-c-2 td").first.bounding_box()["x"] == phone.locator("#claim-c-2").bounding_box()["x"]
    assert phone.locator("#claims thead").first.is_hidden()
    context.close()


def test_a_table_is_saved_as_csv(view: Any, address: str, tmp_path: Path) -> None:
    view.goto(address)
    with view.expect_download() as download:
        view.locator("#tab-small a.csv").click()
    assert download.value.suggested_filename == "tab-small.csv"
    download.value.save_as(tmp_path / "saved.csv")
    assert (tmp_path / "saved.csv").read_bytes().decode("utf-8-sig") == 'a\r\n"x ""y"", z"\r\n'
