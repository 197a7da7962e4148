"""The end of a run: its changed parameters, and what it says of each claim beside the record."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from gradleak import claims
from gradleak.book import beside, pages, rendered, rerun
from gradleak.runs import records, runner
from tests.checkout import CLAIMS, Toy

MORE = (
    CLAIMS
    + """
- id: toy-setting
  paper: toy2020
  place: Table 1, row 2
  statement: The paper's scale is two
  study: toy
  measure: {where: {word: b}, column: value, reduce: sum}
  rule: {at_least: 0}
  needs: {samples: 6}
  setting: {scale: 2}
- id: toy-ours
  paper: toy2020
  place: Table 1
  statement: Numbers are few
  study: toy
  measure: {where: {word: a}, column: value, reduce: sum}
  rule: {at_most: 3}
  needs: {samples: 4}
  ours: prediction
- id: toy-absent
  paper: toy2020
  place: Table 1
  statement: A word that no run has
  study: toy
  measure: {where: {word: c}, column: value, reduce: sum}
  rule: {at_most: 3}
  setting: any
  stand_in: No run has it.
"""
)
FIGURE = """import matplotlib.pyplot as plt
figure, axis = plt.subplots(figsize=(1, 1))
axis.plot([0, len(shown.trials)]);"""
SHOWN = "from gradleak.show import provenance\nshown = provenance.shown(record)\nshown"


def test_each_claim_in_words(checkout: Toy) -> None:
    checkout.claims.write_text(MORE)
    records.write(runner.run_study("toy", checkout.parameters(samples=8)), records.file_of("toy"))
    summary = rerun.rerun(checkout.load(), runner.run_study("toy", checkout.parameters(samples=3, words=["a", "b"])))
    assert [(one.name, one.this, one.page, one.recorded) for one in summary.changed] == [("samples", 3, 4, 8)]
    assert summary.parameters == "changed parameters: samples = 3 (the page's own value: 4; recorded with 8)"
    rows = {row["claim"]: row for row in summary.rows()}
    assert list(rows)[-1] == "Table 1: Numbers are few", "the papers' claims come first"
    first = rows["Table 1, row 1: The sum of the numbers is six"]
    assert first["paper"] == "6"
    assert first["recorded"].startswith("28")
    assert first["this run"].startswith("3")
    assert first["verdict of this run"] == "disagrees, not judged"
    assert first["as in the record"] == "yes"
    second = rows["Table 1, row 2: The paper's scale is two"]
    assert second["verdict of this run"] == "agrees, not judged"
    assert rows["Table 1: A word that no run has"]["verdict of this run"] == "not measured"
    assert rows["Table 1: Numbers are few"]["paper"] == "our prediction"
    assert rows["Table 1: Numbers are few"]["as in the record"] == "no"
    assert summary.counts == [
        "3 claims of the paper: 2 cannot be judged by this run (1 agree, 1 disagree); 1 not measured.",
        "1 claim of our own: 1 cannot be judged by this run (1 agree, 0 disagree).",
        "This run judges no claim: it is too small, or its setting is not the papers'. "
        "`--profile paper` takes the papers' sizes.",
    ]
    assert summary.reasons == [
        "To be judged, claims need samples = 4; samples = 6.",
        "The papers' setting is scale = 2.",
    ]


def test_a_run_that_is_large_enough_judges(checkout: Toy) -> None:
    checkout.claims.write_text(MORE)
    summary = rerun.rerun(checkout.load(), runner.run_study("toy", checkout.parameters()))
    assert summary.changed == ()
    assert summary.parameters == "parameters: the page's own"
    assert [row["verdict of this run"] for row in summary.rows()] == [
        "holds", "agrees, not judged", "not measured", "fails",
    ]  # fmt: skip
    assert summary.counts == [
        "3 claims of the paper: 1 hold, 0 fail; 1 cannot be judged by this run (1 agree, 0 disagree); 1 not measured.",
        "1 claim of our own: 0 hold, 1 fail.",
    ]
    assert {row["as in the record"] for row in summary.rows()} == {"–"}


def test_a_cell_of_a_table_is_named_by_its_place() -> None:
    (claim, *_) = claims.load("label-accuracy")
    assert rerun.name_of(claim) == "Table 1: smoothing, CIFAR-100"
    assert rerun.brief(["a" * 40, "b" * 40]).endswith("…")


@pytest.fixture
def run(checkout: Toy) -> pages.PageRun:
    """Run a page with a changed parameter beside a record."""
    checkout.write_notebook(
        checkout.study_cell,
        SHOWN,
        FIGURE,
        "from gradleak.show.tables import Table\nfrom gradleak.studies.toy2020 import toy\n"
        "Table(toy.table(shown), caption='Sums', name='tab-sums')",
        "if shown.recorded: raise ValueError('a record may lack what a figure shows')\nprint('no figure')",
        "print(len(record.trials), 'in this run')",
    )
    records.write(runner.run_study("toy", checkout.parameters(samples=6)), records.file_of("toy"))
    folder = checkout.root / "out"
    return pages.run_page(checkout.load(), checkout.parameters(samples=3), folder, jobs=1, fresh=True, both=True)


def test_figures_and_tables_of_both_runs(run: pages.PageRun, checkout: Toy) -> None:
    page = nbformat.read(run.notebook, 4)
    nbformat.validate(page)
    assert not any(map(beside.is_copy, page.cells))
    assert not any(output.output_type == "error" for cell in page.cells for output in cell.get("outputs", ()))
    others = [beside.of_other_run(cell) for cell in page.cells]
    assert [len(outputs) for outputs in others] == [0, 0, 0, 0, 1, 1, 0, 0]
    figure, table = page.cells[4], page.cells[5]
    assert figure.outputs[0].data["image/png"] != others[4][0].data["image/png"]
    assert table.outputs[0].data["text/html"].count("<tr>") == 1 + 3 * 2
    assert others[5][0].data["text/html"].count("<tr>") == 1 + 6 * 2
    record = records.read(run.record)
    assert len(record.trials) == 3
    file = rendered.write(rerun.rerun(checkout.load(), record), run.notebook)
    text = file.read_text()
    assert file == run.notebook.with_suffix(".html")
    assert text.count("data:image/png;base64,") == 2
    assert text.index("<figcaption>This run") < text.index("<figcaption>Recorded run")
    assert "<td><code>samples</code></td><td><strong>3</strong></td><td>4</td><td>6</td>" in text
    assert "<td>disagrees, not judged</td>" in text
    assert "<p>To be judged, claims need samples = 4.</p>" in text
    assert "<details open><summary>The claims of the page in this run (1)" in text
    assert 'src="http' not in text
    assert 'href="http' not in text


def test_without_a_record_a_page_shows_its_own_run(checkout: Toy) -> None:
    checkout.write_notebook(checkout.study_cell, SHOWN, FIGURE)
    run = pages.run_page(checkout.load(), checkout.parameters(), checkout.root / "out", jobs=1, both=True)
    text = rendered.write(rerun.rerun(checkout.load(), records.read(run.record)), run.notebook).read_text()
    assert text.count("data:image/png;base64,") == 1
    assert "<figcaption>" not in text
    assert "Nothing is recorded for this page" in text
    assert "All parameters have the page's own values" in text


def test_only_cells_that_show_a_run_are_drawn_twice(tmp_path: Path) -> None:
    page = nbformat.v4.new_notebook()
    sources = ["shown = 1", "shown = provenance.shown(record)", "print(shown)", "%time shown", "print(1)", "shown += 1"]
    page.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    page.cells[0].metadata["tags"] = ["parameters"]
    beside.add_copies(page)
    copies = [cell.source for cell in page.cells if beside.is_copy(cell)]
    assert copies == [beside.SWAP, "print(shown)"]
    plain = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)")])
    beside.add_copies(plain)
    assert len(plain.cells) == 1
