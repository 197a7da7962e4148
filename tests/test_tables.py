"""One renderer for notebooks and the book."""

from __future__ import annotations

import pandas as pd

from gradleak.book.tables import Table


def table(notes: str = "") -> Table:
    frame = pd.DataFrame({"name|x": ["a*b", None], "n": ["1.5", "2e-07"], "share": ["3 %", "–"]})
    return Table(frame, caption="What <is> it", name="tab-x", notes=notes)


def test_html_is_escaped_and_scrolls() -> None:
    html = table("a & b")._repr_html_()
    assert "What &lt;is&gt; it" in html
    assert "a &amp; b" in html
    assert "overflow-x:auto" in html
    assert html.count("<tr>") == 3


def test_markdown_is_a_named_table_with_escapes() -> None:
    text = table("see *there*")._repr_markdown_()
    lines = text.splitlines()
    assert lines[0] == ":::{table} What \\<is> it"
    assert ":name: tab-x" in lines
    assert "| name\\|x | n | share |" in lines
    assert "| --- | ---: | ---: |" in lines
    assert "| a\\*b | 1.5 | 3 % |" in lines
    assert "| – | 2e-07 | – |" in lines
    assert "see \\*there\\*" in text


def test_text_for_a_terminal() -> None:
    assert "a*b" in repr(table())


def test_badges_keep_their_text_and_get_a_class() -> None:
    frame = pd.DataFrame({"verdict": ["trend only (agrees)", "reproduced"], "n": [1, 2]})
    badged = Table(frame, "c", "n", badges="verdict", kind="claims")
    assert '<span class="badge badge-trend-only">trend only (agrees)</span>' in badged._repr_html_()
    assert '<div class="gradleak-table claims"' in badged._repr_html_()
    assert "| [reproduced]{.badge .badge-reproduced} | 2 |" in badged._repr_markdown_()
    assert ":class: gradleak-table claims" in badged._repr_markdown_()
