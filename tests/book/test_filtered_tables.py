"""The scoreboard and the explorer in a browser, opened as files: what itables shows of made-up claims and outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from gradleak import paths
from gradleak.book import explorer, scoreboard
from tests.book.made_up import outcome
from tests.book.test_scoreboard import page
from tests.claims.test_shown import line

pytestmark = pytest.mark.browser
CLAIMS = [
    line(
        id=f"c-{number}", paper="pq"[number % 2], statement=f"statement {number}", note="why",
        published=9.0 if number % 4 == 0 else 2.0, cause="chance" if number % 4 == 0 else None,
    )
    for number in range(1, 41)
]  # fmt: skip
OUTCOMES = [
    outcome(value=99.5, low=98.0, high=99.9, count=1000),
    outcome(defense="clip/1", value=60.0, batch=1),
    outcome(leak="images", attack="matcher", network="AlexNet", unit="dB", measure="PSNR", value=25.0),
    *(outcome(attack="counter", value=float(value), batch=16) for value in range(40)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute both notebooks on made-up data, and write a page of the outputs of each."""
    root = tmp_path_factory.mktemp("a book")
    (root / "generated").mkdir()
    claims = scoreboard.rows([page("one", "p")], {"one": CLAIMS})
    claims.to_json(root / "generated" / "claims.json", orient="records")
    outcomes = explorer.rows(OUTCOMES)
    outcomes.to_json(root / "generated" / "outcomes.json", orient="records")
    for name in ("scoreboard", "explorer"):
        notebook = nbformat.read(paths.book() / f"{name}.ipynb", 4)
        NotebookClient(notebook, resources={"metadata": {"path": str(root)}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        assert not [output for output in outputs if output["output_type"] == "stream"], "nothing is printed or warned"
        markup = "".join(output["data"]["text/html"] for output in outputs)
        (root / f"{name}.html").write_text(f'<!DOCTYPE html><html><meta charset="utf-8">{markup}')
    return root


@pytest.fixture
def view(folder: Path, browser: Any) -> Iterator[Any]:
    opened = browser.new_context(offline=True).new_page()
    said: list[str] = []
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    assert said == []


def rows(view: Any) -> list[str]:
    """Return the texts of the rows that the table shows."""
    view.locator(".dt-info").wait_for()
    return [str(text) for text in view.locator("table.all-claims tbody tr, table.outcomes tbody tr").all_inner_texts()]


def test_claims_are_searched_and_filtered(view: Any, folder: Path) -> None:
    view.goto((folder / "scoreboard.html").as_uri())
    assert len(rows(view)) == 10
    assert "1 to 10 of 40 entries" in view.inner_text(".dt-info")
    view.get_by_label("Search:").fill("statement 12")
    (row,) = rows(view)
    assert "not reproduced" in row
    assert view.locator("table.all-claims a").first.get_attribute("href") == "../claims/c-12.html"
    view.get_by_label("Search:").fill("")
    view.get_by_role("button", name="Show All").click()
    view.locator(".dtsp-searchPane td", has_text="not reproduced").click()
    assert "1 to 10 of 10 entries" in view.inner_text(".dt-info")
    view.goto("about:blank")
    view.goto((folder / "scoreboard.html").as_uri() + "#claim-c-38")
    (row,) = rows(view)
    assert "statement 38" in row, "the address of a claim shows it"


def test_outcomes_are_filtered_and_what_was_not_run_is_said(view: Any, folder: Path) -> None:
    view.goto((folder / "explorer.html").as_uri())
    assert "everything" in rows(view)[0], "the most severe is the first"
    view.get_by_role("button", name="Show All").click()
    view.locator(".dtsp-searchPane td", has_text="AlexNet").click()
    (row,) = rows(view)
    assert "25 dB PSNR" in row
    view.get_by_label("Search:").fill("batch solver")
    assert rows(view) == ["Not measured: no page of the book has this setting."]
