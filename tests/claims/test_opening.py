"""The box with which a page opens: finding, key number, the paper's number, n, and a bar of the verdicts."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from gradleak import claims, paths
from gradleak.claims.opening import NOTHING, Opening
from gradleak.runs import records
from gradleak.show import provenance

recorded = records.recorded("theorem1")
assert recorded is not None
RECORD = recorded
BOX = claims.opening(provenance.shown(RECORD.model_copy(update={"profile": "quick"})))


def test_a_box_says_the_finding_and_its_numbers() -> None:
    known = claims.judgements(RECORD)
    assert BOX.summary is not None
    key = known[BOX.summary.claim]
    (ours, what), (_, of_paper), (count, _) = BOX.numbers
    assert ours.startswith(key.text)
    assert BOX.summary.what in what
    assert key.claim.place in of_paper
    assert count == f"{key.count:,}"
    for text in (BOX._repr_markdown_(), BOX._repr_html_(), repr(BOX)):
        assert ours in text
        assert "reproduced" in text
    assert BOX.sentence in BOX._repr_markdown_()
    mine = RECORD.model_copy(update={"profile": "custom"})
    assert "in this run" in claims.opening(provenance.shown(mine)).numbers[-1][1]
    empty = Opening(provenance.shown(RECORD), claims.lines({}, "theorem1"), None)
    assert NOTHING in empty._repr_html_()
    assert not empty.numbers


def test_the_style_sheet_has_the_colour_of_every_verdict() -> None:
    found = set(re.findall(r'class="(badge-[\w-]+)"', BOX._repr_html_()))
    verdicts = {line.verdict for line in BOX.judged}
    assert len(found) == len(verdicts)
    sheet = (paths.book() / "_static" / "gradleak.css").read_text("utf-8")
    assert not [name for name in found if not re.search(rf"\.{name}\b[^{{}}]*{{ background", sheet)]


def test_a_box_says_on_how_many_machines_the_page_ran_and_what_depends_on_rounding() -> None:
    assert re.search(r" Run on [2-9] kinds of machine; no verdict depends on rounding\.$", BOX.note)
    assert BOX.note in BOX._repr_html_()
    changed = {verdict["claim"] for verdict in json.loads((paths.results() / "rounding.json").read_text())["verdicts"]}
    moved = replace(BOX, judged=[line for line in claims.lines({}, "gradinversion") if line.claim.id in changed])
    assert f"; {len(moved.judged)} verdicts depend on rounding." in moved.note
