"""The section on a check on a real GPU: what the results file says, by page and by part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradleak.book import gpu_check, performance
from tests.book.test_performance import BATCHING, MATCHING, SOLVERS

ABOUT = {"device": "H1, driver 5", "torch": "2.11", "python": "3.12", "processor": "a CPU", "date": "2026-01-02"}


def tried(
    name: str, part: str, digits: float | None, cpu: float = 0.5, gpu: float = 1.0, trouble: str = ""
) -> dict[str, Any]:
    found = {"name": name, "part": part, "digits alike": digits}
    return found | {"CPU s": cpu, "GPU s": gpu, "trouble": trouble}


TRIES = [
    tried("attacks", "iDLG", None),
    tried("noise", "(open cells)", None, 0.0, 0.25),
    tried("peeling", "(open cells)", None, 0.0, 0.25),
    tried("peeling", "peeled", 6.24, 0.5, 1.0),
    tried("peeling", "matched", 1.2, 1.5, 2.0, "rows[0]|psnr: 1.0 where the CPU has 2.0"),
    tried("sentences", "", 0, 0.1, 0.0, "on the CPU: OSError: no file"),
]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "gpu-check.json"
    monkeypatch.setattr(gpu_check, "results_file", lambda: file)
    return file


def test_without_a_file_there_is_no_section(file: Path) -> None:
    assert gpu_check.section() == []
    pretended = ABOUT | {"device": "a pretended GPU"}
    file.write_text(json.dumps({"about": pretended, "jobs": 1, "chosen": 1, "tries": TRIES[:1]}))
    assert gpu_check.section() == [], "a check of the check is not shown"


def test_a_check_is_shown_by_page_and_by_part(file: Path) -> None:
    file.write_text(json.dumps({"about": ABOUT, "jobs": 8, "chosen": 9, "tries": TRIES}))
    head, summary, pages, parts = gpu_check.section()
    assert head == "## Checked on a real GPU\n"
    assert (
        "On 2026-01-02, 4 of 6 parts ran without trouble on H1, driver 5 and on the CPU a CPU (torch 2.11, Python 3.12)"
        in summary
    )
    assert "stopped after 6 of 9 parts" in summary
    assert "8 processes shared the GPU" in summary
    assert "no benchmark" in summary
    assert "| attacks | 1 | all | 0.50 | 1.00 | – |" in pages
    assert "| noise | 1 | – | – | 0.25 | – |" in pages, "open cells are not compared"
    trouble = r"rows\[0\]\|psnr: 1.0 where the CPU has 2.0"
    assert f"| peeling | 3 | 1.2 | 2.00 | 3.25 | matched: {trouble} |" in pages
    assert "| sentences | 1 | 0.0 | 0.10 | 0.00 | on the CPU: OSError: no file |" in pages
    assert "dropdown" not in pages
    assert parts.startswith("::::{dropdown} All parts")
    assert "| peeling | (open cells) | – | – | 0.25 | – |" in parts
    assert "| peeling | peeled | 6.2 | 0.50 | 1.00 | – |" in parts
    assert f"| peeling | matched | 1.2 | 1.50 | 2.00 | {trouble} |" in parts
    assert "| sentences | – | 0.0 | 0.10 | 0.00 | on the CPU: OSError: no file |" in parts


def test_a_complete_check_of_one_process(file: Path) -> None:
    file.write_text(json.dumps({"about": ABOUT, "jobs": 1, "chosen": 1, "tries": TRIES[:1]}))
    summary = gpu_check.section()[1]
    assert "1 of 1 parts ran without trouble" in summary
    assert "stopped" not in summary
    assert "shared" not in summary


def test_the_page_on_speed_shows_the_check(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = tmp_path / "results.json"
    monkeypatch.setattr(performance, "results_file", lambda: measured)
    about = {"threads": 1, "dates": {"solvers": "2026-01-02"}, "versions": {"torch": "2.11"}}
    measured.write_text(json.dumps(about | {"solvers": SOLVERS, "batching": BATCHING, "matching": MATCHING}))
    assert "real GPU" not in performance.write_page(tmp_path)
    file.write_text(json.dumps({"about": ABOUT, "jobs": 8, "chosen": 6, "tries": TRIES}))
    assert "## Checked on a real GPU\n\nOn 2026-01-02" in performance.write_page(tmp_path)
