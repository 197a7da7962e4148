"""Tables: every cell shows as the text it is, in HTML and in MyST."""

from __future__ import annotations

import math

import pandas as pd
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gradleak.show.tables import Cell, Table


def cells_of(page: str) -> list[str]:
    """Return the texts of the cells in HTML."""
    return [cell.get_text().rstrip("\n") for cell in BeautifulSoup(page, "html.parser").select("th, td")]


def body(table: Table) -> str:
    """Return the pipe table inside the directive."""
    lines = table._repr_markdown_().splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


texts = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_any_text_shows_as_it_is(cells: list[tuple[str, str]]) -> None:
    table = Table(pd.DataFrame(cells, columns=["one", "two"]), "caption", "tab-x")
    flat = ["one", "two", *(cell for row in cells for cell in row)]
    assert cells_of(table._repr_html_()) == flat
    rendered = MarkdownIt("commonmark").enable("table").render(body(table))
    assert cells_of(rendered) == flat


def test_the_directive_and_the_notes() -> None:
    frame = pd.DataFrame({"a|b": ["x", "y"], "n": [1, 20]})
    table = Table(frame, "What <is> it", "tab-x", notes="see *there* & here")
    text, page = table._repr_markdown_(), table._repr_html_()
    assert text.startswith(
        ":::{table} What \\<is> it\n:name: tab-x\n:class: gradleak-table\n\n| a\\|b | n |\n| --- | ---: |\n| x | 1 |"
    )
    assert "{.gradleak-notes}\nsee \\*there\\* & here\n" in text
    for part in (
        '<div class="gradleak-table" style="overflow-x:auto">', "What &lt;is&gt; it", "<p>see *there* &amp; here</p>",
        'text-align:right">20<', 'text-align:left">x<',
    ):  # fmt: skip
        assert part in page
    several = Table(frame, "c", "n", notes=["One & two", "", "*three*"])
    assert "<ul><li>One &amp; two</li><li>*three*</li></ul>" in several._repr_html_()
    many = Table(frame, "c", "n", notes=["a", "b", "c", "d"])
    assert "<details><summary>4 notes on this table</summary><ul>" in many._repr_html_()
    assert ":::{dropdown} 4 notes on this table\n\n{.gradleak-notes}\n- a" in many._repr_markdown_()
    folded = Table(frame, "c", "n", notes=many.notes, fold="All of it")
    assert folded._repr_html_().startswith("<details><summary>All of it</summary>")
    assert folded._repr_markdown_().startswith("::::{dropdown} All of it\n:::{table}")
    assert folded._repr_markdown_().count("dropdown") == 1, "notes in a folded table are not folded again"


def test_numbers_are_formatted_and_whole_ones_stay_whole() -> None:
    frame = pd.DataFrame({"n": [1, 2], "share": [0.25, math.nan], "text": ["x", "y"]})
    table = Table(frame, "c", "n", formats={"share": ".0%", "text": "not used on text"})
    assert cells_of(table._repr_html_()) == ["n", "share", "text", "1", "25%", "x", "2", "–", "y"]
    assert "| ---: | ---: | --- |" in body(table)
    others = Table(pd.DataFrame({"a": pd.Series([None, pd.NA, True, 0.1234], dtype=object)}), "c", "n")
    assert cells_of(others._repr_html_()) == ["a", "–", "–", "True", "0.1234"]
    empty = Table(pd.DataFrame({"a": []}), "nothing", "tab-e")
    assert cells_of(empty._repr_html_()) == ["a"]
    assert "| --- |" in body(empty)
    assert repr(empty).startswith("nothing\n")


def test_badges_keep_their_text_and_links_are_in_the_book_alone() -> None:
    last = "not reproduced (line search)"
    verdicts = [Cell("trend: agrees", "trend: agrees", "claim:one"), Cell(last, badge=last)]
    frame = pd.DataFrame({"verdict": verdicts, "a|b": [Cell("x`<y> | z", link="bookfile:records/p/s.json"), "1"]})
    table = Table(frame, "c", "n", kind="claims")
    page, text = table._repr_html_(), table._repr_markdown_()
    assert '<span class="badge badge-trend-agrees">trend: agrees</span>' in page
    assert '<div class="gradleak-table claims"' in page
    assert "records/p" not in page
    assert "| [{claim}`trend: agrees <one>`]{.badge .badge-trend-agrees} | {bookfile}`x y \\| z <records" in text
    assert "| [not reproduced (line search)]{.badge .badge-not-reproduced} | 1 |" in text
    assert ":class: gradleak-table claims" in text
