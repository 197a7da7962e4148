"""What stays on the CPU is declared once, and the README, the pages and the trials agree with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak import studies
from gradleak.runs import sources, staying
from gradleak.runs.sources import Definition

README = Path(__file__).parents[2] / "README.md"


def _devices(name: str) -> set[str]:
    """Return the devices of a page's trials on a machine with a GPU, at its smallest parameters."""
    study = studies.load(name)
    trials = study.trials(studies.parameters(study, "quick", study.smallest))
    return {one.get("device", "cpu") for one in trials}


def test_pages_whose_trials_all_stay_are_those_that_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (studies, experiments):
        monkeypatch.setattr(place, "resolve_device", lambda device: "cpu" if device == "cpu" else "cuda")
    found = {name: _devices(name) for name in studies.names()}
    whole = {page for one in staying.STAYS if one.what.startswith("all trials") for page in one.pages}
    assert {name for name, where in found.items() if where == {"cpu"}} == whole
    assert all(where == {"cuda"} for name, where in found.items() if name not in whole)


def test_every_declared_page_and_definition_is_there() -> None:
    reached = {name: sources.of_trials(studies.load(name)).definitions for name in studies.names()}
    every = frozenset().union(*reached.values())
    for one in staying.STAYS:
        assert set(one.pages) <= set(reached)
        assert every.issuperset(one.by)
    (ranks,) = (one for one in staying.STAYS if "RLG" in one.what)
    for name in ranks.pages:
        assert Definition("gradleak.labels.hard.rlg", "rlg") in reached[name]


def test_the_readme_and_the_status_page_name_all_of_it() -> None:
    section = README.read_text("utf-8").partition("## With a GPU")[2].partition("\n## ")[0]
    said, shown = " ".join(section.split()), staying.text()
    for one in staying.STAYS:
        assert one.what in said
        assert f"| {one.what} | {one.reason} |" in shown


def test_a_page_names_its_own_part() -> None:
    own = staying.on_page(studies.load("cocktail-party"))
    assert "FastICA (scikit-learn) (it works in numpy)" in own
    assert "open cells" in own
    assert "speech" not in own
