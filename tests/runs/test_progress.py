"""Progress: silent without a terminal, bars that nest in a terminal, one bar in a notebook."""

from __future__ import annotations

import io
import sys

import pytest

from gradleak.runs import progress as module
from gradleak.runs.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def nested() -> list[tuple[int, int]]:
    return [(outer, inner) for outer in progress(range(2), 2, "outer") for inner in progress(range(3), 3, "inner")]


def test_bars_nest_in_a_terminal_and_are_silent_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = nested()
    assert capfd.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with module.quiet():
        assert nested() == found
    assert terminal.getvalue() == ""
    assert nested() == found
    assert "outer:   0%|" in terminal.getvalue()
    assert "inner:   0%|" in terminal.getvalue()
