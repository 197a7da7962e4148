"""The end of a run: its changed parameters, and what it says of each claim beside the record."""

from __future__ import annotations

import re

import nbformat

from gradleak import paths
from gradleak.book import pages, rerun
from gradleak.runs import records, runner
from tests.checkout import CLAIMS, Toy

MORE = (
    CLAIMS
    + """
- id: toy-ours
  place: Table 1
  statement: Numbers are few
  measure: {where: {word: a}, column: value, reduce: sum}
  rule: {at_most: 3}
  needs: {samples: 4}
  ours: prediction
- id: toy-more
  place: Table 1
  statement: There are more numbers
  measure: {where: {word: b}, column: value, reduce: sum}
  rule: {at_least: 0}
  needs: {samples: 6}
  setting: any
"""
)
FIGURE = """import matplotlib.pyplot as plt
figure, axis = plt.subplots(figsize=(1, 1))
axis.plot([0, len(shown.trials)]);"""
TEXT = "# A toy\n\nSee {eq}`eq-one`, {cite:t}`wang2024` and {doc}`the next page <noise>`.\n\n$$ a $$ (eq-one)"
CONFIG = "sphinx: {config: {html_css_files: [some.css], html_js_files: [some.js]}}"
SHOWN = "from gradleak.show import provenance\nshown = provenance.shown(record)\nshown"


def test_each_claim_in_words(checkout: Toy) -> None:
    checkout.claims.write_text(MORE)
    rows, sentences = rerun.summary(checkout.load(), runner.run_study("toy", checkout.parameters()))
    assert [row["verdict of this run"] for row in rows] == [
        "holds", "agrees, not judged", "fails",
    ]  # fmt: skip
    assert rows[-1]["claim"] == "Numbers are few", "the papers' claims come first"
    assert sentences == [
        "2 claims of the paper: 1 'holds'; 1 'agrees, not judged'.",
        "1 claim of our own: 1 'fails'.",
        rerun.NOT_JUDGED,
        "All parameters have the page's own values.",
    ]
    assert rerun.brief(["a" * 40, "b" * 40]).endswith("…"), "a long list is cut"


def test_the_page_of_a_run_needs_no_network(checkout: Toy) -> None:
    static = paths.book() / "_static"
    static.mkdir()
    (static / "some.css").write_text(".gradleak > b { color: red }")
    (static / "some.js").write_text("const some = 1 && 2")
    (checkout.root / "_config.yml").write_text(CONFIG)
    checkout.write_notebook(checkout.study_cell, SHOWN, FIGURE, "1 + 1")
    page = nbformat.read(checkout.notebook, 4)
    page.cells.insert(0, nbformat.v4.new_markdown_cell(TEXT))
    page.cells[4].metadata["tags"] = ["hide-input"]
    nbformat.write(page, checkout.notebook)
    run = pages.run_page(checkout.load(), checkout.parameters(samples=3), checkout.root / "out", jobs=1)
    file = rerun.write(*rerun.summary(checkout.load(), records.read(run.record)), run.notebook)
    executed = nbformat.read(run.notebook, 4)
    nbformat.validate(executed)
    assert "Changed parameters: samples = 3" in executed.cells[0].source
    assert file == run.notebook.with_suffix(".html")
    text = file.read_text()
    for part in (
        'src="data:image/png;base64,', rerun.NOT_JUDGED[:40], "wang2024 and the next page",
        r"\begin{equation}\label{eq-one} a \end{equation}", r"$\eqref{eq-one}$", ".gradleak > b { color: red }",
        "const some = 1 && 2", "MathJax = ",
    ):  # fmt: skip
        assert part in text
    assert "plt.subplots" not in text, "code with the tag hide-input"
    assert not re.search(r'<(script|link|img)[^>]* (src|href)="http', text)
