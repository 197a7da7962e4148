"""Restored images are graded on one scale: it is stated once, and pages take words and limits from there."""

from __future__ import annotations

import re

import pytest

from gradleak import metrics, paths
from gradleak.book import constants
from gradleak.runs import records

PAGES = [*paths.notebooks().rglob("*.ipynb"), *paths.book().glob("*.md")]


def test_the_table_states_every_word_with_its_limit() -> None:
    text = constants.scale()
    for word, least in metrics.SCALE.items():
        assert f"| {word} | {least:.0f} dB | " in text
    assert list(constants.REASONS) == list(metrics.SCALE)
    assert "generated/scale.md" in (paths.book() / "reading.md").read_text("utf-8")
    assert constants.levels(metrics.EXACT) < 0.5 < constants.levels(metrics.INDISTINGUISHABLE)


@pytest.mark.parametrize("page", ["gradinversion", "gradinversion-many"])
def test_a_flat_image_is_not_recognisable(page: str) -> None:
    record = records.recorded(page)
    assert record is not None
    rows = record.frame()
    flat = rows[(rows["what"] == "image") & (rows["run"] == "mean colour")]
    assert metrics.grade(flat["psnr"].astype(float).mean()) == "not recognisable"


def test_no_page_types_a_limit_of_its_own() -> None:
    limit = re.compile(r"\b(above|below|at least|under|over|least|to) \d+(\.\d+)? dB|\b\d+ dB or more")
    assert [f"{file.name}: {match[0]}" for file in PAGES for match in limit.finditer(file.read_text("utf-8"))] == []
