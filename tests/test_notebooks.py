"""Every notebook runs at its smallest setting, through the runner that the book uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak import claims, studies
from gradleak.book import pages, records


@pytest.mark.slow
@pytest.mark.parametrize("name", studies.names())
def test_every_notebook_runs_and_reaches_its_verdicts(name: str, tmp_path: Path) -> None:
    study = studies.load(name)
    page = pages.run_page(study, studies.parameters(study, "quick", study.module.SMALLEST), tmp_path, jobs=1)
    record = records.read(page.record)
    assert record.profile == "custom"
    text = page.notebook.read_text()
    for line in claims.lines({name: record}, name):
        assert line.verdict_text in text
        assert line.fresh.verdict in ("trend only", "not run")
    assert "Traceback" not in text
    assert "stderr" not in text, "a page prints nothing it does not mean to"
