"""Verdicts as a reader sees them: a page's box and published tables, the scoreboard, a claim's page, and the lists."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gradleak import claims, paths
from gradleak.book import scoreboard
from gradleak.claims import Line, listed, rounding, shown
from gradleak.claims.model import Measure, Rule
from gradleak.claims.opening import NOTHING, Opening
from gradleak.runs import records, runner
from gradleak.show import provenance
from gradleak.studies import Study
from tests.claims.test_judging import ROWS, claim, record
from tests.recorded import record_of

WITHIN = "Holds if (a distance ± is from the paper's value; a cell leads to its own condition):"


def line(**changes: Any) -> Line:
    one = claim(**changes)
    return Line(claims.judge(one, record(ROWS)), claims.judge(one, None))


def cell(row: str, column: str, **changes: Any) -> Line:
    return line(id=row + column, table="Table 1: nets", group="g", row=row, column=column, **changes)


def entry(one: Line) -> dict[str, Any]:
    return listed.listed(one, "current")


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
    rules = f"{WITHIN} value ± 0.5 or ± 0.5 or higher; other ± 0.5."
    assert table.notes == [rules, "g, a, other; g, b, value: a reason"]
    assert (table.name, rest.name) == ("tab-x-1", "tab-x")
    text, page = both._repr_markdown_(), both._repr_html_()
    good, bad = "{.badge .badge-reproduced}", "{.badge .badge-not-reproduced}"
    assert f"| g | a | [{{claim}}`2 (2) <avalue>`]{good} | [{{claim}}`2 (9) <aother>`]{bad} |" in text
    assert '<td style="text-align:right"><span class="badge badge-better">2 (1)</span></td>' in page
    assert page.count("<table>") == text.count(":::{table}") == 2


def test_a_remark_names_what_it_is_said_of_and_nothing_else() -> None:
    def notes(*judged: Line) -> str:
        return " ".join(shown.tables(list(judged), "", "tab-x").tables[0].remarks)

    both, rest = ([line(id=name, statement=name, note="why") for name in names] for names in ("ab", "de"))
    row, rules = [cell("a", name, note="why") for name in ("v", "w")], f"{WITHIN} v ± 0.5; w ± 0.5."
    for judged, said in (
        ([line(note="why"), line(id="d", place="Table 2")], "Table 1: why"),
        ([line(note="why"), line(id="d", statement="other")], "s: why"),
        (both, "why"),
        ([*both, line(id="c", place="Table 2")], "Table 1: why"),
        ([*both, line(id="c", statement="c")], "a; b: why"),
        ([*both, *rest, line(id="c", statement="c")], "4 of these 5 claims: why"),
        (row, f"{rules} why"),
        ([*row, cell("b", "v")], f"{rules} g, a: why"),
    ):
        assert notes(*judged) == said


def test_causes_and_verdicts_are_counted() -> None:
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
    text = scoreboard.bars(["p", "r"], judged)
    assert text.count("gradleak-bar") == 2, "one of a paper, and one of ours"
    assert '<li><i class="badge-not-reproduced"></i>1 not reproduced</li>' in text


def test_the_scoreboard_has_a_row_for_every_claim_that_links_to_its_page() -> None:
    kinds = ("scale", "scale", "wording")
    bad = line(id="bad-α", published=9.0, note="why", cause="chance", changed=[{"kind": k, "why": "w"} for k in kinds])
    judged = {
        "one": [line(id="good", statement="a < b & c"), bad],
        "two": [line(id="ours", paper="q", study="two", ours="prediction", published=9.0)],
    }
    pages: Any = [SimpleNamespace(name=name, paper="p", title=f"The page {name}") for name in judged]
    first, second, ours = scoreboard.rows(pages, judged).to_dict("records")
    assert first["verdict"] == '<span class="badge badge-reproduced">reproduced</span>'
    assert first["claim"] == '<a href="../claims/good.html">a &lt; b &amp; c</a>'
    assert first["page"] == '<a href="executed/p/one.html">one</a>'
    assert (first["published"], first["measured"], first["holds if"]) == ("2", "2 ± 1.41 (n = 2)", "± 0.5")
    assert (second["whose"], second["cause"], second["changed"]) == ("the paper's", "chance", "scale, wording")
    assert (ours["whose"], ours["cause"]) == ("our prediction", "our prediction was wrong")


def test_lists_records_and_a_page_of_each_claim_lie_beside_the_book(toy: Study) -> None:
    def files() -> dict[str, bytes]:
        return scoreboard.files([toy], {"toy": claims.lines({}, "toy")})

    without = files()
    assert set(without) == {"claims.json", "claims.csv", "claims/toy-sum.html"}
    assert json.loads(without["claims.json"])[0]["record"] == "not recorded"
    kept = runner.run_study(toy, toy.Parameters(samples=4), jobs=1)
    records.write(kept, records.file_of("toy"))
    made = files()
    assert made["records/toy2020/toy.json"] == records.file_of("toy").read_bytes(), "byte by byte"
    (only,) = json.loads(made["claims.json"])
    assert (only["id"], only["record"], only["verdict"]) == ("toy-sum", "current", "reproduced")
    for words in ('<a href="../records/toy2020/toy.json">', "Behind the measured value"):
        assert words in made["claims/toy-sum.html"].decode()
    run = {"page": "toy", "trials": 4, "of": 4, "same": 1, "within": 2, "differs": 1}
    verdict = {"claim": "toy-sum", "page": "toy", "recorded": "reproduced", "found": "not reproduced"}
    content = {"runs": [run | {"machine": "A card"}], "verdicts": [verdict | {"machine": "A card"}]}
    (paths.results() / "rounding.json").write_text(json.dumps(content))
    rounding._content.cache_clear()
    sentence = "Rounding decides this verdict: it was “not reproduced” when the trials ran again on A card."
    pages = [made["claims/toy-sum.html"].decode(), files()["claims/toy-sum.html"].decode()]
    assert [page.count("Run again") for page in pages] == [0, 1]
    assert sentence in pages[1]
    assert sentence in claims.verdicts(kept).tables[0].remarks


def test_an_entry_says_what_was_measured_and_how() -> None:
    changes: dict[str, Any] = {
        "published": 9.0, "unit": "dB", "note": "why", "cause": "chance", "protocol": "line search",
        "needs": {"count": 1, "nets": ["a", "b"]}, "setting": {"net": ["a", "b"], "size": 8}, "used": {"size": 8},
        "immaterial": {"nets": {"value": "a", "why": "one is enough"}},
        "changed": [{"kind": "scale", "why": "w"}, {"kind": "wording", "why": "v"}],
    }  # fmt: skip
    judged = claims.judge(claim(**changes), record(ROWS).model_copy(update={"parameters": {"count": 1, "nets": "a"}}))
    found = entry(Line(judged, claims.judge(claim(**changes), None)))
    expected = {
        "whose": "the paper's", "published": 9.0, "value": 2.0, "n": 2, "verdict": "not reproduced", "cause": "chance",
        "spread": pytest.approx(math.sqrt(2)), "measure": "the mean of value where net = a", "record": "current",
        "setting": "net = a or b, size = 8", "needs": "count ≥ 1, nets = a and b", "this_run": None,
        "immaterial": "nets = a: one is enough",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert [change["kind"] for change in found["changed"]] == ["scale", "wording"]


def test_the_lists_can_be_read_back() -> None:
    awkward = line(statement='a "b", c', published="over 98", rule=Rule(at_least=1), note="ü\nx")
    missing = line(id="nan", measure=Measure(where={"net": "c"}, column="value", reduce="mean"))
    entries = [entry(awkward), entry(missing)]
    assert json.loads(listed.as_json(entries)) == entries
    rows = list(csv.DictReader(io.StringIO(listed.as_csv(entries))))
    assert [list(row) for row in rows] == [list(listed.ABOUT)] * 2
    assert (rows[0]["statement"], rows[0]["published"], rows[0]["note"]) == ('a "b", c', "over 98", "ü\nx")
    assert (rows[1]["value"], rows[1]["cause"], rows[0]["cause"]) == ("nan", "", "")


def test_the_rows_behind_a_claim_are_few_and_tell_themselves_apart() -> None:
    made: list[dict[str, object]] = [
        {"net": "a", "image": number, "value": number / 7, "text": "x" * 50, "good": True} for number in range(30)
    ]
    rows, total = listed.rows_behind(claim(), record(made))
    assert list(rows) == ["image", "value"], "columns that are the same in all rows, or long, are left out"
    assert (len(rows), total) == (listed.MOST_ROWS, 30)
    assert rows.to_numpy()[:2].tolist() == [["0", "0"], ["1", "0.14286"]]


def test_a_page_s_box_says_the_finding_with_its_numbers_and_what_depends_on_rounding() -> None:
    recorded = record_of("theorem1")
    box = claims.opening(provenance.shown(recorded.model_copy(update={"profile": "quick"})))
    assert box.summary is not None
    key = claims.judgements(recorded)[box.summary.claim]
    (ours, what), (_, of_paper), (count, _) = box.numbers
    assert ours.startswith(key.text)
    assert box.summary.what in what
    assert key.claim.place in of_paper
    assert count == f"{key.count:,}"
    for text in (box._repr_markdown_(), box._repr_html_(), repr(box)):
        assert ours in text
        assert "reproduced" in text
    assert box.sentence in box._repr_markdown_()
    mine = recorded.model_copy(update={"profile": "custom"})
    assert "in this run" in claims.opening(provenance.shown(mine)).numbers[-1][1]
    empty = Opening(provenance.shown(recorded), box.judged, None)
    assert NOTHING in empty._repr_html_()
    assert not empty.numbers

    colours = set(re.findall(r'class="(badge-[\w-]+)"', box._repr_html_()))
    assert len(colours) == len({line.verdict for line in box.judged})
    sheet = (paths.book() / "_static" / "gradleak.css").read_text("utf-8")
    assert not [name for name in colours if not re.search(rf"\.{name}\b[^{{}}]*{{ background", sheet)]

    assert re.search(r" Run on [2-9] kinds of machine; no verdict depends on rounding\.$", box.note)
    assert box.note in box._repr_html_()
    changed = {verdict["claim"] for verdict in json.loads((paths.results() / "rounding.json").read_text())["verdicts"]}
    moved = replace(box, judged=[line for line in claims.lines({}, "gradinversion") if line.claim.id in changed])
    assert f"; {len(moved.judged)} verdicts depend on rounding." in moved.note
