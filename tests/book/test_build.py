"""The book: what is run and what is left, its generated parts, and what happens when a page fails or is gone."""

from __future__ import annotations

import json
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradleak import paths, studies
from gradleak.book import build
from gradleak.errors import GradleakError
from gradleak.runs import records
from tests.checkout import Toy

SCRIPT = """
from gradleak import studies
from gradleak.book import build
if __name__ == "__main__":
    loaded = [studies.load(name) for name in ("second", "toy")]
    try:
        print(*[run.notebook.name for run in build._run_pages(loaded, "quick", 2).values()])
    except build.GradleakError as error:
        print(error)
"""


class Done:
    """A finished jupyter-book."""

    def __init__(self, code: int) -> None:
        self.returncode, self.stdout, self.stderr = code, "fine\nx.md: WARNING: not fine\n", ""


@pytest.fixture
def sphinx(checkout: Toy, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand in for jupyter-book, which the acceptance tests run for real."""
    calls: list[Any] = []
    code = [0]

    def run(command: list[str], **options: Any) -> Any:
        if "-W" not in command:
            return subprocess.CompletedProcess(command, 1, "", "")
        calls.append(command)
        html = paths.root() / "_build" / "html"
        html.mkdir(parents=True, exist_ok=True)
        (html / "index.html").write_text("x")
        return Done(code[0])

    monkeypatch.setattr(build.subprocess, "run", run)
    calls.append(code)
    return calls


def test_pages_are_run_once_and_stale_ones_removed(
    checkout: Toy, sphinx: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stale = paths.executed() / "toy2020" / "gone.ipynb"
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    stale.with_suffix(".json").write_text("{}")
    assert build.build(jobs=1) == paths.root() / "_build" / "html" / "index.html"
    assert not stale.exists()
    assert not stale.with_suffix(".json").exists()
    assert "[1/1] toy2020/toy:" in capsys.readouterr().out
    generated = {file.name: file.read_text() for file in (paths.book() / "generated").glob("*.md")}
    parts = {f"{kind}-{paper}.md" for paper in build.papers() for kind in ("pages", "report")}
    assert set(generated) == parts | {
        "what-leaks.md",
        "explorer.md",
        "scores.md",
        "scale.md",
        "scoreboard.md",
        "verdict-bars.md",
        "gallery.md",
        "attacks.md",
    }
    assert "1 reproduced" in generated["pages-toy2020.md"]
    assert "No page" in generated["pages-empty2020.md"]
    assert "no report" in generated["report-toy2020.md"]
    assert "**The papers' claims, 1**: 1 reproduced." in generated["scores.md"]
    assert "**Our own, 0**: none." in generated["scores.md"]
    (row,) = json.loads((paths.book() / "generated" / "claims.json").read_text())
    assert (row["id"], row["decided"]) == ("toy-sum", "reproduced")
    assert json.loads((paths.book() / "generated" / "places.json").read_text()) == {
        "book/executed/toy2020/toy": ["toy2020", "Table 1"]
    }
    assert (paths.book() / "generated" / "beside" / "claims.csv").is_file()
    (status,) = json.loads((paths.book() / "generated" / "status.json").read_text())
    assert (status["at"], status["record"]) == ("doc:executed/toy2020/toy", "not recorded")
    assert ":link: executed/toy2020/toy" in generated["gallery.md"]
    assert ":img-top:" not in generated["gallery.md"], "the toy has no figure"
    leaks = generated["what-leaks.md"]
    assert "| what leaks | from |" in leaks
    assert "{doc}" not in leaks, "the toy says of no row there that it is its own"
    assert "{doc}" not in generated["attacks.md"], "no page of an attack is there"
    for name in ("cover", "sentence"):
        assert (paths.book() / "generated" / f"{name}.png").is_file()
    assert records.read(paths.executed() / "toy2020" / "toy.json").study == "toy"
    assert len(sphinx) == 2
    build.build(jobs=1)
    assert "[1/1] toy2020/toy: unchanged" in capsys.readouterr().out
    assert len(sphinx) == 2, "an unchanged book is not rendered again"


@pytest.mark.slow
def test_pages_run_side_by_side_and_one_that_fails_stops_no_other(checkout: Toy) -> None:
    for file in (checkout.module, checkout.claims, checkout.notebook):
        text = file.read_text().replace("study: toy", "study: second").replace("toy-sum", "second-sum")
        file.with_stem("second").write_text(text.replace('\\"toy\\"', '\\"second\\"'))
    said = checkout.python(SCRIPT)
    assert "toy2020/toy: " in said
    assert "toy2020/second: " in said
    assert said.splitlines()[-1] == "second.ipynb toy.ipynb", "in the order of the contents"
    page = json.loads(checkout.notebook.read_text())
    page["cells"][1]["source"] = "raise ValueError('no')"
    checkout.notebook.write_text(json.dumps(page))
    said = checkout.python(SCRIPT)
    assert "[1/2] toy2020/second: unchanged" in said
    assert "[2/2] toy2020/toy: failed: page 'toy' failed in cell 2: ValueError: no" in said
    assert "1 of 2 pages failed: toy" in said


def test_warnings_of_the_build_are_shown_and_fail_it(
    checkout: Toy, sphinx: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sphinx[0][0] = 1
    with pytest.raises(GradleakError, match="not built without warnings: 1 lines above"):
        build.build(jobs=1)
    assert "x.md: WARNING: not fine" in capsys.readouterr().err
    assert not (paths.root() / "_build" / "inputs.hash").exists()


def test_pages_are_in_the_order_of_the_contents() -> None:
    contents = build._contents()
    places = {name: build._place(studies.load(name), contents) for name in studies.names()}
    assert places["theorem1"] < places["label-accuracy"] < places["noise"]
    assert places["noise"] < places["llg-attack"] < places["llg-defenses"] < places["reveal-labels"]


def test_every_page_stands_once_in_the_table_of_contents() -> None:
    toc = yaml.safe_load((Path(__file__).parents[2] / "book" / "_toc.yml").read_text())
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    lists = [chapters, *(chapter.get("sections", []) for chapter in chapters)]
    for page in (f"{studies.paper_of(name)}/{name}" for name in studies.names()):
        file = f"book/executed/{page}"
        assert sum(any(fnmatch(file, one.get("glob", "")) for one in entries) for entries in lists) == 1, page


def test_every_paper_shows_its_pages() -> None:
    for paper in build.papers():
        assert f"generated/pages-{paper}.md" in (Path(__file__).parents[2] / "book" / f"{paper}.md").read_text()
