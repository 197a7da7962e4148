"""The book's generated parts, and what happens when a page fails or is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gradleak import paths, studies
from gradleak.book import build, records
from gradleak.errors import GradleakError
from gradleak.studies import Study


class Done:
    """A finished jupyter-book."""

    def __init__(self, code: int) -> None:
        self.returncode, self.stdout, self.stderr = code, "fine\nx.md: WARNING: not fine\n", ""


@pytest.fixture
def sphinx(toy: Study, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
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
    toy: Study, sphinx: list[Any], capsys: pytest.CaptureFixture[str]
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
    assert len(generated) == 3 + len(build.papers())
    assert "Nothing is measured yet" in generated["performance.md"]
    assert "1 reproduced" in generated["pages-toy2020.md"]
    assert "No page" in generated["pages-empty2020.md"]
    assert "**1 claims**" in generated["scoreboard.md"]
    assert "executed/toy2020/toy" in generated["status.md"]
    assert (paths.book() / "generated" / "cover.png").is_file()
    assert records.read(paths.executed() / "toy2020" / "toy.json").study == "toy"
    assert len(sphinx) == 2
    build.build(jobs=1)
    assert "unchanged" in capsys.readouterr().out
    assert len(sphinx) == 2, "an unchanged book is not rendered again"


def test_warnings_of_the_build_are_shown_and_fail_it(
    toy: Study, sphinx: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sphinx[0][0] = 1
    with pytest.raises(GradleakError, match="not built without warnings: 1 lines above"):
        build.build(jobs=1)
    assert "x.md: WARNING: not fine" in capsys.readouterr().err
    assert not (paths.root() / "_build" / "inputs.hash").exists()


def test_pages_are_in_the_order_of_the_contents() -> None:
    contents = build._contents()
    places = {name: build._place(studies.load(name), contents) for name in studies.names()}
    assert places["theorem1"] < places["label-accuracy"] < places["label-accuracy-intense"] < places["noise"]
    assert places["noise"] < places["llg-attack"] < places["llg-architectures"] < places["reveal-labels"]


def test_every_paper_has_its_part() -> None:
    text = (Path(__file__).parents[1] / "book" / "_toc.yml").read_text()
    for paper in build.papers():
        assert f"- glob: book/executed/{paper}/*\n" in text
        assert f"generated/pages-{paper}.md" in (Path(__file__).parents[1] / "book" / f"{paper}.md").read_text()
