"""The book: what is run and what is left, its generated parts, and what happens when a page fails or is gone."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from gradleak import paths, studies
from gradleak.book import build, gallery
from gradleak.errors import GradleakError
from gradleak.runs import records
from tests.checkout import Toy

BOOK = Path(__file__).parents[2] / "book"
GENERATED = re.compile(r"generated/([\w./-]+\.\w+)")
FIGURE = "import matplotlib.pyplot as plt\nfigure, axis = plt.subplots()\naxis.plot([0, 1]);"
SCRIPT = """
from gradleak import studies
from gradleak.book import build
if __name__ == "__main__":
    try:
        build.run_pages([studies.load(name) for name in ("second", "toy")], "quick", 2)
    except build.GradleakError as error:
        print(error)
"""


def test_pages_are_run_once_and_stale_ones_removed(
    checkout: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [0, 1]  # the exit codes of jupyter-book's next calls, the last comes first

    def run(command: list[str], **options: Any) -> Any:
        """Stand in for jupyter-book, which the acceptance tests run."""
        (paths.root() / "_build" / "html").mkdir(parents=True, exist_ok=True)
        (paths.root() / "_build" / "html" / "index.html").write_text("x")
        return SimpleNamespace(returncode=codes.pop(), stdout="fine\nx.md: WARNING: not fine\n", stderr="")

    monkeypatch.setattr(build, "subprocess", SimpleNamespace(run=run))
    stale = paths.executed() / "toy2020" / "gone.ipynb"
    for file in (stale, stale.with_suffix(".json"), paths.book() / "generated" / "gallery" / "gone.png"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    checkout.write_notebook(checkout.study_cell, FIGURE)
    with pytest.raises(GradleakError, match="not built without warnings: 1 lines above"):
        build.build(jobs=1)
    said = capsys.readouterr()
    assert "[1/1] toy2020/toy:" in said.out
    assert "x.md: WARNING: not fine" in said.err
    assert build.build(jobs=1) == paths.root() / "_build" / "html" / "index.html"
    assert not list(paths.book().rglob("gone.*"))
    folder = paths.book() / "generated"
    made = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.*")}
    pages = "".join(page.read_text() for page in (*BOOK.glob("*.md"), *BOOK.glob("*.ipynb")))
    assert {name for name in GENERATED.findall(pages) if "2" not in name} <= set(made), "what the book's text includes"
    for name, words in {
        "pages-toy2020.md": ":img-top: generated/gallery/toy.png\n:img-alt: A toy: draws and their sum\n"
        ":link: executed/toy2020/toy\n:link-type: doc\n\nTable 1\n\n1 reproduced",
        "pages-empty2020.md": "No page",
        "scores.md": "**The papers' claims, 1, 1 decided**: 1 reproduced.",
        "places.json": '{"book/executed/toy2020/toy": ["toy2020", "Table 1"]}',
        "status.json": '"page": "toy", "record": "not recorded"',
        "claims.json": '"decided":"reproduced"',
        "beside/claims.csv": "toy-sum",
    }.items():
        assert words in made[name].read_text()
    assert "{doc}" not in made["attacks.md"].read_text(), "no page of an attack is there"
    with Image.open(made["gallery/toy.png"]) as picture:
        assert picture.width == gallery.WIDTH
    assert records.read(paths.executed() / "toy2020" / "toy.json").study == "toy"
    build.build(jobs=1)  # jupyter-book would have no exit code left
    assert "[1/1] toy2020/toy: unchanged" in capsys.readouterr().out


@pytest.mark.slow
def test_pages_run_side_by_side_and_one_that_fails_stops_no_other(checkout: Toy) -> None:
    for file in (checkout.module, checkout.claims, checkout.notebook):
        text = file.read_text().replace("study: toy", "study: second").replace("toy-sum", "second-sum")
        file.with_stem("second").write_text(text.replace('\\"toy\\"', '\\"second\\"'))
    checkout.edit("time.sleep(self.pause)", "raise ValueError('no')")
    said = checkout.python(SCRIPT)
    assert "toy2020/toy: failed: page 'toy' failed: ValueError: no" in said
    assert re.search(r"toy2020/second: \d+ s", said)
    assert said.endswith("1 of 2 pages failed: toy; see the errors above")


def test_every_page_stands_in_the_contents_in_order_and_every_paper_shows_its_pages() -> None:
    order = [study.name for study in build.in_order()]
    assert sorted(order) == sorted(studies.names())
    for paper in build.papers():
        assert f"generated/pages-{paper}.md" in (BOOK / f"{paper}.md").read_text()
