"""Progress is told where someone looks, and nowhere else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gradleak.book import progress as module
from gradleak.book.progress import progress


def test_nothing_is_said_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(3), 3, "counting")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_page_tells_its_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_PROGRESS", str(tmp_path / "p"))
    assert list(progress(range(50), 50, "counting")) == list(range(50))
    told = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    assert {"description": "counting", "done": 0, "total": 50}.items() <= told[0].items()
    assert told[-1]["done"] == 50
    assert len(told) < 10


def test_a_terminal_sees_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADLEAK_PROGRESS", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    assert list(module.progress(range(3), 3, "counting")) == [0, 1, 2]
    assert "counting" in capsys.readouterr().err
