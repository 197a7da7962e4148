"""The search of a book that is opened from a file, in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradleak import paths
from gradleak.book.browser import chromium, executable

REQUIRED = os.environ.get("GRADLEAK_REQUIRE_BROWSER") == "1"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not REQUIRED and executable() is None, reason="no Chromium on this machine"),
]
CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["myst_parser", "search_texts"]
myst_enable_extensions = ["dollarmath"]
html_static_path = [{static!r}]
"""
PAGES = {
    "index": "# Index\n\n```{toctree}\n:glob:\n*\n```\n",
    "british": "# Noise\n\nThis defence changes **what**\nleaks: $\\gamma = 1$. See [the other](american.md).\n\n"
    "## How much\n\nMuch.\n",
    "american": "# Pruning\n\nAnother defense. An average, not federated.\n",
    "rounds": "# Rounds\n\n" + 50 * "Words. " + "The server does federated averaging. " + 50 * "Words. ",
    "pictures": "# Flowers-17\n\nPictures of plants, one flower on each.\n",
    "adapted": "# Adapted\n\nAn explorative page on adapters for Flower.\n",
}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("book")
    places = {"extensions": str(paths.book() / "_ext"), "static": str(paths.book() / "_static")}
    (root / "conf.py").write_text(CONF.format(**places))
    for name, text in PAGES.items():
        (root / f"{name}.md").write_text(text)

    def build() -> None:
        command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(root), str(root / "out")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr

    build()
    # The others are not written again.
    (root / "british.md").write_text(PAGES["british"].replace("Much.", "Very much."))
    build()
    return root / "out"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert executable(), "a browser is required here, and there is none"
    with chromium() as view:
        yield view


def searched(browser: Any, book: Path, text: str) -> tuple[dict[str, str], str]:
    """Return each page that a search finds, with its excerpt, and what the search says."""
    view = browser.new_page()
    complaints: list[str] = []
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on("console", lambda message: complaints.append(message.text))
    view.goto(f"{(book / 'search.html').as_uri()}?q={text}")
    view.locator(".search-summary:not(:empty)").wait_for()
    links = view.eval_on_selector_all("#search-results li a", "all => all.map(one => one.getAttribute('href'))")
    excerpts = view.locator("#search-results li p.context").all_inner_texts()
    said = view.inner_text(".search-summary")
    view.close()
    assert complaints == []
    return dict(zip(links, excerpts, strict=True)), said


def test_a_page_is_found_with_an_excerpt_of_its_words(browser: Any, book: Path) -> None:
    found, said = searched(browser, book, "leaks")
    assert found == {"british.html": "Noise This defence changes what leaks: . See the other. How much Very much."}
    assert said == "Search finished, found 1 page(s) matching the search query."
    assert searched(browser, book, "how much")[0]["british.html#how-much"].endswith("How much Very much.")
    (long,) = searched(browser, book, "server")[0].values()
    assert long.startswith("…Words. ")
    assert "The server does federated averaging." in long
    assert long.endswith("…")
    assert len(long) < 250


@pytest.mark.parametrize("text", ["defence", "defense", "Defences"])
def test_both_spellings_find_the_same_pages(browser: Any, book: Path, text: str) -> None:
    found, said = searched(browser, book, text)
    assert set(found) == {"british.html", "american.html"}
    assert "Searched for as well: " in said


def test_a_name_that_the_book_does_not_use_leads_to_the_phrase_that_it_uses(browser: Any, book: Path) -> None:
    found, said = searched(browser, book, "FedAvg")
    assert list(found) == ["rounds.html"]
    assert "federated averaging" in found["rounds.html"]
    assert said.endswith("No page holds “FedAvg”. Searched for as well: “federated averaging”.")
    assert list(searched(browser, book, "LoRA")[0]) == ["adapted.html"], "a part of another word is no mention"


def test_a_page_with_the_word_as_it_stands_comes_first(browser: Any, book: Path) -> None:
    assert next(iter(searched(browser, book, "Flower")[0])) == "adapted.html"
    found, _ = searched(browser, book, "flower")
    assert next(iter(found)) == "pictures.html"
    assert found["pictures.html"] == "Flowers-17 Pictures of plants, one flower on each."


def test_what_no_page_holds_is_not_found(browser: Any, book: Path) -> None:
    found, said = searched(browser, book, "ViT")
    assert found == {}
    assert said.startswith("Your search did not match any documents.")
