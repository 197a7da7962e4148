"""The page on speed: what was measured, as it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradleak.book import performance

SOLVERS = [
    {"solver": s, "classes": c, "batch": n, "measured on": n, "ms a sample": t, "samples a second": 1000 / t}
    for s, n, t in (("exact", 1, 2.0), ("exact", 32, 0.5), ("lbfgs", 1, 100.0), ("pso", 1, 200.0))
    for c in (10, 100)
]
MATCHING = [
    {"what": "matching", "ms a sample": 1.0, "plain loop ms": 6.0, "times faster": 6.0, "training step ms": 0.2}
    | {"times a training step": 5.0},
    {"what": "restoring", "ms a sample": 2.0, "plain loop ms": 5.0, "times faster": 2.5, "training step ms": 0.8}
    | {"times a training step": 2.5},
]
ALONE = {"ms": 1.5, "operations": 500, "product us": 1.0, "sum us": 2.0}
TOGETHER = [
    {"classes": 10, "batch": 6, "unknowns": 42, "seconds": 0.25, "status": "found", "reason": "5 of 8 starts end here"}
    | {"largest label error": 2e-15}
]
LAUNCHES = [
    {"attack": "Adam", "for": "step", "operations": 194.2, "reads": 0.1, "CPU ms": 2.5},
    {"attack": "exact", "for": "call", "operations": 13870.0, "reads": 13.0, "CPU ms": 12.0},
]
BATCHING = [{"what": "all minima", "ms a sample": 1.0, "plain loop ms": 3.0, "times faster": 3.0}]


def test_the_page_shows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    monkeypatch.setattr(performance, "results_file", lambda: file)
    assert "Nothing is measured yet" in performance.write_page(tmp_path)
    about = {"threads": 1, "dates": {"solvers": "2026-01-02"}, "versions": {"torch": "2.11"}}
    measured = about | {"solvers": SOLVERS, "batching": BATCHING, "matching": MATCHING}
    file.write_text(json.dumps(measured))
    assert "operations launched" not in performance.write_page(tmp_path), "of an older run, what it measured"
    file.write_text(json.dumps(measured | {"alone": ALONE, "together": TOGETHER, "launches": LAUNCHES}))
    text = performance.write_page(tmp_path)
    assert "2026-01-02, torch 2.11" in text
    file.write_text(json.dumps(measured | {"dates": {"solvers": "2026-01-02", "matching": "2026-03-04"}}))
    assert "2026-01-02 to 2026-03-04, torch" in performance.write_page(tmp_path), "parts are measured one by one"
    assert "| published search (L-BFGS) | 10 | any | 1 | 100 | 10 | 200 |" in text, (
        "beside the exact solver's best, 0.5 ms"
    )
    assert "| exact | 100 | 32 | 32 | 0.5 | 2,000 | 1 |" in text
    assert "| all minima | 1 | 3 | 3 |" in text
    assert "| matching | 1 | 6 | 6 |" in text
    assert "costs 5 times a step of training" in text
    assert "| restoring | 2 | 5 | 2.5 |" in text
    assert "this number of training steps: 2.5 (restoring)." in text
    assert "| 10 | 6 | 42 | 0.25 | found | 5 of 8 | 2e-15 |" in text
    assert "takes 1.5 ms at ten classes. The solver makes 500 calls on tensors of a few dozen numbers, at 3 µs" in text
    assert "500 products alone would take 0.5 ms and 500 sums 1 ms" in text
    assert "| Adam | one step | 194 | 0.1 | 2.5 |" in text
    assert "| exact | one call | 13,870 | 13 | 12 |" in text
    assert (tmp_path / "performance.png").stat().st_size > 5000
