"""The scoreboard: every claim is a row and has a page, the failing ones are grouped, and files lie beside the book."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from gradleak import claims, paths
from gradleak.book import scoreboard
from gradleak.claims import Line, rounding
from gradleak.runs import records, runner
from gradleak.studies import Study
from tests.claims.test_shown import line


def page(name: str, paper: str) -> Any:
    return SimpleNamespace(name=name, paper=paper, title=f"The page {name}")


def judged() -> dict[str, list[Line]]:
    first = [
        line(id="good", statement="a < b & c"),
        line(
            id="bad-α", published=9.0, note="why", cause="chance",
            changed=[{"kind": "scale", "why": "w"}, {"kind": "scale", "why": "v"}, {"kind": "wording", "why": "u"}],
        ),
    ]  # fmt: skip
    second = [line(id="ours", paper="q", study="two", ours="prediction", published=9.0)]
    return {"one": first, "two": second, "none": []}


PAGES = [page("one", "p"), page("two", "q"), page("none", "r")]
LINES = [one for own in judged().values() for one in own]


def test_every_claim_is_a_row_that_links_to_its_page() -> None:
    good, bad, ours = scoreboard.rows(PAGES, judged()).to_dict("records")
    assert good["verdict"] == '<span class="badge badge-reproduced">reproduced</span>'
    assert good["claim"] == '<a href="../claims/good.html">a &lt; b &amp; c</a>'
    assert good["page"] == '<a href="executed/p/one.html">one</a>'
    assert (good["published"], good["measured"], good["holds if"]) == ("2", "2 ± 1.41 (n = 2)", "± 0.5")
    assert (bad["whose"], bad["cause"], bad["changed"]) == ("the paper's", "chance", "scale, wording")
    assert (ours["whose"], ours["cause"]) == ("our prediction", "our prediction was wrong")


def test_bars_count_the_claims_of_a_paper_and_ours() -> None:
    text = scoreboard.bars(["p", "q", "r"], LINES)
    assert text.count("gradleak-bar") == 2
    assert '<li><i class="badge-not-reproduced"></i>1 not reproduced</li>' in text


def test_lists_details_and_records_lie_beside_the_book(toy: Study) -> None:
    without = scoreboard.files([toy], {"toy": claims.lines({}, "toy")})
    assert set(without) == {"claims.json", "claims.csv", "claims/toy-sum.html"}
    assert json.loads(without["claims.json"])[0]["record"] == "not recorded"
    records.write(runner.run_study(toy, toy.Parameters(samples=4), jobs=1), records.file_of("toy"))
    files = scoreboard.files([toy], {"toy": claims.lines({}, "toy")})
    assert files["records/toy2020/toy.json"] == records.file_of("toy").read_bytes(), "byte by byte"
    (entry,) = json.loads(files["claims.json"])
    assert (entry["id"], entry["record"], entry["verdict"]) == ("toy-sum", "current", "reproduced")
    assert b'<a href="../records/toy2020/toy.json">' in files["claims/toy-sum.html"]
    assert b"Behind the measured value" in files["claims/toy-sum.html"]


def test_a_claim_says_where_it_had_another_verdict(toy: Study) -> None:
    records.write(runner.run_study(toy, toy.Parameters(samples=4), jobs=1), records.file_of("toy"))
    judged = {"toy": claims.lines({}, "toy")}
    assert b"Run again" not in scoreboard.files([toy], judged)["claims/toy-sum.html"]
    run = {"page": "toy", "trials": 4, "of": 4, "same": 1, "within": 2, "differs": 1}
    verdict = {"claim": "toy-sum", "page": "toy", "recorded": "reproduced", "found": "not reproduced"}
    content = {"runs": [run | {"machine": "A card"}], "verdicts": [verdict | {"machine": "A card"}]}
    (paths.results() / "rounding.json").write_text(json.dumps(content))
    rounding._content.cache_clear()
    sentence = "Rounding decides this verdict: it was “not reproduced” when the trials ran again on A card."
    found = scoreboard.files([toy], judged)["claims/toy-sum.html"].decode()
    assert found.count("Run again") == 1
    assert sentence in found
    assert sentence in claims.verdicts(runner.run_study(toy, toy.Parameters(samples=4), jobs=1)).tables[0].remarks
