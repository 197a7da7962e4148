"""What stays on the CPU is declared once, and the README, the pages and the trials agree with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak import studies
from gradleak.runs import experiments, sources, staying

README = Path(__file__).parents[2] / "README.md"


def _devices(name: str) -> set[str]:
    """Return the devices of a page's trials on a machine with a GPU, at its smallest parameters."""
    study = studies.load(name)
    trials = study.trials(studies.parameters(study, "quick", study.smallest))
    return {one.get("device", "cpu") for one in trials}


def test_experiments_stay_on_the_cpu_where_they_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "resolve_device", lambda device: "cpu" if device == "cpu" else "cuda")
    for name in studies.names():
        study = studies.load(name)
        for one in studies.parameters(study, "quick", study.smallest).experiments():
            assert (one.device == "cpu") == bool(one.stays_on_cpu), f"{name}: {one.part}"


def test_every_declared_definition_is_reached() -> None:
    reached = {name: sources.of_trials(studies.load(name)).definitions for name in studies.names()}
    every = frozenset().union(*reached.values())
    for one in staying.STAYS:
        assert every.issuperset(one.by)
    (ranks,) = (one for one in staying.STAYS if "RLG" in one.what)
    for name in ("label-attacks-compared", "reveal-labels"):
        assert not reached[name].isdisjoint(ranks.by)


def test_the_readme_and_the_status_page_name_all_of_it() -> None:
    section = README.read_text("utf-8").partition("## With a GPU")[2].partition("\n## ")[0]
    said, shown = " ".join(section.split()), staying.text()
    for one in staying.STAYS:
        assert one.what in said
        assert f"| {one.what} | {one.reason} |" in shown


def test_a_page_names_its_own_part() -> None:
    own = staying.on_page(studies.load("cocktail-party"))
    assert "FastICA (scikit-learn) (it computes with NumPy)" in own
    assert "shown unfolded" in own
    assert "speech" not in own
    spoken = staying.on_page(studies.load("spoken"))
    assert "all experiments (" in spoken
