"""Verdicts as a reader sees them: published tables cell by cell, the scoreboard, and what fails with its reason."""

from __future__ import annotations

from typing import Any

from gradleak import claims
from gradleak.claims import Line, shown
from tests.claims.test_judging import ROWS, claim, record

WITHIN = "Holds if (a distance ± is from the paper's value; a cell leads to its own condition):"


def line(**changes: Any) -> Line:
    one = claim(**changes)
    return Line(claims.judge(one, record(ROWS)), claims.judge(one, None))


def cell(row: str, column: str, **changes: Any) -> Line:
    return line(id=row + column, table="Table 1: nets", group="g", row=row, column=column, **changes)


def test_a_published_table_is_shown_cell_by_cell() -> None:
    judged = [
        cell("a", "value", unit="dB"),
        cell("a", "other", published=9.0, note="a reason"),
        cell("b", "value", unit="dB", published=1.0, better="higher", note="a reason"),
        line(id="sentence"),
    ]
    both = shown.tables(judged, "", "tab-x")
    table, rest = both.tables
    cells = table.frame.to_numpy().tolist()
    assert [list(map(str, row)) for row in cells] == [["g", "a", "2 (2)", "2 (9)"], ["", "b", "2 (1)", ""]]
    assert list(table.frame.columns) == [" ", "", "value, dB", "other"]
    assert [one.badge for one in (*cells[0][2:], cells[1][2])] == ["reproduced", "not reproduced", "better"]
    assert table.caption.startswith("Table 1: nets: 3 claims, 1 better, 1 reproduced, 1 not reproduced.")
    assert "green reproduced, red not reproduced." in table.caption
    rules = f"{WITHIN} value ± 0.5 or ± 0.5 or higher; other ± 0.5."
    assert table.notes == [rules, "g, a, other; g, b, value: a reason"]
    assert (table.name, rest.name) == ("tab-x-1", "tab-x")
    text, page = both._repr_markdown_(), both._repr_html_()
    good, bad = "{.badge .badge-reproduced}", "{.badge .badge-not-reproduced}"
    assert f"| g | a | [{{claim}}`2 (2) <avalue>`]{good} | [{{claim}}`2 (9) <aother>`]{bad} |" in text
    assert "{.gradleak-notes}\n- " + WITHIN in text
    assert "| --- | --- | ---: | ---: |" in text
    assert '<td style="text-align:right"><span class="badge badge-better">2 (1)</span></td>' in page
    assert page.count("<table>") == text.count(":::{table}") == 2
    assert "2 (9)" in repr(both)


def test_a_remark_names_what_it_is_said_of_and_nothing_else() -> None:
    def notes(*judged: Line) -> str:
        return " ".join(shown.tables(list(judged), "", "tab-x").tables[0].remarks)

    assert notes(line(note="why"), line(id="d", place="Table 2")) == "Table 1: why"
    assert notes(line(note="why"), line(id="d", statement="other")) == "s: why"
    both = [line(id=name, statement=name, note="why") for name in "ab"]
    assert notes(*both) == "why"
    assert notes(*both, line(id="c", place="Table 2")) == "Table 1: why"
    assert notes(*both, line(id="c", statement="c")) == "a; b: why"
    rest = [line(id=name, statement=name, note="why") for name in "de"]
    assert notes(*both, *rest, line(id="c", statement="c")) == "4 of these 5 claims: why"
    row = [cell("a", name, note="why") for name in ("v", "w")]
    assert notes(*row) == f"{WITHIN} v ± 0.5; w ± 0.5. why"
    assert notes(*row, cell("b", "v")) == f"{WITHIN} v ± 0.5; w ± 0.5. g, a: why"


def test_causes_are_counted() -> None:
    judged = [
        line(id="1"),
        line(id="2", published=9.0, note="why", cause="chance"),
        line(id="3", published=9.0, needs={"count": 99}),
        line(id="4", published=9.0, ours="prediction"),
        line(id="5", published=9.0, ours="finding", note="why", cause="chance"),
    ]
    table = claims.causes_table(judged)
    found = {row[0]: (row[2], row[3]) for row in table.frame.itertuples(index=False)}
    assert found == {"chance": (1, 1), "our prediction was wrong": (0, 1), "too few samples": (1, 0)}
    assert table.caption.startswith("The 4 claims that fail or disagree, by cause")
    assert claims.causes_table([judged[0]]).caption.startswith("The 0 claims")
