"""Tables: every cell shows as the text it is, in HTML and in MyST."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gradleak.show.tables import Table


class Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and self.tags[-1] in ("td", "th"):
            self.cells[-1] += data.rstrip("\n")


def body(table: Table) -> str:
    """Return the pipe table inside the directive."""
    lines = table._repr_markdown_().splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


texts = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_any_text_shows_as_it_is(cells: list[tuple[str, str]]) -> None:
    table = Table(pd.DataFrame(cells, columns=["one", "two"]), "caption", "tab-x")
    flat = ["one", "two", *(cell for row in cells for cell in row)]
    assert Cells(table._repr_html_()).cells == flat
    rendered = MarkdownIt("commonmark").enable("table").render(body(table))
    assert Cells(rendered).cells == flat


def test_the_directive() -> None:
    table = Table(pd.DataFrame({"a|b": ["x", "y"], "n": [1, 20]}), "A caption", "tab-x", notes="And notes")
    text = table._repr_markdown_()
    assert text.startswith(
        ":::{table} A caption\n:name: tab-x\n:class: gradleak-table\n\n| a\\|b | n |\n| --- | ---: |\n| x | 1 |"
    )
    assert text.rstrip().endswith("And notes")
    page = table._repr_html_()
    assert '<div class="gradleak-table" style="overflow-x:auto">' in page
    assert "<p>And notes</p>" in page
    assert 'text-align:right">20<' in page
    assert 'text-align:left">x<' in page


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (math.nan, "–"), (pd.NA, "–"), (3, "3"), (True, "True"), (0.1234, "0.1234")]
)
def test_cells_without_a_format(value: object, text: str) -> None:
    assert Cells(Table(pd.DataFrame({"a": pd.Series([value], dtype=object)}), "c", "n")._repr_html_()).cells == [
        "a",
        text,
    ]


def test_formats_and_whole_numbers_beside_others() -> None:
    frame = pd.DataFrame({"n": [1, 2], "share": [0.25, math.nan], "text": ["x", "y"]})
    table = Table(frame, "c", "n", formats={"share": ".0%", "text": "not used on text"})
    assert Cells(table._repr_html_()).cells == ["n", "share", "text", "1", "25%", "x", "2", "–", "y"]
    assert "| ---: | ---: | --- |" in body(table)


def test_an_empty_table_and_plain_text() -> None:
    empty = Table(pd.DataFrame({"a": []}), "nothing", "tab-e")
    assert Cells(empty._repr_html_()).cells == ["a"]
    assert "| --- |" in body(empty)
    assert repr(Table(pd.DataFrame({"a": [1]}), "Caption", "n")).startswith("Caption\n")


def test_badges_keep_their_text_and_get_a_class() -> None:
    frame = pd.DataFrame({"verdict": ["trend: agrees", "not reproduced (line search)"], "n": [1, 2]})
    badged = Table(frame, "c", "n", marks=[[word, ""] for word in frame["verdict"]], kind="claims")
    assert '<span class="badge badge-trend-agrees">trend: agrees</span>' in badged._repr_html_()
    assert '<div class="gradleak-table claims"' in badged._repr_html_()
    assert "| [not reproduced (line search)]{.badge .badge-not-reproduced} | 2 |" in badged._repr_markdown_()
    assert ":class: gradleak-table claims" in badged._repr_markdown_()


def test_captions_and_notes_are_text_too() -> None:
    table = Table(pd.DataFrame({"a": [1]}), "What <is> it", "tab-x", notes="see *there* & here")
    assert ":::{table} What \\<is> it" in table._repr_markdown_()
    assert "see \\*there\\*" in table._repr_markdown_()
    assert "What &lt;is&gt; it" in table._repr_html_()
    assert "*there* &amp; here" in table._repr_html_()


def test_a_folded_table_is_hidden_until_it_is_opened() -> None:
    table = Table(pd.DataFrame({"a": [1]}), "Caption.", "tab-folded", fold="All rows")
    assert table._repr_html_().startswith("<details><summary>All rows</summary>")
    text = table._repr_markdown_()
    assert text.startswith("::::{dropdown} All rows\n:::{table}")
    assert text.rstrip().endswith("::::")


def test_several_notes_are_a_list_and_one_is_a_paragraph() -> None:
    frame = pd.DataFrame({"a": [1]})
    several = Table(frame, "c", "n", notes=["One & two", "", "*three*"])
    assert "{.gradleak-notes}\n- One & two\n- \\*three\\*\n" in several._repr_markdown_()
    assert "<ul><li>One &amp; two</li><li>*three*</li></ul>" in several._repr_html_()
    one = Table(frame, "c", "n", notes=["alone"])
    assert "{.gradleak-notes}\nalone\n" in one._repr_markdown_()
    assert one._repr_html_().endswith("<p>alone</p>")
    assert "gradleak-notes" not in Table(frame, "c", "n", notes=[])._repr_markdown_()


def test_links_are_in_the_book_and_not_in_a_notebook() -> None:
    frame = pd.DataFrame({"verdict": ["fails", "holds"], "a|b": ["x`<y> | z", "1"]})
    links = [["claim:one", "bookfile:records/p/s.json"], ["", ""]]
    table = Table(frame, "c", "n", marks=[["fails", ""], ["holds", ""]], links=links)
    text = table._repr_markdown_()
    assert "| [{claim}`fails <one>`]{.badge .badge-fails} | {bookfile}`x y \\| z <records/p/s.json>` |" in text
    assert "| [holds]{.badge .badge-holds} | 1 |" in text
    assert "one" not in table._repr_html_()


def test_many_notes_are_folded() -> None:
    frame = pd.DataFrame({"a": [1]})
    few, many = (Table(frame, "c", "n", notes=[f"note {number}" for number in range(count)]) for count in (3, 4))
    assert "dropdown" not in few._repr_markdown_()
    assert ":::{dropdown} 4 notes on this table\n\n{.gradleak-notes}\n- note 0" in many._repr_markdown_()
    assert "<details><summary>4 notes on this table</summary><ul>" in many._repr_html_()
    folded = Table(frame, "c", "n", notes=many.notes, fold="All of it")
    assert folded._repr_markdown_().count("dropdown") == 1
